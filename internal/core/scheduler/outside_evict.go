package scheduler

import (
	"fmt"
	"math"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// offersMax limits the nodes about which extenders are asked for the preemption by one pod. It is upstream's
	// minCandidateNodesAbsolute. Here the cheapest nodes are chosen; upstream takes the first found.
	offersMax = 100
	// offeredVictimsMax limits the victims in such a request, except those of the cheapest node. Chosen: extenders may
	// want each as a whole object, of some 10 KiB.
	offeredVictimsMax = 1000
)

// reasonNoOffer is upstream's message when extenders leave no preemption.
const reasonNoOffer = "no candidate node for preemption"

// offers returns the preemptions about which extenders are to be asked for a pod that fits nowhere, the cheapest first.
// None: there is nothing to ask.
func (p *Placer) offers(e *entry, f *Failure) (out []Preemption) {
	c := p.cluster
	d := e.demand
	self := e.pod.ID
	if !e.pod.AsksEvictions || len(d.unsupported) > 0 || f.Nodes == 0 {
		return nil
	}
	if made, _ := c.preempt(d, self); made == nil {
		return nil
	}
	bids := c.allBids(d, self)
	mine := c.turnOf(self)
	var rows []row
	for i := range bids {
		if bids[i].state == bidGood {
			rows = append(rows, row(i))
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		if order := compareBids(&bids[a], &bids[b]); order != 0 {
			return order
		}
		if c.winsTie(a, b, mine) {
			return -1
		}
		return 1
	})
	named := 0
	for _, r := range rows[:min(len(rows), offersMax)] {
		b, victims := c.bidFor(d, self, r)
		if named += len(victims); named > offeredVictimsMax && len(out) > 0 {
			break
		}
		out = append(out, *c.preemptionOf(r, &b, victims))
	}
	return out
}

// NameVictims adds names to the victims of preemptions that extenders chose, of which they return only IDs. It returns
// an error if a victim is not on that node, or has no lower priority than the pod.
func (p *Placer) NameVictims(pod PodID, wanted []Preemption) error {
	e := p.queue.find(pod)
	if e == nil {
		return fmt.Errorf("pod %s does not wait any more", pod)
	}
	for i := range wanted {
		w := &wanted[i]
		for j := range w.Victims {
			v := &w.Victims[j]
			h := p.cluster.heldOn(w.Node, v.ID)
			if h == nil {
				return fmt.Errorf("pod %.200q is not on node %.200q", v.ID, w.Node)
			}
			if h.class.priority >= e.class.priority {
				return fmt.Errorf("pod %s/%s has priority %d, and may not go for one of %d", h.Who.Namespace, h.name, h.class.priority, e.class.priority)
			}
			v.Namespace, v.Name = h.Who.Namespace, h.name
		}
	}
	return nil
}

// heldOn returns a pod on a node; nil: it is not there.
func (c *cluster) heldOn(node string, id PodID) *held {
	if r, ok := c.rows[node]; ok {
		for _, h := range c.held[r] {
			if h.id == id {
				return h
			}
		}
	}
	return nil
}

// HeardEvictions records the preemptions that extenders left of those about which they were asked (Decision.Offers), as
// they changed them. The pod becomes active. None: the pod preempts no other pods.
func (p *Placer) HeardEvictions(now unit.Instant, id PodID, left []Preemption) {
	if e := p.asked(id); e != nil {
		e.evictions = &left
		p.queue.Resume(e)
	}
}

// leastHarm chooses among the preemptions that extenders left, in the order of preempt. Victims that are gone by now do
// not count. If all victims of a preemption are gone, its room is free already, and it is skipped.
func (c *cluster) leastHarm(d *demand, self PodID, left []Preemption) *Preemption {
	best, cheapest := (*Preemption)(nil), bid{}
	mine := c.turnOf(self)
	for i := range left {
		made := left[i]
		r, known := c.rows[made.Node]
		if !known || !c.seen[r] {
			continue
		}
		var victims []*held
		for _, v := range made.Victims {
			if h := c.heldOn(made.Node, v.ID); h != nil && h.class.priority < d.priority {
				victims = append(victims, h)
			}
		}
		if len(victims) == 0 {
			continue
		}
		b := costOf(victims, int32(min(max(made.Violations, 0), math.MaxInt32)))
		order := compareBids(&b, &cheapest)
		if best == nil || order < 0 || order == 0 && c.winsTie(r, c.rows[best.Node], mine) {
			best, cheapest = c.preemptionOf(r, &b, victims), b
		}
	}
	return best
}

// costOf returns what the eviction of victims costs; there must be at least one. It sorts victims.
func costOf(victims []*held, violations int32) bid {
	slices.SortFunc(victims, moreImportant)
	b := bid{
		state: bidGood, violations: violations, highest: victims[0].class.priority, count: int32(len(victims)), earliest: math.MaxInt64,
	}
	for _, h := range victims {
		b.sum += int64(h.class.priority) + priorityLift
		if h.class.priority == b.highest {
			b.earliest = min(b.earliest, startOf(h))
		}
	}
	return b
}
