// Package version says which Plimsoll this is and which Kubernetes it is compatible with.
//
// The first is a fact of the build, stamped by the Makefile; the second is a promise, changed by hand together with the
// modules in the go.mod files. Nothing decides by either: they are for people and node status.
package version

import "runtime/debug"

// Kubernetes is the upstream release whose API, defaults and behaviour we hold ourselves to, and the one that the
// embedded control plane is built from.
const Kubernetes = "v1.36.3"

// stamp is set by the linker (-X) from git describe; without it the build information answers.
var stamp string

// Plimsoll returns the version of this binary: the stamp of the build, else the module version, else "devel".
func Plimsoll() string {
	if stamp != "" {
		return stamp
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}
