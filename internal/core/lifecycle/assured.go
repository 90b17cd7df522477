package lifecycle

import "github.com/plimsoll-dev/plimsoll/internal/core/unit"

// AssumeSigns records something that only a simulator can know: that the node will give signs of life until last, when
// the renewTime of its lease and its heartbeat will have these values. It replaces calls of LeaseSeen (a hundred
// million in a long simulation) that would only move a deadline. The decisions of Advance until then are the same.
func (m *Monitor) AssumeSigns(now, last unit.Instant, name string, renewed, heartbeat unit.Wall) {
	n := m.nodes[name]
	if n == nil || !n.exists || last < now {
		return
	}
	n.renewed, n.Heartbeat = renewed, heartbeat
	m.noteSign(now, n)
	n.deadline = last.Add(m.graceOf(n)) // its alarm is due earlier, and is set again then
}
