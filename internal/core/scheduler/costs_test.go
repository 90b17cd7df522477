package scheduler

import (
	"fmt"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A duel is two nodes, a and b, with the pods that a test puts there, and a preemptor.
type duel struct {
	t      *testing.T
	placer *Placer
	demand *demand
}

// newDuel has a preemptor with priority 10 and a request of need; change may change it.
func newDuel(t *testing.T, need int64, change func(*Pod)) *duel {
	p := New(Options{})
	for _, name := range []string{"a", "b"} {
		p.NodeSeen(1, Node{
			Name: name, PodsMax: 10, Labels: []Label{{Key: hostKey, Value: name}}, Allocatable: []Amount{{CPU, 1000}},
		})
	}
	high := Pod{ID: "high", Namespace: "d", Name: "high", Priority: 10, Requests: []Amount{{CPU, need}}}
	if change != nil {
		change(&high)
	}
	p.PodSeen(1, high)
	e := p.queue.find("high")
	return &duel{t: t, placer: p, demand: p.cluster.demandOf(e.class, e.who, e.pod.Owner)}
}

// pod puts a pod on a node. Its label app is the first word of its name.
func (x *duel) pod(name, node string, priority int32, started, cpu int64) {
	app, _, _ := strings.Cut(name, "-")
	x.placer.PodSeen(1, Pod{
		ID: PodID(name), Namespace: "d", Name: name, Node: node, Priority: priority, Started: started,
		Labels: []Label{{Key: "app", Value: app}}, Requests: []Amount{{CPU, cpu}},
	})
}

// budget sets how many pods of app may be disrupted.
func (x *duel) budget(app string, allowed int, disrupted ...string) {
	x.placer.BudgetSeen(1, Budget{
		Namespace: "d", Name: app, Selector: appIs(app), Allowed: int32(allowed), Disrupted: disrupted,
	})
}

// chooses checks the node and the victims that the preemptor gets; "": none.
func (x *duel) chooses(when, want string) {
	x.t.Helper()
	made, why := x.placer.cluster.preempt(x.demand, "high")
	got := ""
	if made != nil {
		got = made.Node + ":"
		for _, v := range made.Victims {
			got += " " + v.Name
		}
	}
	if got != want {
		x.t.Errorf("%s: evicts %q (%s), want %q", when, got, why, want)
	}
}

// TestOrderOfCosts checks that each criterion decides if all before it are equal.
func TestOrderOfCosts(t *testing.T) {
	x := newDuel(t, 800, nil)
	x.budget("kept", 0)
	x.pod("kept", "a", 1, 1, 900)
	x.pod("free", "b", 5, 1, 900)
	x.chooses("a budget forbids it", "b: free")

	x = newDuel(t, 800, nil)
	x.pod("low", "a", 1, 1, 450)
	x.pod("too", "a", 1, 1, 450)
	x.pod("one", "b", 2, 1, 900)
	x.chooses("the most important victim has lower priority", "a: low too")

	x = newDuel(t, 800, nil)
	x.pod("low", "a", 2, 1, 450)
	x.pod("too", "a", 1, 1, 450)
	x.pod("one", "b", 2, 1, 900)
	x.chooses("fewer are evicted", "b: one")

	x = newDuel(t, 800, nil)
	x.demand.costs.worth = true
	x.pod("early", "a", 1, 5, 900)
	x.pod("late", "b", 1, 9, 900)
	x.chooses("it started later", "b: late")
	x.pod("late", "b", 1, 3, 900)
	x.chooses("it started earlier than first reported", "a: early")
	x.pod("late", "b", 1, 0, 900)
	x.chooses("it has not started yet", "b: late")
	x.pod("early", "a", 1, 0, 900)
	x.pod("late", "b", 1, 9, 900)
	x.chooses("it has started, and the other was replaced", "a: early")

	x = newDuel(t, 800, nil)
	x.pod("first", "a", 1, 1, 450)
	x.pod("last", "a", 1, 9, 450)
	x.pod("third", "b", 1, 5, 450)
	x.pod("second", "b", 1, 4, 450)
	x.chooses("the oldest of them started later", "b: second third")

	x = newDuel(t, 800, nil)
	x.pod("high-1", "a", 2, 9, 450)
	x.pod("low-1", "a", 1, 1, 450)
	x.pod("high-2", "b", 2, 5, 450)
	x.pod("low-2", "b", 1, 5, 450)
	x.chooses("the oldest of the most important ones started later", "a: high-1 low-1")

	x = newDuel(t, 500, nil)
	x.pod("b-first", "a", 1, 1, 500)
	x.pod("a-last", "a", 1, 9, 500)
	x.pod("other", "b", 5, 1, 1000)
	x.chooses("who has run longer stays", "a: a-last")
}

// TestCostsFollowBudgets checks that costs and bounds are recomputed when a budget allows another number, no longer
// counts a pod as disrupted, or a charge begins or ends. The pods on b have lower priority, so b is cheaper except for
// budgets.
func TestCostsFollowBudgets(t *testing.T) {
	for _, kept := range []bool{false, true} {
		x := newDuel(t, 800, nil)
		x.demand.costs.worth = kept
		x.pod("a", "a", 2, 1, 900)
		x.pod("b", "b", 1, 1, 900)
		x.budget("a", 1)
		x.budget("b", 1)
		x.chooses("both allow one", "b: b")
		x.budget("b", 0)
		x.chooses("b allows none", "a: a")
		x.budget("b", 0, "b")
		x.chooses("the pod on b counts as disrupted", "b: b")
		x.budget("b", 0)
		x.chooses("it does no longer", "a: a")
		x.placer.BudgetGone(1, "d", "b")
		x.chooses("there is no budget", "b: b")
		x.budget("b", 0)
		x.chooses("there is one again", "a: a")
		if known := x.demand.costs.known != nil; known != kept {
			t.Errorf("costs are kept: %v, want %v", known, kept)
		}
	}
}

// TestCostsFollowCharges checks that charges matter for the row of the victim, and for those of all pods of the budget.
func TestCostsFollowCharges(t *testing.T) {
	for _, kept := range []bool{false, true} {
		x := newDuel(t, 800, nil)
		c := x.placer.cluster
		x.demand.costs.worth = kept
		x.pod("app-a", "a", 2, 1, 900)
		x.pod("app-b", "b", 1, 1, 900)
		x.budget("app", 0)
		x.chooses("the budget allows none of both", "b: app-b")
		c.charge("other", "app-a")
		x.chooses("a counts as disrupted", "a: app-a")
		c.discharge(c.pods["app-a"], "other")
		x.chooses("not any more", "b: app-b")
		c.charge("other", "app-a")
		x.chooses("again", "a: app-a")
		c.chargeEnds(1, "app-a")
		c.expireCharges(unit.Instant(1).Add(chargeMax))
		x.chooses("the charge has expired", "b: app-b")

		x.pod("free", "a", 2, 1, 900) // in the place of app-a
		x.pod("app-a", "c", 1, 1, 900)
		x.budget("app", 1)
		x.chooses("the budget allows one", "b: app-b")
		c.charge("other", "app-a")
		x.chooses("it is taken elsewhere", "a: free")
		c.discharge(c.pods["app-a"], "other")
		x.chooses("it is given back", "b: app-b")
		c.charge("other", "app-a")
		x.chooses("it is taken again", "a: free")
		c.chargeEnds(1, "app-a")
		c.expireCharges(unit.Instant(1).Add(chargeMax))
		x.chooses("the charge has expired", "b: app-b")
	}
}

// TestAssumedVictimIsNotCharged: withdrawing a bind is not a disruption.
func TestAssumedVictimIsNotCharged(t *testing.T) {
	x := newDuel(t, 1000, func(p *Pod) { p.Gates = []string{"g"} })
	p := x.placer
	p.NodeGone(1, "b")
	x.budget("app", 1)
	x.pod("app-low", "", 1, 0, 800)
	p.Next(1)
	p.PodSeen(1, Pod{ID: "top", Namespace: "d", Name: "top", Priority: 10, Requests: []Amount{{CPU, 800}}})
	d, _ := p.Next(1)
	if d.Preemption == nil || !d.Preemption.Victims[0].Assumed {
		t.Fatalf("decided %+v: %v", d.Preemption, d.Failure)
	}
	if left := p.cluster.budgets.at("d", "app").left(); left != 1 {
		t.Errorf("the budget allows %d disruptions, want 1", left)
	}
}

// TestCostsFollowLargeBudgets checks budgets that allow as many disruptions as the row with the most pods has pods.
func TestCostsFollowLargeBudgets(t *testing.T) {
	x := newDuel(t, 800, nil)
	x.demand.costs.worth = true
	x.pod("app-1", "a", 1, 1, 450)
	x.pod("app-2", "a", 1, 1, 450)
	x.pod("one", "b", 5, 1, 900)
	x.budget("app", 1)
	x.chooses("the budget allows one of two", "b: one")
	x.budget("app", 2)
	x.chooses("both may go", "a: app-1 app-2")
	x.budget("app", 1)
	x.chooses("one may not", "b: one")
}

// TestBoundsAreShared checks that preemptors with similar requests share bounds, that rounding changes no choice, and
// that a preemptor whose rounded bounds are too low gets exact bounds when these are worth their cost.
func TestBoundsAreShared(t *testing.T) {
	const nodes = 64
	p := New(Options{})
	for i := range nodes {
		name := fmt.Sprint("node-", i)
		p.NodeSeen(1, Node{Name: name, PodsMax: 10, Allocatable: []Amount{{CPU, 1000}}})
		for k := range 2 {
			p.PodSeen(1, Pod{
				ID: PodID(fmt.Sprint(name, k)), Namespace: "d", Name: fmt.Sprint(name, k), Node: name,
				Priority: int32((i+1)%nodes + k*nodes), Requests: []Amount{{CPU, 500}},
			})
		}
	}
	c := p.cluster
	evicts := func(i int, cpu int64) (victims int) {
		t.Helper()
		id := PodID(fmt.Sprint("high-", i))
		p.PodSeen(1, Pod{ID: id, Namespace: "d", Name: string(id), Priority: 1000, Requests: []Amount{{CPU, cpu}}})
		e := p.queue.find(id)
		made, why := c.preempt(c.demandOf(e.class, e.who, e.pod.Owner), id)
		if made == nil || made.Node != "node-63" { // whose pods are the least important
			t.Fatalf("a preemptor that requests %dm evicts %+v (%s), want victims on node-63", cpu, made, why)
		}
		p.PodGone(1, id)
		return len(made.Victims)
	}
	for i := range 100 {
		want := 1
		if cpu := int64(450 + i); cpu > 500 {
			want = 2
		}
		if n := evicts(i, int64(450+i)); n != want {
			t.Errorf("a preemptor that requests %dm evicts %d pods, want %d", 450+i, n, want)
		}
	}
	if n := len(c.bounds); n > 8 {
		t.Errorf("100 amounts between 450 and 550 have %d bounds, want one for each rounded amount", n)
	}
	for range 3 {
		evicts(100, 503) // rounded down to 496, one victim would be enough on every node
	}
	for _, b := range c.bounds {
		if b.of.requests[0].value == 503 {
			return
		}
	}
	t.Errorf("a preemptor whose rounded bounds are too low on every node has no exact ones: %d bounds, tooLow %v",
		len(c.bounds), c.tooLow)
}

// TestManyBudgets checks that the smallest number that one of several budgets allows decides, except for pods that it
// counts already, and that all rows are notified of a victim with more budgets than selectionsMax.
func TestManyBudgets(t *testing.T) {
	for _, alike := range []bool{true, false} {
		x := newDuel(t, 800, nil)
		c := x.placer.cluster
		x.demand.costs.worth = true
		x.placer.PodSeen(1, Pod{ // it has no labels, so it is in no budget
			ID: "bare", Namespace: "d", Name: "bare", Node: "a", Priority: 2, Requests: []Amount{{CPU, 900}},
		})
		x.pod("app-b", "b", 1, 1, 900)
		x.pod("app-c", "c", 1, 1, 900)
		wide := func(i, allowed int, disrupted ...string) {
			b := wideBudget(i, allowed, alike)
			b.Disrupted = disrupted
			x.placer.BudgetSeen(1, b)
		}
		const n = 2 * selectionsMax
		for i := range n {
			wide(i, 1)
		}
		x.chooses("all allow one", "b: app-b")
		c.charge("other", "app-c")
		x.chooses("it counts against all of them", "a: bare")
		c.discharge(c.pods["app-c"], "other")
		x.chooses("it is given back", "b: app-b")
		c.charge("other", "app-c")
		x.chooses("it is taken again", "a: bare")
		for i := range n {
			x.chooses("one budget does not count the pod on b", "a: bare")
			wide(i, 0, "app-b")
		}
		x.chooses("all count it", "b: app-b")
		wide(5, 0)
		x.chooses("one does not any more", "a: bare")
		x.placer.BudgetGone(1, "d", wideBudget(5, 0, alike).Name)
		x.chooses("that one is gone", "b: app-b")
		wide(5, 0)
		x.chooses("it is back", "a: bare")
		c.discharge(c.pods["app-c"], "other")
		wide(5, 1)
		x.chooses("it allows one", "b: app-b")
		for i := range n {
			wide(i, 0)
		}
		x.chooses("no budget allows or counts any pod", "a: bare")
		for i := range n {
			x.placer.BudgetGone(1, "d", wideBudget(i, 0, alike).Name)
		}
		x.chooses("all are gone", "b: app-b")
		wide(0, 0)
		wide(1, 0, "app-b")
		x.chooses("one of two budgets does not count it", "a: bare")
		x.placer.BudgetGone(1, "d", wideBudget(0, 0, alike).Name)
		x.chooses("the other does", "b: app-b")
		x.placer.BudgetGone(1, "d", wideBudget(1, 0, alike).Name)
		if len(c.budgets.in) > 0 || dataOf(c.pods["app-b"].Who).budgets.in != nil {
			t.Errorf("budgets are kept: %v", c.budgets.in)
		}
	}
}

// TestFirstOfItsGroup checks a pod with affinity to its own label. It may preempt where it would be the first of its
// group, because all matching pods are evicted there. Whether all of them are on that node depends on other nodes.
func TestFirstOfItsGroup(t *testing.T) {
	for _, kept := range []bool{false, true} {
		x := newDuel(t, 800, func(p *Pod) {
			p.Labels, p.Affinity = []Label{{Key: "app", Value: "few"}}, []PodTerm{appTerm("few", hostKey)}
		})
		x.demand.costs.worth = kept
		x.pod("few-a", "a", 1, 1, 900)
		x.pod("high-b", "b", 20, 1, 900)
		x.chooses("it would be the first on a", "a: few-a")
		x.pod("few-b", "b", 20, 1, 0)
		x.chooses("another is on b", "")
		x.placer.PodGone(1, "few-b")
		x.chooses("it is gone", "a: few-a")
		x.placer.PodGone(1, "few-a")
		x.pod("one-a", "a", 1, 1, 900)
		x.chooses("nobody is anywhere", "a: one-a")
		x.pod("few-b", "b", 20, 1, 0)
		x.chooses("one is on b again", "")
	}
}
