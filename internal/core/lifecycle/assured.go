package lifecycle

import "github.com/plimsoll-dev/plimsoll/internal/core/unit"

// AssumeSigns records something that only a simulator can know: the node will give signs of life until the moment last,
// when its lease's renewTime and its heartbeat will have these values. It replaces a hundred million calls of LeaseSeen
// that only move a deadline. What Advance decides until then is the same.
func (m *Monitor) AssumeSigns(now, last unit.Instant, name string, renewed, heartbeat unit.Wall) {
	n := m.nodes[name]
	if n == nil || !n.exists || last < now {
		return
	}
	n.renewed, n.Heartbeat = renewed, heartbeat
	m.noteSign(now, n)
	n.deadline = last.Add(m.graceOf(n)) // its alarm is due earlier, and is set again then
}
