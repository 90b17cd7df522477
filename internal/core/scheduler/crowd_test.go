package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// TestCostsAgree makes random changes that matter to preemption in a crowded cluster, and compares costs and bounds
// with fresh ones. The preemptors are gated, so they wait all the time and what is kept for them becomes old.
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
		h.checkReferences()
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
	if app := h.rng.IntN(41); app < 31 { // mostly one of many labels; the others have few pods, or one
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
	case 6: // affinity to its own label
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
