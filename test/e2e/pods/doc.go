// Package pods tests the lives of pods on a real node: the control plane, runtime, agent and kernel that `plimsoll up`
// starts. It needs root.
//
//	make build && go test -tags e2e ./test/e2e/pods
package pods
