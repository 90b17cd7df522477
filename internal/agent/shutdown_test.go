package agent

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// TestRejectedWhileShuttingDown: a node whose machine is about to shut down takes no pod, in the kubelet's words.
func TestRejectedWhileShuttingDown(t *testing.T) {
	a := admit{judged: &journal.Judged{}, shuttingDown: func() bool { return true }}
	r := a.Admit(onePod("100m", "64Mi"), nil)
	if r == nil || r.Reason != "NodeShutdown" || r.Message != "Pod was rejected as the node is shutting down." || r.Later {
		t.Errorf("%+v", r)
	}
	if (&Agent{}).shuttingDown() {
		t.Error("a node that delays no shutdown shuts down")
	}
}
