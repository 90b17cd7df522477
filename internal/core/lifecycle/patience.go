package lifecycle

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Patience is how long a pod with these tolerations stays on a node with these taints. ends is false when it stays for
// ever. Per taint the first toleration that accepts it counts; the least of them decides. Only NoExecute taints matter.
func Patience(taints []Taint, tolerations []Toleration) (d time.Duration, ends bool) {
	for _, t := range taints {
		if t.Effect != NoExecute {
			continue
		}
		if one, e := patience(t, tolerations); e && (!ends || one < d) {
			d, ends = one, true
		}
	}
	return d, ends
}

// patienceMax bounds tolerationSeconds. Chosen: a hundred years, so that no sum with it overflows.
const patienceMax = 100 * 365 * 24 * time.Hour

func patience(t Taint, tolerations []Toleration) (d time.Duration, ends bool) {
	for _, o := range tolerations {
		if !o.accepts(t) {
			continue
		}
		if !o.Bounded {
			return 0, false
		}
		return time.Duration(min(max(o.Seconds, 0), int64(patienceMax/time.Second))) * time.Second, true
	}
	return 0, true
}

// leaveAt is when p must go because of the NoExecute taints of its node. Each taint counts from when it was set, but not
// from before p was bound there. One that is about to be taken back, as the node's state is another by now, does not count.
func (m *Monitor) leaveAt(n *node, p *pod) (at unit.Instant, leaves bool) {
	right, down := readinessTaint(n.ready())
	for _, t := range n.noExecute {
		d, ends := patience(t.Taint, p.Tolerations)
		if !ends || t.isReadiness() && (m.stopped || !down || !t.Same(right)) {
			continue
		}
		due := max(t.since, p.arrived).Add(d)
		if t.isReadiness() {
			due = max(due, m.listenUntil) // it may still be heard
		}
		if !leaves || due < at {
			at, leaves = due, true
		}
	}
	return at, leaves
}
