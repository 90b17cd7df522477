package scheduler

import (
	"context"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// nodeBinds order the binds of pods that get CPUs, memory or devices from the node's agent (Decision.Berth). What the
// agent assigns to one pod depends on the pods before it, and each decision assumes the pods of the decisions before
// it. So such a bind is sent only when the binds before it were answered, and while it is in flight, no other bind in
// the line is sent. A pod may also request such resources and get none; on nodes whose agent reports no NUMA nodes, all
// do. The binds of such pods do not affect each other. Any number of them is in flight at once, but none together with
// a bind of a pod that gets something.
//
// If a bind fails, the decisions behind it in the line were made on a wrong assumption. They are withdrawn, and their
// pods are placed again after the back-off of a failed bind. This is rare. It is better that a pod waits for a second
// than that its node rejects it.
type nodeBinds map[string]*bindLine

// bindLine is the binds to one node. It exists while such a bind is in flight.
type bindLine struct {
	inFlight int      // binds in flight
	alone    bool     // the pod of the bind in flight gets something, so no other bind may be sent
	waiting  []placed // binds that wait, in order
}

// placed is a decision to be carried out.
type placed struct {
	corescheduler.Decision
	began unit.Instant // when the attempt began
	*flight
	after <-chan struct{} // closed when the last status patch about the pod is finished; nil: none is in progress
}

// flight is a decision that is being carried out, and that may be withdrawn.
type flight struct {
	withdrawn chan struct{}     // closed when it is withdrawn
	by        corescheduler.Pod // the preemptor, if it was withdrawn
}

// awaitPatch waits until no status patch about p is in progress. It returns false if ctx ended.
func (p *placed) awaitPatch(ctx context.Context) bool {
	if p.after == nil {
		return true
	}
	select {
	case <-p.after:
		return true
	case <-p.withdrawn:
		return true
	case <-ctx.Done():
		return false
	}
}

// enter adds p to the line of its node, and reports whether it may be sent at once.
func (l nodeBinds) enter(p placed) bool {
	if p.Pod.NUMA == nil {
		return true
	}
	at := l[p.Node]
	if at == nil {
		at = &bindLine{}
		l[p.Node] = at
	}
	if len(at.waiting) > 0 || !at.begin(p) {
		at.waiting = append(at.waiting, p)
		return false
	}
	return true
}

// begin counts p as in flight, if it may be sent together with those in flight.
func (at *bindLine) begin(p placed) bool {
	gets := p.Berth != nil
	if at.inFlight > 0 && (gets || at.alone) {
		return false
	}
	at.inFlight++
	at.alone = gets
	return true
}

// leave ends the bind of p. It returns the binds that may be sent now, or those that must be withdrawn.
func (l nodeBinds) leave(p placed, o corescheduler.Outcome) (next, withdrawn []placed) {
	if p.Pod.NUMA == nil {
		return nil, nil
	}
	at := l[p.Node]
	at.inFlight--
	if o != corescheduler.BindDone {
		withdrawn, at.waiting = at.waiting, nil
	}
	for len(at.waiting) > 0 && at.begin(at.waiting[0]) {
		next = append(next, at.waiting[0])
		at.waiting[0], at.waiting = placed{}, at.waiting[1:]
	}
	if at.inFlight == 0 {
		delete(l, p.Node)
	}
	return next, withdrawn
}
