package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// This file has the Placer's methods for facts about pods, and for the outcomes of binds.

// PodSeen records a new or changed pod: a bound pod is put on its node, a pending one in the queue. The shell does not
// pass pods that have ended, and pending pods of other schedulers.
func (p *Placer) PodSeen(now unit.Instant, pod Pod) {
	if pod.Node != "" {
		onItsWay := p.bindInFlight(pod.ID)
		p.queue.remove(pod.ID)
		p.cluster.setPod(&pod, pod.Node, true)
		if pod.Deleting {
			p.cluster.chargeEnds(now, pod.ID)
		}
		p.forgetVolumes(pod.ID)
		p.cluster.clearNomination(pod.ID) // after setPod, so that its room never counts as free in between
		if onItsWay {
			p.boundNevertheless(now, pod.ID)
		}
		return
	}
	if pod.Deleting { // also if it is assumed: the API server refuses to bind a pod that is being deleted
		p.PodGone(now, pod.ID)
		return
	}
	pool := p.queue.poolOf(pod.ID)
	// a pod in BindUnknown may have become Gated
	if p.cluster.isAssumed(pod.ID) && pool != queue.BindUnknown && pool != queue.Gated {
		return // the update is older than the bind; the outcome of the bind is still to come
	}
	p.nominationSeen(&pod)
	p.queue.put(now, pod)
}

// PodGone records that a pod was deleted or has ended.
func (p *Placer) PodGone(now unit.Instant, id PodID) {
	p.queue.remove(id)
	p.cluster.clearNomination(id)
	p.cluster.chargeEnds(now, id)
	p.forget(id)
	p.factAt = now
}

// forget removes a pod from its row, and reverts what was assumed for its volumes.
func (p *Placer) forget(id PodID) {
	p.cluster.removePod(id)
	p.forgetVolumes(id)
}

// forgetVolumes ends the volume plan of a pod: the volumes are available again.
func (p *Placer) forgetVolumes(id PodID) {
	reverted, claims := p.cluster.revertVolumes(id)
	for _, v := range reverted {
		p.cluster.volumeChanged(v)
	}
	for _, key := range claims {
		p.cluster.waits.claimChanged(key)
	}
}

// An Outcome is the result of one bind.
type Outcome int

const (
	// BindDone: the API server accepted the bind. The watch will confirm it.
	BindDone Outcome = iota
	// BindRefused: the API server refused the bind. The pod is forgotten, and tried again after its back-off.
	BindRefused
	// BindLost: no answer came, so the bind may have succeeded. The pod stays assumed until the watch shows the outcome
	// or its back-off ends; only then is it forgotten and tried again. If the first bind did succeed, the second one
	// fails with a conflict, because the API server binds a pod only once.
	BindLost
	// BindWithdrawn: the bind of a Victim that was Assumed was not sent. The effect is that of BindRefused.
	BindWithdrawn
)

// Bound records the outcome of the bind of a pod. An outcome for a pod that is no longer assumed is ignored.
func (p *Placer) Bound(now unit.Instant, pod Pod, o Outcome) {
	if !p.cluster.isAssumed(pod.ID) {
		return // the watch was faster: it confirmed or changed the pod, or the pod was deleted
	}
	switch o {
	case BindDone:
		p.queue.remove(pod.ID)
		p.boundNevertheless(now, pod.ID)
	case BindRefused, BindWithdrawn:
		p.queue.bindFailed(now, pod, false)
		p.forget(pod.ID)
	case BindLost:
		p.queue.bindFailed(now, pod, true)
	}
}

// bindInFlight reports whether a pod was placed and the outcome of its bind is not known.
func (p *Placer) bindInFlight(id PodID) bool {
	pool := p.queue.poolOf(id)
	return p.cluster.isAssumed(id) && (pool == queue.Binding || pool == queue.BindUnknown)
}

// boundNevertheless handles a pod that was bound although it was chosen as a victim while its bind was in flight, and
// the bind was to be withdrawn. The pods for which it was to make room are tried again.
func (p *Placer) boundNevertheless(now unit.Instant, id PodID) {
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
