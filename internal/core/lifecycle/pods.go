package lifecycle

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// pod is everything known about a pod. Only the methods of Monitor change it.
type pod struct {
	Pod
	home    *node        // the node to which it is bound; nil: none
	arrived unit.Instant // when it was bound there, as far as known
	leaves  bool         // it must leave a node that stays unreachable: its tolerations of that end, and it has not ended
	waits   bool         // it is counted in capacity.waiting

	work      work         // the action about the pod
	did       uint8        // actions that were done, one bit for each Verb
	scheduled bool         // it will be evicted at a later time
	isDirty   bool         // in Monitor.dirtyPods
	alarm     unit.Instant // when it is due; valid while it is in Monitor.podAlarms
	place     int          // index in podAlarms
}

// PodSeen records a pod that is new or changed.
func (m *Monitor) PodSeen(now unit.Instant, seen Pod) {
	p := m.pods[seen.ID]
	switch {
	case p == nil:
		p = &pod{arrived: now}
		m.pods[seen.ID] = p
	case p.Node != seen.Node:
		m.uncount(p)
		m.unbind(p)
		p.arrived = now
	default:
		m.uncount(p)
	}
	p.Pod = seen
	if p.Requests = seen.Requests.clipped(); seen.Ended {
		p.Requests = Load{}
	}
	if seen.Node != "" && p.home == nil {
		p.home = m.node(seen.Node)
		p.home.pods[seen.ID] = p
		if !p.home.exists && p.home.missing.IsZero() {
			p.home.missing = now
		}
	}
	_, ends := toleratedTime(Taint{Key: wellknown.TaintUnreachable, Effect: NoExecute}, p.Tolerations)
	p.leaves = ends && !p.Ended
	m.recount(p)
	if n := p.home; n != nil && (!n.exists || n.silent || len(n.noExecute) > 0 || n.outOfService()) {
		m.markPodDirty(p)
	}
}

// PodGone records that a pod was deleted.
func (m *Monitor) PodGone(_ unit.Instant, id PodID) {
	p := m.pods[id]
	if p == nil {
		return
	}
	m.uncount(p)
	m.dropPodAlarm(p)
	delete(m.pods, id)
	m.unbind(p)
}

func (m *Monitor) unbind(p *pod) {
	delete(m.unbound, p.ID)
	if n := p.home; n != nil {
		p.home = nil
		delete(n.pods, p.ID)
		m.drop(n)
	}
}

// uncount subtracts p from the sums in capacity and share (room.go). recount adds it again after a change.
func (m *Monitor) uncount(p *pod) {
	if !m.o.ByRoom {
		return
	}
	if p.waits {
		m.waiting = m.waiting.minus(p.Requests)
	}
	if n := p.home; n != nil {
		n.used = n.used.minus(p.Requests)
		if p.leaves && !p.Terminating {
			n.leaving = n.leaving.minus(p.Requests)
		}
		m.updateShare(n)
	}
}

func (m *Monitor) recount(p *pod) {
	if !m.o.ByRoom {
		return
	}
	n := p.home
	if n == nil {
		if _, known := m.unbound[p.ID]; !known && !p.Gated && !p.Ended {
			m.unbound[p.ID], p.waits = p, true
		}
		if p.waits {
			m.waiting = m.waiting.plus(p.Requests)
		}
		return
	}
	p.waits = false
	n.used = n.used.plus(p.Requests)
	if p.leaves && !p.Terminating {
		n.leaving = n.leaving.plus(p.Requests)
	}
	m.updateShare(n)
}

func (m *Monitor) markPodDirty(p *pod) {
	if !p.isDirty {
		p.isDirty = true
		m.dirtyPods = append(m.dirtyPods, p)
	}
}

// markPodsDirty makes Advance evaluate all pods of n.
func (m *Monitor) markPodsDirty(n *node) {
	for _, p := range n.pods {
		m.markPodDirty(p)
	}
}

func (m *Monitor) takeDirtyPods() []*pod {
	dirty := m.dirtyPods
	m.dirtyPods = nil
	slices.SortFunc(dirty, func(a, b *pod) int { return cmp.Compare(a.ID, b.ID) })
	for _, p := range dirty {
		p.isDirty = false
	}
	return dirty
}

