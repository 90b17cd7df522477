// Package suite names upstream's e2e suite, so that go.mod requires all that it is built from: `go mod tidy` keeps
// what a package's tests import for packages that a module of ours imports itself. The suite is built from where it is
// published (see the Makefile); nothing is built here, and there is nothing to run.
package suite

import _ "k8s.io/kubernetes/test/e2e"
