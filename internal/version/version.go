// Package version has the version of this Plimsoll, and the version of Kubernetes that it is compatible with.
//
// The first is set at build time by the Makefile. The second is changed by hand together with the modules in the go.mod
// files. Both are for people and the node status. `plimsoll up` also compares the second with the version that last ran
// on its state.
package version

import "runtime/debug"

// Kubernetes is the upstream release whose API, defaults and behaviour Plimsoll follows, and from which the embedded
// control plane is built.
const Kubernetes = "v1.36.3"

// stamp is set by the linker (-X) from git describe. Without it the build information is used.
var stamp string

// Plimsoll returns the version of this binary: the stamp; without one the module version; without that "devel".
func Plimsoll() string {
	if stamp != "" {
		return stamp
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
