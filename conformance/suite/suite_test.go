// Package suite imports upstream's e2e suite, so that `go mod tidy` keeps in go.mod everything from which the suite is
// built. The suite itself is built from its published module (see the Makefile). Here is nothing to build and nothing
// to run.
package suite

import _ "k8s.io/kubernetes/test/e2e"
