package lifecycle

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// TestJournal: a node falls silent and its pod is evicted, after a refusal. The journal tells it in order with the
// numbers, and each decision can be repeated from its record.
func TestJournal(t *testing.T) {
	inBubble(t, func(t *testing.T, s *server, c *controller) {
		s.refuse["p"] = []error{errors.New("a webhook says no")}
		c.podHandler().OnAdd(bound("p", 5), false)
		wait(90 * time.Second)
		found, err := c.o.Journal.Find(journal.Query{Node: "n"})
		if err != nil {
			t.Fatal(err)
		}
		want := []string{
			"node n: taint node.kubernetes.io/not-ready:NoSchedule is removed: Ready is True",
			"n: evictions granted: nodes without zone, 1 of 2 nodes down, 0.1 nodes per second",
			"node n: Ready becomes Unknown, MemoryPressure becomes Unknown, DiskPressure becomes Unknown, " +
				"PIDPressure becomes Unknown, taint node.kubernetes.io/unreachable:NoSchedule is added, " +
				"taint node.kubernetes.io/unreachable:NoExecute is added: no sign of life for 50s; zone Normal: " +
				"1 of 2 nodes down, 0.1 nodes per second",
			"marked not ready on n: its node gave no sign of life for 50s",
			"evicted on n: its node has had the taint node.kubernetes.io/unreachable:NoExecute for 5s, " +
				"which it tolerates for 5s",
			"delete the pod, node n, failed: a webhook says no",
			"evicted on n: its node has had the taint node.kubernetes.io/unreachable:NoExecute for 5.",
		}
		at := 0
		for _, r := range found.Records {
			if at < len(want) && strings.HasPrefix(r.Text, want[at]) {
				at++
			}
			if r.Kind != journal.OfNode && r.Kind != journal.OfPod {
				continue
			}
			var d journal.NodeAction
			if err := json.Unmarshal(r.Detail, &d); err != nil {
				t.Fatal(err)
			}
			if why := d.Basis.Differs(d.Action); why != "" {
				t.Errorf("%s: repeated: %s", r.Text, why)
			}
		}
		if at < len(want) {
			t.Errorf("%q is not there, or not in order:", want[at])
			for _, r := range found.Records {
				t.Log(r.Number, r.Kind, r.Text)
			}
		}
	})
}
