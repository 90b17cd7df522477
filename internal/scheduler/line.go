package scheduler

import (
	"context"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// lines are binds to nodes that must follow each other: of pods that get CPUs, memory or devices of their own from the
// node's agent (Decision.Berth). What the agent gives to one depends on those before it, and the mind decided in the
// order of its decisions, so one is sent when those before it have been answered, and nobody else who asks beside it.
// Those that ask and get nothing, as all do on nodes whose agent reports no NUMA nodes, change nothing for each other:
// they go at once, as many as there are, but behind one that gets something.
//
// When one fails, those behind it were decided on something that is not so: they are withdrawn and placed again, after
// the pause that follows a failed bind. That is rare, and a pod that waits for a second is better than one that its
// node refuses.
type lines map[string]*line

// line is that of one node. It is there while a bind of a pod that asks is on its way.
type line struct {
	flying int  // binds on their way
	alone  bool // the only one gets something
	behind []placed
}

// placed is a decision to be bound.
type placed struct {
	corescheduler.Decision
	began unit.Instant // when it was made
	*flight
	after <-chan struct{} // closed when nothing is written any more about why it was not placed before; nil: nothing is
}

// flight is a decision on its way, which may be withdrawn.
type flight struct {
	withdrawn chan struct{}     // closed when it is not wanted any more
	by        corescheduler.Pod // the preemptor of which it is a victim then
}

// mayGo waits until nothing is on its way any more about why p was not placed before; false: ctx ended.
func (p *placed) mayGo(ctx context.Context) bool {
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

// enter puts p in the line of its node, and reports whether it may go at once.
func (l lines) enter(p placed) bool {
	if p.Pod.NUMA == nil {
		return true
	}
	at := l[p.Node]
	if at == nil {
		at = &line{}
		l[p.Node] = at
	}
	if len(at.behind) > 0 || !at.begin(p) {
		at.behind = append(at.behind, p)
		return false
	}
	return true
}

// begin lets p go, if it may beside those that are on their way.
func (at *line) begin(p placed) bool {
	gets := p.Berth != nil
	if at.flying > 0 && (gets || at.alone) {
		return false
	}
	at.flying++
	at.alone = gets
	return true
}

// leave ends the bind p, and says which may go now, or which may not go any more.
func (l lines) leave(p placed, o corescheduler.Outcome) (next, withdrawn []placed) {
	if p.Pod.NUMA == nil {
		return nil, nil
	}
	at := l[p.Node]
	at.flying--
	if o != corescheduler.BindDone {
		withdrawn, at.behind = at.behind, nil
	}
	for len(at.behind) > 0 && at.begin(at.behind[0]) {
		next = append(next, at.behind[0])
		at.behind[0], at.behind = placed{}, at.behind[1:]
	}
	if at.flying == 0 {
		delete(l, p.Node)
	}
	return next, withdrawn
}
