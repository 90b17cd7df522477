// Package rig starts a whole instance of Plimsoll for a package of end-to-end tests, and checks that it leaves nothing
// behind.
//
// # Model
//
// A test package has one instance, which its TestMain starts and its tests share; each test has its own namespace:
//
//	func TestMain(m *testing.M) { os.Exit(rig.Main(m, "pods", rig.Options{})) }
//
//	func TestSomething(t *testing.T) {
//		c := rig.Shared(t) // skips with the reason where no instance can run
//		ns := c.Namespace(t)
//		...
//		rig.Eventually(t, 10*time.Second, "the pod runs", func(ctx context.Context) error { ... })
//	}
//
// A test that needs a separate instance uses Start and Stop.
//
// # Invariants
//
//   - Every instance has its own name, directories, ports, pod network, bridge and cgroup, so that several runs can
//     share a machine.
//   - Stop takes the instance down and then looks for its remains: processes, mounts, cgroups, links, tables, files.
//     Anything found is a failure.
//   - An instance does not outlive its test process, even if that is killed: a guard process waits for its end.
//   - Tests do not sleep: Eventually polls a condition, with a bound.
//
// It builds nothing: `make build` does. PLIMSOLL_BIN is the directory of the built binaries (default: bin/ of the
// repository).
package rig
