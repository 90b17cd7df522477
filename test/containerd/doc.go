// Package containerd pins containerd 2 and a runc that supports user namespaces, for tests; Debian 12 has neither.
// `make bin/containerd2` builds containerd, its shim, ctr and runc from their published Go modules. go.mod names the
// commands as tools; there is no code. It is a separate module so that their dependencies do not become ours.
package containerd
