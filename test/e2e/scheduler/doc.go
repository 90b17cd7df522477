// Package scheduler tests `plimsoll scheduler` on a real control plane during a burst of pods with many failures: the
// leader dies, or is stopped and continues when another leads, the API server hangs and dies, pods are deleted while
// they are being placed, nodes come and go. It needs no root, except for TestDropIn.
//
//	make build && go test -tags e2e ./test/e2e/scheduler
//
// Nodes are objects only. The tests check every version of the pods in the API, and the final state.
package scheduler
