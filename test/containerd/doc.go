// Package containerd pins containerd 2, which Debian 12 does not have, to test with: `make bin/containerd2` builds containerd,
// its shim and ctr from their published Go module. Its go.mod names the commands as tools; there is no code. It is a module of
// its own so that none of what containerd depends on gets near ours.
package containerd
