package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// nominated is a pending pod for which room is being made on a row: it does not count there, but pods of its priority
// or lower must fit beside it as well as without it.
type nominated struct {
	held
	victims []PodID // who is to be evicted for it, or whose bind to be withdrawn, and may not have been seen to be
	foreign bool    // others nominated it: a scheduler before us, or who makes nodes for pods
}

// heedNomination takes up where others have nominated a pending pod, and that they have taken it back. What we decided
// ourselves goes before that; what the API shows of our own decisions is no news.
func (p *Placer) heedNomination(pod *Pod) {
	e, w := p.queue.find(pod.ID), p.cluster.wishes[pod.ID]
	switch {
	case e != nil && e.pod.Nominated == pod.Nominated, w != nil && !w.foreign:
	case pod.Nominated != "":
		p.cluster.nominate(pod, pod.Nominated)
		p.cluster.wishes[pod.ID].foreign = true
	case w != nil:
		p.cluster.dismiss(pod.ID)
	}
}

// nominate makes room for pod on node, instead of where it was being made.
func (c *cluster) nominate(pod *Pod, node string) {
	c.dismiss(pod.ID)
	r := c.rowOf(node)
	w := &nominated{held: c.heldOf(pod, r)}
	c.wishes[pod.ID] = w
	c.nominated[r] = append(c.nominated[r], w)
	c.touch(r)
}

// heldOf is pod as it would count on row r.
func (c *cluster) heldOf(pod *Pod, r row) held {
	k := c.compile(pod)
	who := c.identify(pod)
	return held{Pod: census.Pod{Row: r, Who: who, Terms: k.holds}, id: pod.ID, name: pod.Name, class: k}
}

// awaitsNode reports whether others have nominated a pod on a node that is not there yet, as who makes nodes for pods
// does. Upstream forgets that at the pod's next attempt; here it stands until they take it back, or the node is there
// and does not take the pod.
func (c *cluster) awaitsNode(id PodID) bool {
	w := c.wishes[id]
	return w != nil && w.foreign && !c.Present(w.Row)
}

// dismiss ends the making of room for a pod. The row is noRow if there was none, or if it is gone.
func (c *cluster) dismiss(id PodID) row {
	w := c.wishes[id]
	if w == nil {
		return noRow
	}
	delete(c.wishes, id)
	c.spare(w)
	c.nominated[w.Row] = shrink.Without(c.nominated[w.Row], w)
	c.touch(w.Row)
	if len(c.waits.of) > 0 { // those beside whom it counted
		c.waits.gained(w.Row)
		c.notifyAround(&w.held, -1)
	}
	c.release(w.Row)
	c.releaseClass(w.class)
	c.releaseIdentity(w.Who)
	return w.Row
}

// asIfNominated reports whether pass holds on row r with the pods counted that are nominated there, of at least the
// demand's priority and not the pod itself; and, since they may yet go elsewhere, without them too.
func (c *state) asIfNominated(d *demand, self PodID, r row, pass func() bool) bool {
	if len(c.nominated[r]) == 0 {
		return pass()
	}
	c.beside.begin(c, d)
	added := false
	for _, w := range c.nominated[r] {
		if w.class.priority >= d.priority && w.id != self {
			c.beside.count(&w.held, 1)
			added = true
		}
	}
	ok := pass()
	c.beside.end()
	if !added {
		return ok
	}
	return ok && pass()
}
