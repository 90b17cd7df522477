// Package lab boots machines with other hardware than the host's: several NUMA nodes, SMT, cgroup v2, PSI, little
// memory, swap. They run in QEMU without hardware virtualization and boot in seconds. A test requests one by name;
// where it cannot run, the test is skipped with the reason.
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
// A *description* says what a machine has (core/machine, in the YAML that whatif reads); the predefined ones are in
// machines/. A *guest* is such a machine, running. It has
//
//   - an *image*, the same for all guests: Debian's cloud kernel, and a root file system of Debian's packages with
//     systemd, containerd, runc and the CNI plugins. It is built once and kept in the cache directory, under the digest
//     of its recipe.
//   - a *cargo*: our binaries and container images, from the directory of `make build`. It is mounted read-only.
//   - its own *disks*, of the described sizes: nodefs, which contains everything that the guest writes, and imagefs
//     (the runtime's) and swap if described. They exist as long as the Guest, so also across Kill and Restart.
//   - a *channel* that runs commands in it (package wire), over a virtio serial port, so that it works during network
//     faults.
//   - a *console*, which is kept, and printed when the test fails.
//   - a *network card* that reaches only the host. Guests with the same Options.Network have a second one, by which
//     they reach each other, at the same addresses.
//
// The *init* of a guest is tiny (our own program: nothing else runs) or systemd.
//
// # Invariants
//
//   - A guest does not outlive its test, nor the test's process, however that ends: the kernel kills QEMU with its
//     parent.
//   - If a machine cannot be built as described, the error before the boot names every reason.
//   - The image is never written. Two guests share only the image and the cargo.
//
// # What it does not do
//
// It is not for measurements: without hardware virtualization a guest is ten times slower or more, and not evenly so.
// Only ratios between two programs in one guest in one run are meaningful. QEMU before 8.1 emulates all CPUs of a guest
// in one thread, but for Options.CPUThreads. NUMA node ids have no gaps (QEMU's limit), nodes without CPUs come last
// (the kernel numbers them so), and SMT siblings are neighbours (the order of QEMU's firmware tables). Pods of guests
// do not reach each other, unless a cluster sets routes: the CNI configuration of a guest ends there. It knows nothing
// of clusters: test/e2e/rig makes a guest a node of one (Cluster.Join).
package lab
