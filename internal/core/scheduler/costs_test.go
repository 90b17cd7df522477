package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

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

// chooses checks the victims of the preemptor, and their node; no victims: "".
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
	x.chooses("the most important victim is less so", "a: low too")

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
	x.chooses("it started earlier than was said", "a: early")
	x.pod("late", "b", 1, 0, 900)
	x.chooses("it has not started yet", "b: late")
	x.pod("early", "a", 1, 0, 900)
	x.pod("late", "b", 1, 9, 900)
	x.chooses("it has started, the other begins anew", "a: early")

	x = newDuel(t, 800, nil)
	x.pod("first", "a", 1, 1, 450)
	x.pod("last", "a", 1, 9, 450)
	x.pod("third", "b", 1, 5, 450)
	x.pod("second", "b", 1, 4, 450)
	x.chooses("the first of them started later", "b: second third")

	x = newDuel(t, 800, nil)
	x.pod("high-1", "a", 2, 9, 450)
	x.pod("low-1", "a", 1, 1, 450)
	x.pod("high-2", "b", 2, 5, 450)
	x.pod("low-2", "b", 1, 5, 450)
	x.chooses("of the most important ones the first started later", "a: high-1 low-1")

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
		x.chooses("both go against the budget", "b: app-b")
		c.charge("other", "app-a")
		x.chooses("a counts as disrupted", "a: app-a")
		c.discharge(c.pods["app-a"], "other")
		x.chooses("not any more", "b: app-b")
		c.charge("other", "app-a")
		x.chooses("again", "a: app-a")
		c.chargeEnds(1, "app-a")
		c.expireCharges(unit.Instant(1).Add(chargeMax))
		x.chooses("not any more, after a while", "b: app-b")

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
		x.chooses("it is given back after a while", "b: app-b")
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
		t.Errorf("the budget allows %d, want 1", left)
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
	x.chooses("one of two goes against the budget", "b: one")
	x.budget("app", 2)
	x.chooses("both may go", "a: app-1 app-2")
	x.budget("app", 1)
	x.chooses("one may not", "b: one")
}

// TestBoundsAreShared checks that preemptors with similar requests share bounds, that rounding changes no choice, and
// that a preemptor whose rounded bounds are useless gets exact ones when they are worth it.
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
			t.Fatalf("a preemptor that asks for %dm evicts %+v (%s), want from node-63", cpu, made, why)
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
			t.Errorf("a preemptor that asks for %dm evicts %d pods, want %d", 450+i, n, want)
		}
	}
	if n := len(c.bounds); n > 8 {
		t.Errorf("100 amounts between 450 and 550 have %d bounds, want one for each that they are rounded to", n)
	}
	for range 3 {
		evicts(100, 503) // rounded down to 496, one victim would do anywhere
	}
	for _, b := range c.bounds {
		if b.of.requests[0].value == 503 {
			return
		}
	}
	t.Errorf("a preemptor that rounding misleads on every node has no bounds of its own: %d others, misled %v", len(c.bounds), c.tooLow)
}

