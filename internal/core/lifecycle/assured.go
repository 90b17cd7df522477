package lifecycle

import "github.com/plimsoll-dev/plimsoll/internal/core/unit"

// Assured folds in what only a simulator can know: that a node will have given signs until the moment last, when its lease's
// renewTime and its heartbeat will be these. It spares it a hundred million calls of LeaseSeen that change nothing but a
// deadline. What Advance decides until then is the same.
func (m *Monitor) Assured(now, last unit.Instant, name string, renewed, heartbeat unit.Wall) {
	n := m.nodes[name]
	if n == nil || !n.exists || last < now {
		return
	}
	n.renewed, n.Heartbeat = renewed, heartbeat
	m.sign(now, n)
	n.deadline = last.Add(m.graceOf(n)) // its alarm rings earlier, and is set anew then
}
