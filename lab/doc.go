// Package lab boots machines that we do not have: several NUMA nodes, SMT, cgroup v2, PSI, little memory, swap, in QEMU
// without hardware virtualization, in seconds. A test asks for one by name and gets it, or a skip with the reason.
//
//	func TestSomething(t *testing.T) {
//		g := lab.Boot(t, "two-socket", lab.Options{})
//		text := g.Run(t, "cat", "/sys/devices/system/node/online") // fails the test when the command fails
//		g.Run(t, "plimsoll", "version")                            // our binaries are in its PATH
//		...
//	}
//
// # Model
//
// A *description* says what a machine has (core/machine, in the YAML that whatif reads); the ready-made ones are in
// machines/. A *guest* is such a machine, running. It has
//
//   - an *image*, the same for all: Debian's cloud kernel, and a root file system of Debian's packages with systemd,
//     containerd, runc and the CNI plugins. It is built once and kept in the cache directory, under the name of the recipe's digest.
//   - a *cargo*: our binaries and container images, from the directory that `make build` fills. It is mounted read-only.
//   - *disks* of its own, of the sizes described: nodefs, on which everything is written that the guest writes, and where
//     described imagefs (the runtime's) and swap. They live as long as the guest's Guest, and so through Kill and Restart.
//   - a *channel* that runs commands in it (package wire), over a virtio serial port: no fault of the network touches it.
//   - a *console*, kept, and shown when the test fails.
//   - a *network card* that reaches the host and nothing else.
//
// The *init* of a guest is tiny (ours: nothing else runs) or systemd.
//
// # Invariants
//
//   - A guest does not outlive its test, nor the test's process, however that ends: the kernel kills QEMU with its parent.
//   - What cannot be built as described is an error before boot that names every such line.
//   - The image is never written to. Two guests share nothing but the image and the cargo.
//
// # What it does not do
//
// It measures nothing: without hardware virtualization a guest is ten times slower and more, unevenly so. Only ratios between two
// programs in one guest in one run mean anything. Guests do not reach each other. NUMA node ids have no holes (QEMU's
// limit), nodes without CPUs come last (the kernel numbers them so), SMT siblings are neighbours (the order of QEMU's firmware
// tables). It knows no cluster: test/e2e/rig makes a guest a node of one (Cluster.Join).
package lab
