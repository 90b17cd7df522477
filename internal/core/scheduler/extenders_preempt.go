package scheduler

import (
	"fmt"
	"math"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// candidatesMax limits the nodes about which extenders are asked for the preemption by one pod. It is upstream's
	// minCandidateNodesAbsolute. Here the cheapest nodes are chosen; upstream takes the first found.
	candidatesMax = 100
	// candidateVictimsMax limits the victims in such a request, except those of the cheapest node. Chosen: an extender
	// may want each victim as a whole object, which has about 10 KiB.
	candidateVictimsMax = 1000
)

// reasonNoCandidate is upstream's message when extenders leave no preemption.
const reasonNoCandidate = "no candidate node for preemption"

// candidatesFor returns the preemptions about which extenders are to be asked for a pod that fits nowhere, the cheapest
// first. If there are none, extenders are not asked.
func (p *Placer) candidatesFor(e *entry, f *Failure) (out []Preemption) {
	c := p.cluster
	d := e.demand
	self := e.pod.ID
	if !e.pod.AsksPreemption || len(d.unsupported) > 0 || f.Nodes == 0 {
		return nil
	}
	if made, _ := c.preempt(d, self); made == nil {
		return nil
	}
	costs := c.allCosts(d, self)
	offset := c.tieOffset(self)
	var rows []row
	for i := range costs {
		if costs[i].state == costHelps {
			rows = append(rows, row(i))
		}
	}
	slices.SortFunc(rows, func(a, b row) int {
		if order := compareCosts(&costs[a], &costs[b]); order != 0 {
			return order
		}
		if c.winsTie(a, b, offset) {
			return -1
		}
		return 1
	})
	named := 0
	for _, r := range rows[:min(len(rows), candidatesMax)] {
		b, victims := c.costOn(d, self, r)
		if named += len(victims); named > candidateVictimsMax && len(out) > 0 {
			break
		}
		out = append(out, *c.preemptionOf(r, &b, victims))
	}
	return out
}

// NameVictims adds names to the victims of preemptions that extenders chose: extenders return only IDs. It returns an
// error if a victim is not on that node, or if its priority is not below that of the pod.
func (p *Placer) NameVictims(pod PodID, wanted []Preemption) error {
	e := p.queue.find(pod)
	if e == nil {
		return fmt.Errorf("pod %s is no longer pending", pod)
	}
	for i := range wanted {
		w := &wanted[i]
		for j := range w.Victims {
			v := &w.Victims[j]
			h := p.cluster.podOn(w.Node, v.ID)
			if h == nil {
				return fmt.Errorf("pod %.200q is not on node %.200q", v.ID, w.Node)
			}
			if h.class.priority >= e.class.priority {
				return fmt.Errorf("pod %s/%s has priority %d, which is not below the preemptor's %d",
					h.Who.Namespace, h.name, h.class.priority, e.class.priority)
			}
			v.Namespace, v.Name = h.Who.Namespace, h.name
		}
	}
	return nil
}

// podOn returns a pod on a node; nil: it is not there.
func (c *cluster) podOn(node string, id PodID) *placedPod {
	if r, ok := c.rows[node]; ok {
		for _, h := range c.podsOn[r] {
			if h.id == id {
				return h
			}
		}
	}
	return nil
}

// PreemptionAnswered records the preemptions that extenders left of those about which they were asked
// (Decision.ExtenderCandidates), with the victims that they chose. The pod becomes active. If left is empty, it
// preempts no other pods.
func (p *Placer) PreemptionAnswered(now unit.Instant, id PodID, left []Preemption) {
	if e := p.waitingForExtenders(id); e != nil {
		e.evictions = &left
		p.queue.Resume(e)
	}
}

// selectCandidate chooses among the preemptions that extenders left, in the order of preempt. Victims that are gone by
// now do not count. A preemption of which all victims are gone is skipped: its room is free already.
func (c *cluster) selectCandidate(d *demand, self PodID, left []Preemption) *Preemption {
	best, cheapest := (*Preemption)(nil), preemptCost{}
	offset := c.tieOffset(self)
	for i := range left {
		made := left[i]
		r, known := c.rows[made.Node]
		if !known || !c.seen[r] {
			continue
		}
		var victims []*placedPod
		for _, v := range made.Victims {
			if h := c.podOn(made.Node, v.ID); h != nil && h.class.priority < d.priority {
				victims = append(victims, h)
			}
		}
		if len(victims) == 0 {
			continue
		}
		b := costOf(victims, int32(min(max(made.Violations, 0), math.MaxInt32)))
		order := compareCosts(&b, &cheapest)
		if best == nil || order < 0 || order == 0 && c.winsTie(r, c.rows[best.Node], offset) {
			best, cheapest = c.preemptionOf(r, &b, victims), b
		}
	}
	return best
}

// costOf returns what the eviction of victims costs; there must be at least one. It sorts victims.
func costOf(victims []*placedPod, violations int32) preemptCost {
	slices.SortFunc(victims, moreImportant)
	b := preemptCost{
		state:      costHelps,
		violations: violations,
		highest:    victims[0].class.priority,
		count:      int32(len(victims)),
		earliest:   math.MaxInt64,
	}
	for _, h := range victims {
		b.sum += int64(h.class.priority) + priorityOffset
		if h.class.priority == b.highest {
			b.earliest = min(b.earliest, startOf(h))
		}
	}
	return b
}
