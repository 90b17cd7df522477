// Package volumes tests volumes of CSI drivers on a real node: our own driver and one that fails, hangs and goes away,
// with the control plane, runtime, agent and kernel that `plimsoll up` starts. It needs root.
//
//	make build && go test -tags e2e ./test/e2e/volumes
package volumes
