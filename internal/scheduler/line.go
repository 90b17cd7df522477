package scheduler

import (
	"context"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// lines are binds to nodes that must follow each other: of pods that ask CPUs, memory or devices of their own of the
// node's agent. What the agent gives to one depends on those before it, and the mind decided in the order of its
// decisions, so one is sent when the one before has been answered. A node that is here has one on its way; behind it
// are those that wait.
//
// When one fails, those behind it were decided on something that is not so: they are withdrawn and placed again, after
// the pause that follows a failed bind. That is rare, and a pod that waits for a second is better than one that its
// node refuses.
type lines map[string][]placed

// placed is a decision to be bound.
type placed struct {
	placement.Decision
	began unit.Instant // when it was made
	*flight
	after <-chan struct{} // closed when nothing is written any more about why it was not placed before; nil: nothing is
}

// flight is a decision on its way, which may be withdrawn.
type flight struct {
	withdrawn chan struct{} // closed when it is not wanted any more
	by        placement.Pod // the preemptor of which it is a victim then
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
	behind, busy := l[p.Node]
	if busy {
		behind = append(behind, p)
	}
	l[p.Node] = behind
	return !busy
}

// leave ends the bind p, and says which may go now, or which may not go any more.
func (l lines) leave(p placed, o placement.Outcome) (next *placed, withdrawn []placed) {
	if p.Pod.NUMA == nil {
		return nil, nil
	}
	behind := l[p.Node]
	if len(behind) == 0 || o != placement.BindDone {
		delete(l, p.Node)
		return nil, behind
	}
	l[p.Node] = behind[1:]
	return &behind[0], nil
}
