// Package containerd pins containerd 2, which Debian 12 does not have, for tests: `make bin/containerd2` builds
// containerd, its shim and ctr from their published Go module. Its go.mod names the commands as tools; there is no
// code. It is a separate module so that containerd's dependencies do not become ours.
package containerd
