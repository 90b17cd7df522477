package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// nominated is a waiting pod that is nominated on a row. It does not count as being on the row. But pods of the same or
// lower priority must fit there both with it and without it.
type nominated struct {
	placedPod
	// victims are the pods chosen for it that are still to be evicted, or whose bind is still to be withdrawn.
	victims []PodID
	foreign bool // nominated by others: another scheduler, an earlier run of this one, or an autoscaler
}

// nominationSeen records that others have nominated a pending pod, or removed such a nomination. A nomination by this
// Placer takes precedence. Seeing it in status.nominatedNodeName changes nothing.
func (p *Placer) nominationSeen(pod *Pod) {
	e, w := p.queue.find(pod.ID), p.cluster.nominations[pod.ID]
	switch {
	case e != nil && e.pod.Nominated == pod.Nominated, w != nil && !w.foreign:
	case pod.Nominated != "":
		p.cluster.nominate(pod, pod.Nominated)
		p.cluster.nominations[pod.ID].foreign = true
	case w != nil:
		p.cluster.clearNomination(pod.ID)
	}
}

// nominate nominates pod on node. An earlier nomination ends.
func (c *cluster) nominate(pod *Pod, node string) {
	c.clearNomination(pod.ID)
	r := c.rowOf(node)
	w := &nominated{placedPod: c.asPlaced(pod, r)}
	c.nominations[pod.ID] = w
	c.nominated[r] = append(c.nominated[r], w)
	c.rowChanged(r)
}

// asPlaced returns pod as it would count on row r.
func (c *cluster) asPlaced(pod *Pod, r row) placedPod {
	k := c.compile(pod)
	who := c.identify(pod)
	return placedPod{Pod: census.Pod{Row: r, Who: who, Terms: k.ownTerms}, id: pod.ID, name: pod.Name, class: k}
}

// awaitsNode reports whether others, such as an autoscaler, have nominated a pod on a node that does not exist yet.
// Upstream drops such a nomination at the pod's next attempt. Here it remains until the others remove it, or until the
// node exists and does not fit the pod.
func (c *cluster) awaitsNode(id PodID) bool {
	w := c.nominations[id]
	return w != nil && w.foreign && !c.Present(w.Row)
}

// clearNomination ends the nomination of a pod. It returns the row, or noRow if the pod was not nominated.
func (c *cluster) clearNomination(id PodID) row {
	w := c.nominations[id]
	if w == nil {
		return noRow
	}
	delete(c.nominations, id)
	c.dropCharges(w)
	c.nominated[w.Row] = shrink.Without(c.nominated[w.Row], w)
	c.rowChanged(w.Row)
	if len(c.waits.of) > 0 { // pods that did not fit because of it may fit now
		c.waits.roomGained(w.Row)
		c.notifyAround(&w.placedPod, -1)
	}
	c.dropRowIfEmpty(w.Row)
	c.dropClass(w.class)
	c.dropIdentity(w.Who)
	return w.Row
}

// withNominated reports whether pass is true on row r both with and without the pods that are nominated there: they may
// still go elsewhere. Nominated pods of lower priority than the demand do not count, nor does self.
func (c *state) withNominated(d *demand, self PodID, r row, pass func() bool) bool {
	if len(c.nominated[r]) == 0 {
		return pass()
	}
	c.nominating.begin(c, d)
	added := false
	for _, w := range c.nominated[r] {
		if w.class.priority >= d.priority && w.id != self {
			c.nominating.count(&w.placedPod, 1)
			added = true
		}
	}
	ok := pass()
	c.nominating.end()
	if !added {
		return ok
	}
	return ok && pass()
}
