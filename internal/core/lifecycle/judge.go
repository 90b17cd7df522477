package lifecycle

import (
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func (m *Monitor) graceOf(n *node) time.Duration {
	if n.Status[Ready] == Absent {
		return m.o.StartupGrace
	}
	return m.o.Grace
}

// firstSight sets the deadline of a node that has not given a sign of life yet, from what the API shows about it.
func (m *Monitor) firstSight(now unit.Instant, wall unit.Wall, n *node) {
	grace, age := m.graceOf(n), time.Duration(0)
	switch {
	case n.Status[Ready] == Absent:
		age = wall.Sub(n.Created)
	case n.renewed != 0:
		age = wall.Sub(n.renewed)
		n.overdue = age > grace
	}
	left := min(max(grace-max(age, 0), m.o.FirstSightGrace), grace)
	m.setDeadline(n, now.Add(left))
}

// takeOver processes the first lists: it takes over what a previous controller left unfinished.
func (m *Monitor) takeOver(now unit.Instant) {
	m.tookOver = true
	leases, overdue := 0, 0
	for _, n := range m.nodes {
		if n.exists && n.renewed != 0 && n.Status[Ready] != Unknown {
			leases++
			overdue += one(n.overdue)
		}
	}
	if overdue > 0 && float32(overdue)/float32(leases) >= m.o.UnhealthyZone {
		m.explain("all nodes", "most leases are expired, so the API server was away: nodes get a new grace period")
		m.renewGrace(now)
	}
	for _, p := range m.pods {
		p.arrived = m.instantOf(now, p.Bound)
		m.markPodDirty(p)
	}
	m.restoreRates()
}

// noteSign records that n is alive now.
func (m *Monitor) noteSign(now unit.Instant, n *node) {
	if n.silent {
		n.silent = false
		m.updateStanding(now, n)
		m.updateShare(n)
		m.markDirty(n)
		m.markPodsDirty(n)
	}
	m.setDeadline(n, now.Add(m.graceOf(n)))
}

// Advance evaluates the nodes whose deadline has passed, and returns what must be written now.
func (m *Monitor) Advance(now unit.Instant) Decision {
	if !m.tookOver {
		m.takeOver(now)
	}
	connected := !m.isDisconnected(now)
	if connected {
		m.handleAlarms(now)
	}
	m.reviewZones(now)
	if connected {
		m.grantDue(now)
	}
	d := Decision{}
	for _, n := range m.takeDirty() {
		d.Actions = m.planNode(now, n, d.Actions)
	}
	for _, p := range m.takeDirtyPods() {
		d.Actions = m.planPod(now, p, d.Actions)
	}
	d.Notices = m.notices
	d.Reasons = m.reasons
	m.notices = nil
	m.reasons = nil
	d.Wake = m.wake(now, connected)
	return d
}

// wake is when the first alarm is due. While the watch is broken, no alarm is handled. Then it is a second from now at
// the earliest, to check whether the watch works again.
func (m *Monitor) wake(now unit.Instant, connected bool) (at unit.Instant) {
	if m.alarms.Len() > 0 {
		at = at.Earlier(m.alarms.First().alarm)
	}
	if m.podAlarms.Len() > 0 {
		at = at.Earlier(m.podAlarms.First().alarm)
	}
	if m.zonesDue.Len() > 0 {
		at = at.Earlier(m.zonesDue.First().due)
	}
	if !connected && !at.IsZero() {
		at = max(at, now.Add(time.Second))
	}
	return at
}

func (m *Monitor) isDisconnected(now unit.Instant) bool {
	return m.disconnected || now.Sub(m.lastContact) > m.o.ContactTimeout
}

// staleEarly is how much too early an alarm may be handled if its node has given signs of life since the alarm was set.
// Each node has one such alarm per grace period. So many alarms are handled together, and the process wakes once per
// staleEarly instead of once for each. Chosen: 1 s, a fiftieth of the grace period. With a longer time, more alarms are
// handled although their nodes would have given another sign by then.
const staleEarly = time.Second

// handleAlarms handles every alarm that is due: a deadline that passed without a sign, a retry, or a pod's eviction
// time.
func (m *Monitor) handleAlarms(now unit.Instant) {
	for m.alarms.Len() > 0 {
		n := m.alarms.First()
		if n.alarm > now && (n.alarm > now.Add(staleEarly) || !n.isStale(now)) {
			break
		}
		stale := n.isStale(now)
		m.dropAlarm(n)
		switch {
		case stale:
			m.setAlarm(n, m.checkTime(n.deadline))
		case n.silent || !n.exists: // a retry
			m.markDirty(n)
		case m.checkTime(n.deadline) > now: // a retry, and the node has given a sign since
			m.setAlarm(n, m.checkTime(n.deadline))
			m.markDirty(n)
		default:
			m.becomeSilent(now, n)
		}
	}
	for m.podAlarms.Len() > 0 && m.podAlarms.First().alarm <= now {
		p := m.podAlarms.First()
		m.dropPodAlarm(p)
		m.markPodDirty(p)
	}
}

// isStale reports whether n's alarm is due only because the deadline moved after it was set.
func (n *node) isStale(now unit.Instant) bool {
	return n.exists && !n.silent && n.deadline > max(n.alarm, now) && n.work.failures == 0
}

// ReasonNotReady is the reason of the Events about a node that became silent, and about its pods.
const ReasonNotReady = "NodeNotReady"

func (m *Monitor) becomeSilent(now unit.Instant, n *node) {
	n.silent = true
	if n.Status[Ready] == True {
		m.noticeNode(n, ReasonNotReady, "status is now: "+ReasonNotReady)
	}
	m.updateStanding(now, n)
	m.updateShare(n)
	m.markDirty(n)
	m.markPodsDirty(n)
}

// markDirty makes Advance evaluate n.
func (m *Monitor) markDirty(n *node) {
	if !n.isDirty {
		n.isDirty = true
		m.dirty = append(m.dirty, n)
	}
}

// takeDirty returns the nodes to evaluate, sorted by name, so that the order does not depend on the order of
// observations.
func (m *Monitor) takeDirty() []*node {
	dirty := m.dirty
	m.dirty = nil
	slices.SortFunc(dirty, func(a, b *node) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range dirty {
		n.isDirty = false
	}
	return dirty
}

// planNode appends what must be written about n.
func (m *Monitor) planNode(now unit.Instant, n *node, out []Action) []Action {
	if m.nodes[n.Name] != n || !n.exists || n.work.busy {
		return out
	}
	if n.work.retryAt > now {
		m.setAlarm(n, n.work.retryAt)
		return out
	}
	a := Action{Node: n.Name, Labels: n.Relabel}
	status := n.Status
	if n.silent {
		a.Unknown, status = silence(n.Status)
	}
	a.Add, a.Drop = taintChanges(n.Node, status, n.granted, m.stopped)
	if len(a.Unknown)+len(a.Add)+len(a.Drop)+len(a.Labels) == 0 {
		return out
	}
	n.work.busy = true
	return append(out, a)
}

// silence returns what a node's silence changes in its conditions, and the conditions after that. Those that its agent
// reports become Unknown. NetworkUnavailable is set by the control plane and stays.
func silence(status map[ConditionType]Status) (changes []UnknownCondition, after map[ConditionType]Status) {
	after = map[ConditionType]Status{NetworkUnavailable: status[NetworkUnavailable]}
	for _, t := range []ConditionType{Ready, MemoryPressure, DiskPressure, PIDPressure} {
		after[t] = Unknown
		if status[t] != Unknown {
			changes = append(changes, UnknownCondition{t, status[t] == Absent})
		}
	}
	if len(changes) > 0 && status[Ready] == Unknown {
		return nil, after // as upstream: nothing is written while Ready stays as it is
	}
	return changes, after
}

// Done records the outcome of an action. After a success, the shell must first pass on what the API server answered
// (NodeSeen, PodSeen).
func (m *Monitor) Done(now unit.Instant, a Action, ok bool) {
	if a.Pod != nil {
		if p := m.pods[a.Pod.ID]; p != nil {
			m.outcome(now, &p.work, string(p.ID), ok)
			if ok && a.Do != MarkNotReady {
				p.did |= 1 << a.Do
			}
			m.markPodDirty(p)
		}
		return
	}
	if n := m.nodes[a.Node]; n != nil {
		m.outcome(now, &n.work, n.Name, ok)
		m.markDirty(n)
	}
}

// A failed action is retried after retryMin, doubled with each failure up to retryMax. The last half of that time is
// random, so that many actions that failed together are not retried together. Chosen: after a conflict, the watch
// brings the newer version within about retryMin. With retryMax, an API server in trouble gets about ten requests a
// minute for each object.
const (
	retryMin = 200 * time.Millisecond
	retryMax = 10 * time.Second
)

func (m *Monitor) outcome(now unit.Instant, w *work, id string, ok bool) {
	w.busy = false
	if ok {
		w.failures, w.retryAt = 0, 0
		return
	}
	w.failures++
	d := retryMin
	for i := 1; i < w.failures && d < retryMax; i++ {
		d *= 2
	}
	d = min(d, retryMax)
	w.retryAt = now.Add(d/2 + time.Duration(chance(m.o.Seed, id, w.failures)%uint64(d/2)))
}

// chance is a number that depends only on its arguments (FNV-1a).
func chance(seed uint64, id string, n int) uint64 {
	h := seed ^ 14695981039346656037
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * 1099511628211
	}
	h = (h ^ uint64(n)) * 1099511628211
	return h ^ h>>29
}

// setDeadline sets the deadline of n. If the deadline moves to a later time, the alarm stays and is due too early (see
// staleEarly): moving it with every sign of life would cost a heap operation per heartbeat.
func (m *Monitor) setDeadline(n *node, deadline unit.Instant) {
	n.deadline = deadline
	m.setAlarm(n, m.checkTime(deadline))
}

// checkTime is when a deadline is evaluated: at once, or at the next Options.MonitorPeriod.
func (m *Monitor) checkTime(deadline unit.Instant) unit.Instant {
	if m.o.MonitorPeriod == 0 {
		return deadline
	}
	since := deadline.Sub(m.began) + m.o.MonitorPeriod - 1
	return m.began.Add(since - since%m.o.MonitorPeriod)
}

// setAlarm makes the alarm of n due at the given moment, if it is not due earlier.
func (m *Monitor) setAlarm(n *node, at unit.Instant) {
	if n.alarm.IsZero() || at < n.alarm {
		n.alarm = at
		m.alarms.Set(n)
	}
}

func (m *Monitor) dropAlarm(n *node) {
	m.alarms.Remove(n)
	n.alarm = 0
}
