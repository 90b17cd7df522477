// Package storage tests volumes on demand on a real node: the CSI driver and the controllers that `plimsoll up` starts,
// and the agent that mounts the volumes. It needs root.
//
//	make build && go test -tags e2e ./test/e2e/storage
//
// With PLIMSOLL_E2E_AGENT=$PWD/bin/upstream-kubelet (make bench-build) the same tests run upstream's kubelet as the
// agent: a test that also fails there does not fail because of our agent.
package storage
