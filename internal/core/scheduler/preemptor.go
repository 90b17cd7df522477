package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// This file preempts pods for a pod that fits nowhere, and handles preemptions that fail.

// preemptFor chooses victims for a pod that fits nowhere, and nominates the pod on their node. Pods of lower priority
// that are nominated on that node lose their nomination and are tried again. left are the preemptions that the
// extenders left to choose from; nil: extenders were not asked.
func (p *Placer) preemptFor(now unit.Instant, e *entry, f *Failure, left *[]Preemption) *Preemption {
	if len(e.demand.unsupported) > 0 || f.Nodes == 0 {
		return nil
	}
	c := p.cluster
	made, why := c.preempt(e.demand, e.pod.ID)
	if made != nil && left != nil {
		if made = c.selectCandidate(e.demand, e.pod.ID, *left); made == nil {
			why = reasonNoCandidate
		}
	}
	f.Preemption = why
	if made == nil {
		if c.endsNomination(e.demand, e.pod.ID) {
			c.clearNomination(e.pod.ID)
		}
		return nil
	}
	c.nominate(&e.pod, made.Node)
	w := c.nominations[e.pod.ID]
	for i := range made.Victims {
		v := &made.Victims[i]
		w.victims = append(w.victims, v.ID)
		if v.Assumed = p.bindInFlight(v.ID); v.Assumed {
			p.forgetUnbound(now, v.ID)
		} else {
			c.charge(e.pod.ID, v.ID)
		}
	}
	for _, w := range slices.Clone(c.nominated[c.rows[made.Node]]) {
		if w.class.priority < e.demand.priority {
			c.clearNomination(w.id)
			p.Retry(now, w.id)
		}
	}
	return made
}

// endsNomination reports whether a pod loses its nomination because it fits nowhere and preemption does not help. As
// upstream, a pod that may not preempt (preemptionPolicy Never, or a profile without preemption) keeps a nomination by
// others. One difference: if a profile has no PostFilter plugin at all, upstream removes the nomination.
func (c *cluster) endsNomination(d *demand, self PodID) bool {
	return !d.neverPreempts && !d.profile.NoPreemption && !c.awaitsVictims(d, self) && !c.awaitsNode(self)
}

// forgetUnbound removes an assumed victim from its row if it still waits for its volumes: no request is in flight that
// could bind it. For other assumed victims, the shell reports the outcome of their binds.
func (p *Placer) forgetUnbound(now unit.Instant, id PodID) {
	if plan := p.cluster.plans[id]; plan != nil && plan.written {
		p.queue.BindFailed(now, p.queue.find(id), false)
		p.forget(id)
	}
}

// Retry lets a nominated pod be tried again, because its preemption failed.
func (p *Placer) Retry(now unit.Instant, id PodID) {
	if w := p.cluster.nominations[id]; w != nil {
		p.cluster.dropCharges(w)
	}
	if e := p.queue.in(queue.Unschedulable, id); e != nil {
		p.queue.Ready(now, e)
	}
}

// EvictionFailed lets a nominated pod be tried again after its back-off, because the API server refused an eviction. An
// immediate attempt would be refused again.
func (p *Placer) EvictionFailed(now unit.Instant, id PodID) {
	if w := p.cluster.nominations[id]; w != nil {
		p.cluster.dropCharges(w)
	}
	if e := p.queue.in(queue.Unschedulable, id); e != nil {
		p.queue.BindFailed(now, e, false)
	}
}
