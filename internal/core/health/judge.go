package health

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func (m *Monitor) graceOf(n *node) time.Duration {
	if n.Status[Ready] == Absent {
		return m.o.StartupGrace
	}
	return m.o.Grace
}

// firstSight sets the deadline of a node of which no sign was observed yet, from what is written about it.
func (m *Monitor) firstSight(now unit.Instant, wall unit.Wall, n *node) {
	grace, age := m.graceOf(n), time.Duration(0)
	switch {
	case n.Status[Ready] == Absent:
		age = wall.Sub(n.Created)
	case n.renewed != 0:
		age = wall.Sub(n.renewed)
	}
	left := min(max(grace-max(age, 0), m.o.Hearing), grace)
	m.arm(n, now.Add(left))
}

// sign notes that n is alive now.
func (m *Monitor) sign(now unit.Instant, n *node) {
	n.silent = false
	m.arm(n, now.Add(m.graceOf(n)))
}

// Advance judges the nodes whose time is over and returns what is to be written now. wall is not needed: judging knows
// no calendar.
func (m *Monitor) Advance(now unit.Instant) Decision {
	m.ring(now)
	d := Decision{Notices: m.notices}
	m.notices = nil
	dirty := m.dirty
	m.dirty = nil
	for _, n := range dirty {
		n.isDirty = false
		if m.nodes[n.Name] == n {
			d.Actions = m.plan(now, n, d.Actions)
		}
	}
	if m.alarms.Len() > 0 {
		d.Wake = m.alarms.First().alarm
	}
	if m.hearingBad(now) && !d.Wake.IsZero() {
		// Due alarms wait for contact; look again when the next probe must have answered.
		d.Wake = max(d.Wake, now.Add(time.Second))
	}
	d.Notices = append(d.Notices, m.notices...)
	m.notices = nil
	return d
}

func (m *Monitor) hearingBad(now unit.Instant) bool {
	return m.deaf || now.Sub(m.lastContact) > m.o.DeafAfter
}

// ring handles every alarm that is due: a deadline that passed without a sign, or a retry.
func (m *Monitor) ring(now unit.Instant) {
	var waiting []*node
	for m.alarms.Len() > 0 && m.alarms.First().alarm <= now {
		n := m.alarms.First()
		m.disarm(n)
		switch {
		case n.silent || !n.exists: // a retry
			m.touch(n)
		case n.deadline > now: // it gave signs since the alarm was set, or this is a retry
			m.setAlarm(n, n.deadline)
			m.touch(n)
		case m.hearingBad(now):
			waiting = append(waiting, n)
		default:
			m.judge(n)
		}
	}
	for _, n := range waiting {
		m.setAlarm(n, n.deadline)
	}
}

func (m *Monitor) judge(n *node) {
	n.silent = true
	if n.Status[Ready] == True {
		m.notices = append(m.notices, Notice{n.Name, n.UID, "NodeNotReady", "Node " + n.Name + " status is now: NodeNotReady"})
	}
	m.touch(n)
}

// touch makes Advance look at n.
func (m *Monitor) touch(n *node) {
	if !n.isDirty {
		n.isDirty = true
		m.dirty = append(m.dirty, n)
	}
}

// plan appends what must be written about n and its pods.
func (m *Monitor) plan(now unit.Instant, n *node, out []Action) []Action {
	if n.exists && m.mayStart(now, n, &n.work) {
		a := Action{Node: n.Name}
		status := n.Status
		if n.silent {
			a.Unknown, status = silence(n.Status)
		}
		a.Add, a.Drop = taintChanges(n.Node, status)
		if len(a.Unknown)+len(a.Add)+len(a.Drop) > 0 {
			n.work.busy = true
			out = append(out, a)
		}
	}
	if !n.silent {
		return out
	}
	for _, p := range n.sortedPods() {
		if p.Ready && m.mayStart(now, n, &p.work) {
			p.work.busy = true
			copied := p.Pod
			out = append(out, Action{Node: n.Name, Pod: &copied})
		}
	}
	return out
}

// mayStart reports whether nothing is being written already and no retry is waited for.
func (m *Monitor) mayStart(now unit.Instant, n *node, w *work) bool {
	if w.busy {
		return false
	}
	if w.retryAt > now {
		m.setAlarm(n, w.retryAt)
		return false
	}
	return true
}

// silence is what a silent node's conditions become: those the agent speaks for are Unknown. NetworkUnavailable is the
// control plane's and stays.
func silence(status map[ConditionType]Status) (changes []UnknownCondition, after map[ConditionType]Status) {
	after = map[ConditionType]Status{NetworkUnavailable: status[NetworkUnavailable]}
	for _, t := range []ConditionType{Ready, MemoryPressure, DiskPressure, PIDPressure} {
		after[t] = Unknown
		if status[t] != Unknown {
			changes = append(changes, UnknownCondition{t, status[t] == Absent})
		}
	}
	if len(changes) > 0 && status[Ready] == Unknown {
		return nil, after // upstream writes only when Ready changes; a pressure alone is not worth a write
	}
	return changes, after
}

// Done reports the fate of an action. After success the shell tells what the API answered (NodeSeen, PodSeen) first.
func (m *Monitor) Done(now unit.Instant, a Action, ok bool) {
	w, n := m.workOf(a)
	if w == nil {
		return
	}
	w.busy = false
	if ok {
		w.failures, w.retryAt = 0, 0
	} else {
		w.failures++
		w.retryAt = now.Add(retryAfter(w.failures))
	}
	m.touch(n)
}

func (m *Monitor) workOf(a Action) (*work, *node) {
	if a.Pod != nil {
		if p := m.pods[a.Pod.ID]; p != nil {
			return &p.work, m.nodes[p.Node]
		}
		return nil, nil
	}
	if n := m.nodes[a.Node]; n != nil {
		return &n.work, n
	}
	return nil, nil
}

func retryAfter(failures int) time.Duration {
	d := retryMin
	for ; failures > 1 && d < retryMax; failures-- {
		d *= 2
	}
	return min(d, retryMax)
}

// arm sets the deadline of n. Its alarm may ring too early then, never too late: moving it with every sign would cost a
// heap operation per heartbeat.
func (m *Monitor) arm(n *node, deadline unit.Instant) {
	n.deadline = deadline
	m.setAlarm(n, deadline)
}

// setAlarm makes the alarm of n ring at the latest at.
func (m *Monitor) setAlarm(n *node, at unit.Instant) {
	if n.alarm.IsZero() || at < n.alarm {
		n.alarm = at
		m.alarms.Set(n)
	}
}

func (m *Monitor) disarm(n *node) {
	m.alarms.Remove(n)
	n.alarm = 0
}
