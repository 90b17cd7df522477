package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// What the Placer is told of pods, and of the binds that it has asked for.

// PodSeen folds in a pod that is new or changed: bound pods are counted on their node, pending ones queued. The shell
// leaves out pods that have ended and pending pods of other schedulers.
func (p *Placer) PodSeen(now unit.Instant, pod Pod) {
	if pod.Node != "" {
		onItsWay := p.bindOnItsWay(pod.ID)
		p.queue.remove(pod.ID)
		p.cluster.setPod(&pod, pod.Node, true)
		if pod.Deleting {
			p.cluster.chargeEnds(now, pod.ID)
		}
		p.forgetVolumes(pod.ID)
		p.cluster.dismiss(pod.ID) // only now: what was kept for it is taken, not free
		if onItsWay {
			p.boundAllTheSame(now, pod.ID)
		}
		return
	}
	if pod.Deleting { // also while it is assumed: the API refuses to bind what is being deleted
		p.PodGone(now, pod.ID)
		return
	}
	pool := p.queue.poolOf(pod.ID)
	if p.cluster.isAssumed(pod.ID) && pool != queue.Unsettled && pool != queue.Gated { // it may be gated when it was unsettled
		return // an update from before the bind was heard; the bind's fate is on its way
	}
	p.heedNomination(&pod)
	p.queue.put(now, pod)
}

// PodGone folds in that a pod was deleted or has ended.
func (p *Placer) PodGone(now unit.Instant, id PodID) {
	p.queue.remove(id)
	p.cluster.dismiss(id)
	p.cluster.chargeEnds(now, id)
	p.forget(id)
	p.heardAt = now
}

// forget takes a pod off its row, and what was assumed for its volumes back.
func (p *Placer) forget(id PodID) {
	p.cluster.removePod(id)
	p.forgetVolumes(id)
}

// forgetVolumes ends what was planned for the volumes of a pod. Others may have them again.
func (p *Placer) forgetVolumes(id PodID) {
	reverted, claims := p.cluster.revertVolumes(id)
	for _, v := range reverted {
		p.cluster.volumeTurned(v)
	}
	for _, key := range claims {
		p.cluster.waits.claimTurned(key)
	}
}

// An Outcome is the fate of one bind.
type Outcome int

const (
	// BindDone: the API accepted the bind. The watch will confirm it.
	BindDone Outcome = iota
	// BindRefused: the API answered and said no. The pod is forgotten and tried again after its back-off.
	BindRefused
	// BindLost: no answer came, so the bind may have happened. The pod stays assumed until the watch settles it or
	// its back-off ends; only then is it forgotten and tried again. A bind that did happen makes the second one
	// fail with a conflict: the API binds a pod once.
	BindLost
	// BindWithdrawn: the bind of a Victim that was Assumed was not sent. As BindRefused.
	BindWithdrawn
)

// Bound folds in the fate of the bind of pod id to node. Reports about pods that have moved on are ignored.
func (p *Placer) Bound(now unit.Instant, pod Pod, o Outcome) {
	if !p.cluster.isAssumed(pod.ID) {
		return // confirmed, corrected or deleted meanwhile: the watch was faster
	}
	switch o {
	case BindDone:
		p.queue.remove(pod.ID)
		p.boundAllTheSame(now, pod.ID)
	case BindRefused, BindWithdrawn:
		p.queue.bindFailed(now, pod, false)
		p.forget(pod.ID)
	case BindLost:
		p.queue.bindFailed(now, pod, true)
	}
}

// bindOnItsWay reports whether a pod was placed, and the fate of its bind is not known yet.
func (p *Placer) bindOnItsWay(id PodID) bool {
	pool := p.queue.poolOf(id)
	return p.cluster.isAssumed(id) && (pool == queue.Binding || pool == queue.Unsettled)
}

// boundAllTheSame lets those try again for whom the bind of a pod was to be withdrawn, and that was bound.
func (p *Placer) boundAllTheSame(now unit.Instant, id PodID) {
	c := p.cluster
	h := c.pods[id]
	if h == nil {
		return
	}
	for _, w := range slices.Clone(c.nominated[h.Row]) {
		if slices.Contains(w.victims, id) {
			p.Retry(now, w.id)
		}
	}
}