// planPod appends what must be done to p, or sets its alarm.
func (m *Monitor) planPod(now unit.Instant, p *pod, out []Action) []Action {
	if m.pods[p.ID] != p || p.home == nil || p.work.busy {
		return out
	}
	do, at, wanted := m.nextVerb(now, p)
	if !wanted {
		return out
	}
	if do == Evict && m.o.EvictAttempts > 0 && p.work.failures >= m.o.EvictAttempts {
		return out // no more attempts
	}
	begin := max(at, p.work.retryAt)
	if begin > now || do != MarkNotReady && m.isDisconnected(now) {
		m.setPodAlarm(p, begin)
		return out
	}
	if do == Evict {
		p.scheduled = false
		if p.work.failures == 0 {
			m.noticePod(p, "Marking for deletion")
		}
	}
	p.work.busy = true
	copied := p.Pod
	return append(out, Action{Node: p.Node, Pod: &copied, Do: do, Due: at})
}

// Renew returns what must be written now instead of an action that waited in a queue. For a node, that is what follows
// from the latest observations. For a pod, it is the same action if it is still wanted. If it returns false, the action
// counts as never begun, and the next Advance returns what is wanted instead. The shell calls Renew just before it
// acts, and must not report an outcome (Done) of an action for which Renew returned false.
func (m *Monitor) Renew(now unit.Instant, a Action) (Action, bool) {
	if a.Pod != nil {
		return a, m.stillWanted(now, a)
	}
	n := m.nodes[a.Node]
	if n == nil {
		return a, false
	}
	n.work.busy = false
	if renewed := m.planNode(now, n, nil); len(renewed) > 0 {
		return renewed[0], true
	}
	return a, false
}

// stillWanted is Renew for a pod.
func (m *Monitor) stillWanted(now unit.Instant, a Action) bool {
	p := m.pods[a.Pod.ID]
	if p == nil {
		return false
	}
	if p.home != nil && p.Node == a.Node {
		do, at, wanted := m.nextVerb(now, p)
		if wanted && do == a.Do && at <= now && (do == MarkNotReady || !m.isDisconnected(now)) {
			return true
		}
		if a.Do == Evict && !p.Terminating && !(wanted && do == Evict) {
			p.scheduled = false
			m.noticePod(p, "Cancelling deletion of")
		}
	}
	p.work.busy = false
	m.markPodDirty(p)
	return false
}

// nextVerb returns what should be done to p next, and when.
func (m *Monitor) nextVerb(now unit.Instant, p *pod) (do Verb, at unit.Instant, wanted bool) {
	n := p.home
	if !n.exists {
		p.scheduled = false
		return CollectOrphan, n.missing.Add(m.o.OrphanAfter), m.o.Collect && !p.has(CollectOrphan)
	}
	at, leaves := unit.Instant(0), false
	if p.Terminating {
		p.scheduled = false
		if m.o.Collect && n.outOfService() && n.ready() != True && !p.has(CollectOutOfService) {
			return CollectOutOfService, now, true
		}
	} else if at, leaves = m.leaveAt(n, p); !leaves && p.scheduled && !n.changesTaint() {
		p.scheduled = false
		m.noticePod(p, "Cancelling deletion of")
	}
	leaves = leaves && !p.Ended && !p.has(Evict)
	p.scheduled = p.scheduled || leaves && at > now
	if n.silent && p.Ready && (!leaves || at > now) {
		return MarkNotReady, now, true
	}
	return Evict, at, leaves
}

func (p *pod) has(v Verb) bool { return p.did&(1<<v) != 0 }

func (m *Monitor) noticePod(p *pod, text string) {
	copied := p.Pod
	m.notices = append(m.notices, Notice{
		Node:    p.Node,
		Pod:     &copied,
		Reason:  "TaintManagerEviction",
		Message: text + " Pod " + p.Namespace + "/" + p.Name,
	})
}

// setPodAlarm makes the alarm of p due at the given moment.
func (m *Monitor) setPodAlarm(p *pod, at unit.Instant) {
	p.alarm = at
	m.podAlarms.Set(p)
}

func (m *Monitor) dropPodAlarm(p *pod) { m.podAlarms.Remove(p) }
