package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// How a pod that fits nowhere gets others evicted, and goes on when that has failed.

// makeRoom chooses whom to evict for a pod that fits nowhere, and nominates it there. Pods of lower priority for which
// room was being made on that node must look elsewhere. left is what others have left to choose from; nil: they were
// not asked.
func (p *Placer) makeRoom(now unit.Instant, e *entry, f *Failure, left *[]Preemption) *Preemption {
	if len(e.demand.unsupported) > 0 || f.Nodes == 0 {
		return nil
	}
	c := p.cluster
	made, why := c.preempt(e.demand, e.pod.ID)
	if made != nil && left != nil {
		if made = c.leastHarm(e.demand, e.pod.ID, *left); made == nil {
			why = reasonNoOffer
		}
	}
	f.Preemption = why
	if made == nil {
		if !e.demand.neverPreempts && !c.awaitsVictims(e.demand, e.pod.ID) && !c.awaitsNode(e.pod.ID) {
			p.cluster.dismiss(e.pod.ID) // it will not come to anything
		}
		return nil
	}
	c.nominate(&e.pod, made.Node)
	w := c.wishes[e.pod.ID]
	for i := range made.Victims {
		v := &made.Victims[i]
		w.victims = append(w.victims, v.ID)
		if v.Assumed = p.bindOnItsWay(v.ID); v.Assumed {
			p.takeBack(now, v.ID)
		} else {
			c.charge(e.pod.ID, v.ID)
		}
	}
	for _, w := range slices.Clone(c.nominated[c.rows[made.Node]]) {
		if w.class.priority < e.demand.priority {
			c.dismiss(w.id)
			p.Retry(now, w.id)
		}
	}
	return made
}

// takeBack takes a victim off its row that waits for its volumes: nothing is on its way that could bind it. Of others
// the shell says what became of their binds.
func (p *Placer) takeBack(now unit.Instant, id PodID) {
	if plan := p.cluster.plans[id]; plan != nil && plan.written {
		p.queue.BindFailed(now, p.queue.find(id), false)
		p.forget(id)
	}
}

// Retry lets a pod that waits for room try again: making it has failed.
func (p *Placer) Retry(now unit.Instant, id PodID) {
	if w := p.cluster.wishes[id]; w != nil {
		p.cluster.spare(w)
	}
	if e := p.queue.in(queue.Unschedulable, id); e != nil {
		p.queue.Ready(now, e)
	}
}

// EvictionFailed lets a pod that waits for room try again after its back-off: making room was refused, and at once it
// would be again.
func (p *Placer) EvictionFailed(now unit.Instant, id PodID) {
	if w := p.cluster.wishes[id]; w != nil {
		p.cluster.spare(w)
	}
	if e := p.queue.in(queue.Unschedulable, id); e != nil {
		p.queue.BindFailed(now, e, false)
	}
}
