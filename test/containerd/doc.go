// Package containerd pins containerd 2 and a runc that gives pods users of their own, which Debian 12 does not have,
// for tests: `make bin/containerd2` builds containerd, its shim, ctr and runc from their published Go modules. Its
// go.mod names the commands as tools; there is no code. It is a separate module so that their dependencies do not
// become ours.
package containerd