// TestManyBudgets checks that the smallest number that one of several budgets allows decides, except for pods that it
// counts already, and that all rows are notified of a victim with more budgets than selectionsMax.
func TestManyBudgets(t *testing.T) {
	for _, alike := range []bool{true, false} {
		x := newDuel(t, 800, nil)
		c := x.placer.cluster
		x.demand.costs.worth = true
		x.placer.PodSeen(1, Pod{ // without labels it is in no budget
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
		x.chooses("it is taken from all of them", "a: bare")
		c.discharge(c.pods["app-c"], "other")
		x.chooses("it is given back", "b: app-b")
		c.charge("other", "app-c")
		x.chooses("it is taken again", "a: bare")
		for i := range n {
			x.chooses("one does not count the pod on b", "a: bare")
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
		x.chooses("none allows or counts anything", "a: bare")
		for i := range n {
			x.placer.BudgetGone(1, "d", wideBudget(i, 0, alike).Name)
		}
		x.chooses("all are gone", "b: app-b")
		wide(0, 0)
		wide(1, 0, "app-b")
		x.chooses("one of two does not count it", "a: bare")
		x.placer.BudgetGone(1, "d", wideBudget(0, 0, alike).Name)
		x.chooses("the other does", "b: app-b")
		x.placer.BudgetGone(1, "d", wideBudget(1, 0, alike).Name)
		if len(c.budgets.in) > 0 || dataOf(c.pods["app-b"].Who).budgets.in != nil {
			t.Errorf("budgets are kept: %v", c.budgets.in)
		}
	}
}

// TestFirstOfItsKind checks a pod with affinity to its own kind that may be the first: it may preempt if all pods of
// its kind are evicted. Whether all of them are on the node depends on other nodes.
func TestFirstOfItsKind(t *testing.T) {
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

// TestCostsAgree makes random changes that matter to preemption in a crowded cluster, and compares costs and bounds
// with fresh ones, for preemptors that wait all the time: they are gated, so that what is kept for them becomes old.
// Zones have more rows than domainRowsMax, racks fewer, and several changes happen between two comparisons.
func TestCostsAgree(t *testing.T) {
	for seed := range uint64(24) {
		h := newHistory(t, 9000+seed)
		h.names = 26
		for i := range h.names {
			h.crowdNode(i)
			for range 3 {
				h.comeBound()
			}
		}
		for range 10 {
			h.addAsker()
		}
		for range 150 {
			for range 1 + h.rng.IntN(3) {
				h.crowdStep()
			}
			h.checkTables()
		}
		h.checkCounters()
		h.checkBudgets()
		h.checkHolds()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// crowdStep makes one random change that may matter to costs.
func (h *history) crowdStep() {
	h.now = h.now.Add(time.Duration(h.rng.IntN(40)) * time.Second)
	switch what := h.rng.IntN(20); what {
	case 0:
		h.crowdNode(h.rng.IntN(h.names))
	case 1:
		if name, ok := pick(h.rng, h.nodes); ok && h.rng.IntN(3) == 0 {
			delete(h.nodes, name)
			h.placer.NodeGone(h.now, name)
		}
	case 2, 3, 4, 5:
		h.comeBound()
	case 6, 7:
		if id, ok := h.pickOn(true); ok {
			delete(h.pods, id)
			h.placer.PodGone(h.now, id)
		}
	case 8, 9:
		h.changeBound()
	case 10, 11, 12, 13:
		h.crowdBudget()
	case 14:
		p := h.crowdPod()
		p.Priority = int32(2 + h.rng.IntN(3))
		h.pods[p.ID] = p
		h.placer.PodSeen(h.now, p)
	case 15, 16, 17:
		h.place()
	default:
		if id, ok := pick(h.rng, h.flight); ok {
			h.land(id, h.rng.IntN(4))
		}
	}
}

// pickOn draws a pod that is bound, or one that is not.
func (h *history) pickOn(bound bool) (PodID, bool) {
	some := maps.Clone(h.pods)
	maps.DeleteFunc(some, func(_ PodID, p Pod) bool { return (p.Node != "") != bound })
	return pick(h.rng, some)
}

// crowdNode adds the i-th node: in one of two large zones or a small one, in a rack with another node.
func (h *history) crowdNode(i int) {
	n := Node{
		Name: fmt.Sprint("n", i), PodsMax: int64(3 + h.rng.IntN(3)), Unschedulable: h.rng.IntN(12) == 0,
		Allocatable: []Amount{{CPU, 1000}, {Memory, int64(500 * h.rng.IntN(3))}},
		Labels:      []Label{{Key: hostKey, Value: fmt.Sprint("n", i)}, {Key: "rack", Value: fmt.Sprint(i / 2)}},
	}
	if zone := "aaaaabbbbbc-"[h.rng.IntN(12)]; zone != '-' {
		n.Labels = append(n.Labels, Label{Key: "zone", Value: string(zone)})
	}
	h.nodes[n.Name] = n
	h.placer.NodeSeen(h.now, n)
}

// crowdPod returns a pod that takes a large part of a node, and may have terms.
func (h *history) crowdPod() Pod {
	h.made++
	p := Pod{
		ID: PodID(fmt.Sprint("p", h.made)), Priority: int32(h.rng.IntN(3)), Started: int64(h.rng.IntN(5)),
		Requests: []Amount{{CPU, int64(100 + 100*h.rng.IntN(5))}, {Memory, int64(h.rng.IntN(3) * 200)}},
	}
	p.Name, p.Namespace = string(p.ID), []string{"x", "x", "y"}[h.rng.IntN(3)]
	if app := h.rng.IntN(41); app < 31 { // mostly nobody is among few, or one
		p.Labels = append(p.Labels, Label{Key: "app", Value: []string{"web", "db", "db", "few"}[app/10]})
	}
	if h.rng.IntN(2) == 0 {
		p.Labels = append(p.Labels, Label{Key: "tier", Value: []string{"1", "2"}[h.rng.IntN(2)]})
	}
	switch h.rng.IntN(8) {
	case 0:
		p.AntiAffinity = []PodTerm{crowdTerm(h.rng)}
	case 1:
		p.Ports = []HostPort{{IP: AnyIP, Protocol: "TCP", Port: 80}}
	}
	return p
}

// crowdSelector returns a random selector of labels.
func crowdSelector(rng *rand.Rand) LabelSelector {
	app := []string{"web", "db", "few"}[rng.IntN(3)]
	return LabelSelector{Requirements: []Requirement{[...]Requirement{
		{Key: "app", Op: In, Values: []string{app}},
		{Key: "app", Op: In, Values: []string{app}},
		{Key: "app", Op: NotIn, Values: []string{app}},
		{Key: "tier", Op: DoesNotExist},
		{Key: "tier", Op: Exists},
	}[rng.IntN(5)]}}
}

func crowdTerm(rng *rand.Rand) PodTerm {
	return PodTerm{
		Selector: crowdSelector(rng), Namespaces: []string{"x"}, NamespaceSelector: LabelSelector{Nothing: true},
		TopologyKey: []string{hostKey, "rack", "rack", "zone"}[rng.IntN(4)],
	}
}

// addAsker adds a preemptor that is never placed.
func (h *history) addAsker() {
	p := h.crowdPod()
	p.Priority, p.Gates, p.AntiAffinity = int32(1+h.rng.IntN(4)), []string{"g"}, nil
	p.Requests[0].Value = int64(200 + 200*h.rng.IntN(4))
	switch h.rng.IntN(7) {
	case 0:
		p.Affinity = []PodTerm{crowdTerm(h.rng)}
	case 6: // the first of its kind, if it is
		p.Namespace, p.Labels = "x", []Label{{Key: "app", Value: "few"}}
		p.Affinity = []PodTerm{crowdTerm(h.rng)}
		p.Affinity[0].Selector = appIs("few")
	case 1:
		p.AntiAffinity = []PodTerm{crowdTerm(h.rng)}
	case 2:
		p.Affinity, p.AntiAffinity = []PodTerm{crowdTerm(h.rng)}, []PodTerm{crowdTerm(h.rng)}
	case 3, 4:
		for range 1 + h.rng.IntN(2) {
			p.Spread = append(p.Spread, SpreadConstraint{
				MaxSkew: int32(1 + h.rng.IntN(3)), TopologyKey: []string{"rack", "zone", "zone"}[h.rng.IntN(3)], Hard: true,
				Selector: crowdSelector(h.rng), MinDomains: int32(1 + h.rng.IntN(3)), HonorTaints: h.rng.IntN(2) == 0,
			})
		}
	}
	h.pods[p.ID] = p
	h.placer.PodSeen(h.now, p)
}

// comeBound adds a new pod on a node.
func (h *history) comeBound() {
	name, ok := pick(h.rng, h.nodes)
	if !ok {
		return
	}
	p := h.crowdPod()
	p.Node = name
	h.pods[p.ID] = p
	h.placer.PodSeen(h.now, p)
}

// changeBound changes a bound pod: it starts, ends, or gets other labels.
func (h *history) changeBound() {
	id, ok := h.pickOn(true)
	if !ok {
		return
	}
	p := h.pods[id]
	switch h.rng.IntN(4) {
	case 0:
		p.Deleting = true
	case 1:
		p.Labels = h.crowdPod().Labels
	default:
		p.Started = int64(h.rng.IntN(5))
	}
	h.pods[id] = p
	h.placer.PodSeen(h.now, p)
}

// crowdBudget adds, changes or deletes a budget.
func (h *history) crowdBudget() {
	b := Budget{
		Namespace: []string{"x", "x", "y"}[h.rng.IntN(3)], Name: fmt.Sprint("b", h.rng.IntN(4)),
		Allowed: int32(h.rng.IntN(5)), Selector: crowdSelector(rand.New(rand.NewPCG(uint64(h.rng.IntN(3)), 1))),
	}
	for h.rng.IntN(3) == 0 {
		if id, ok := h.pickOn(true); ok {
			b.Disrupted = append(b.Disrupted, string(id))
		}
	}
	if b.Disrupted = slices.Compact(b.Disrupted); h.rng.IntN(8) == 0 {
		h.placer.BudgetGone(h.now, b.Namespace, b.Name)
		return
	}
	h.placer.BudgetSeen(h.now, b)
}
