package scheduler

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestCheapestOfMany compares the choice of victims, on more nodes than bestFirst, with a choice among all rows. Bounds
// say little: budgets change, terms exclude preemptors from most nodes, and other pods are nominated.
func TestCheapestOfMany(t *testing.T) {
	nodes := fewer(1600)
	rng := rand.New(rand.NewPCG(7, 9))
	p := fullNodes(rng, nodes)
	c := p.cluster
	looked, evicted := 0, 0
	for i := range fewer(1000) {
		for b := range 8 { // either all of them allow disruptions, or none does
			if i%10 == 0 || i%8 == b {
				allowed := int32(rng.IntN(3) * (i / 10 % 2))
				p.BudgetSeen(1, Budget{
					Namespace: "d",
					Name:      fmt.Sprint(b),
					Allowed:   allowed,
					Selector:  appIs(fmt.Sprint("old-", b)),
				})
			}
		}
		x := highPod(rng, i, nodes)
		p.PodSeen(1, x)
		e := p.queue.find(x.ID)
		d := c.demandOf(e.class, e.who, e.pod.Owner)
		best, cost := cheapestOfAll(c, d, x.ID)
		d.costs.worth = rng.IntN(2) == 0
		if r, b := c.cheapest(d, x.ID); r != best || b != cost {
			t.Fatalf("pod %d: row %d for %+v, want %d for %+v", i, r, b, best, cost)
		}
		if c.boundOrder.returned == bestFirst {
			looked++
		}
		if best == noRow {
			p.PodGone(1, x.ID)
			continue
		}
		evicted++
		c.nominate(&e.pod, c.name[best])
		if i >= 100 {
			p.PodGone(1, PodID(fmt.Sprint("high-", i-100)))
		}
	}
	if looked < fewer(40) || evicted < fewer(400) {
		t.Errorf("more than %d rows were evaluated %d times, and %d pods could preempt: too few for a test", bestFirst,
			looked, evicted)
	}
}

// fullNodes returns a Placer of nodes with two pods each, which leave little room.
func fullNodes(rng *rand.Rand, nodes int) *Placer {
	p := New(Options{})
	old := func(i int) Pod {
		return Pod{
			ID: PodID(fmt.Sprint("old-", i)), Namespace: "d", Name: fmt.Sprint("old-", i), Node: fmt.Sprint("node-", i%nodes),
			Labels: []Label{
				{Key: "app", Value: fmt.Sprint("old-", rng.IntN(8))}, {Key: "rare", Value: fmt.Sprint(rng.IntN(100))},
			},
			Priority: int32(rng.IntN(2)),
			Started:  int64(1 + rng.IntN(3)),
			Requests: []Amount{{CPU, int64(300 + 100*rng.IntN(3))}},
		}
	}
	for i := range nodes {
		name := fmt.Sprint("node-", i)
		p.NodeSeen(1, Node{
			Name:        name,
			PodsMax:     4,
			Allocatable: []Amount{{CPU, 1000}},
			Labels:      []Label{{Key: hostKey, Value: name}},
		})
	}
	for i := range 2 * nodes {
		p.PodSeen(1, old(i))
	}
	return p
}

// highPod returns a pod of a higher priority; some have terms of affinity or anti-affinity.
func highPod(rng *rand.Rand, i, nodes int) Pod {
	x := Pod{
		ID: PodID(fmt.Sprint("high-", i)), Namespace: "d", Name: fmt.Sprint("high-", i), Priority: 5,
		Labels:   []Label{{Key: "app", Value: fmt.Sprint("high-", i%3)}},
		Requests: []Amount{{CPU, int64(400 + 100*rng.IntN(4))}},
	}
	switch rng.IntN(4) {
	case 0:
		x.AntiAffinity = []PodTerm{appTerm(fmt.Sprint("high-", i%3), hostKey)}
	case 1:
		term := appTerm("", hostKey)
		term.Selector.Requirements[0] = Requirement{Key: "rare", Op: In, Values: []string{fmt.Sprint(rng.IntN(nodes))}}
		x.Affinity = []PodTerm{term}
	}
	return x
}

// cheapestOfAll compares the costs of all rows.
func cheapestOfAll(c *cluster, d *demand, id PodID) (row, preemptCost) {
	best := row(noRow)
	cost := preemptCost{}
	for r, b := range c.allCosts(d, id) {
		order := compareCosts(&b, &cost)
		if b.state == costHelps &&
			(best == noRow || order < 0 || order == 0 && c.winsTie(row(r), best, c.tieOffset(id))) {
			best, cost = row(r), b
		}
	}
	return best, cost
}
