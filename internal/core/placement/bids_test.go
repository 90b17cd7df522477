package placement

import "testing"

// TestKeptBidsHearOfBudgets: a kept bid is asked again when its budget allows another number, or counts a pod as
// disrupted no longer. The pod on b is less important, so that b is cheaper but for budgets.
func TestKeptBidsHearOfBudgets(t *testing.T) {
	p := New(Options{})
	for i, name := range []string{"a", "b"} {
		p.NodeSeen(1, Node{Name: name, PodsMax: 10, Allocatable: []Amount{{CPU, 1000}}})
		p.PodSeen(1, Pod{
			ID: PodID("on-" + name), Namespace: "d", Name: "on-" + name, Node: name, Priority: int32(2 - i),
			Labels: []Label{{Key: "app", Value: name}}, Requests: []Amount{{CPU, 900}},
		})
	}
	p.PodSeen(1, Pod{ID: "high", Namespace: "d", Name: "high", Priority: 10, Requests: []Amount{{CPU, 800}}})
	c, e := p.cluster, p.queue.entries["high"]
	d := c.demandOf(e.class, e.who, e.pod.Owner)
	d.bids.worth = true
	budget := func(name string, allowed int32, disrupted ...string) {
		p.BudgetSeen(1, Budget{
			Namespace: "d", Name: name, Selector: appIs(name), Allowed: allowed, Disrupted: disrupted,
		})
	}
	chosen := func(when, want string) {
		t.Helper()
		if made, why := c.preempt(d, "high"); made == nil || made.Node != want || d.bids.rows == nil {
			t.Errorf("%s: room is made on %+v (%s), want %s; bids are kept: %v", when, made, why, want, d.bids.rows != nil)
		}
	}
	budget("a", 1)
	budget("b", 1)
	chosen("both allow one", "b")
	budget("b", 0)
	chosen("b allows none", "a")
	budget("b", 0, "on-b")
	chosen("the pod on b counts as disrupted", "b")
	budget("b", 0)
	chosen("it does no longer", "a")
}
