// Package lifecycle tests `plimsoll lifecycle` on a real control plane with hollow nodes: what becomes of pods of each
// kind of owner when their nodes die, return, are deleted or are marked as out of service; two candidates, of which the
// leader is killed between evictions; an API server that is unreachable for longer than the node-monitor grace period.
// It needs no root.
//
//	make build && go test -tags e2e ./test/e2e/lifecycle
//
// Flags make grace periods short and rates high, so that it takes a minute and not a quarter of an hour.
package lifecycle
