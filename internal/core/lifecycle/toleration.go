package lifecycle

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// ToleratedTime returns how long a pod with these tolerations may stay on a node with these taints. ends is false if it
// may stay without limit. For each taint the first toleration that matches counts, and the shortest time decides. Only
// NoExecute taints matter.
func ToleratedTime(taints []Taint, tolerations []Toleration) (d time.Duration, ends bool) {
	for _, t := range taints {
		if t.Effect != NoExecute {
			continue
		}
		if one, e := toleratedTime(t, tolerations); e && (!ends || one < d) {
			d, ends = one, true
		}
	}
	return d, ends
}

// toleratedMax is the longest tolerationSeconds. Chosen: a hundred years, so that no sum with it overflows.
const toleratedMax = 100 * 365 * 24 * time.Hour

func toleratedTime(t Taint, tolerations []Toleration) (d time.Duration, ends bool) {
	for _, o := range tolerations {
		if !o.accepts(t) {
			continue
		}
		if !o.Bounded {
			return 0, false
		}
		return time.Duration(min(max(o.Seconds, 0), int64(toleratedMax/time.Second))) * time.Second, true
	}
	return 0, true
}

// leaveAt is when p must be evicted because of the NoExecute taints of its node; leaves is false if it need not be.
// Each taint counts from when it was set, or from when p was bound there if that is later. A readiness taint that no
// longer matches the node's state does not count, because it is about to be removed.
func (m *Monitor) leaveAt(n *node, p *pod) (at unit.Instant, leaves bool) {
	right, down := readinessTaint(n.ready())
	for _, t := range n.noExecute {
		d, ends := toleratedTime(t.Taint, p.Tolerations)
		if !ends || t.isReadiness() && (m.stopped || !down || !t.Same(right)) {
			continue
		}
		due := max(t.since, p.arrived).Add(d)
		if t.isReadiness() {
			due = max(due, m.noEvictionsBefore) // the node may still give a sign of life
		}
		if !leaves || due < at {
			at, leaves = due, true
		}
	}
	return at, leaves
}
