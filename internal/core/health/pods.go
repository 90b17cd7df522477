package health

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// PodSeen folds in a pod that is new or changed. Pods that are bound nowhere or have ended are of no interest.
func (m *Monitor) PodSeen(now unit.Instant, seen Pod) {
	p := m.pods[seen.ID]
	if p != nil && p.Node != seen.Node {
		m.PodGone(now, seen.ID)
		p = nil
	}
	if seen.Node == "" {
		return
	}
	n := m.node(seen.Node)
	if p == nil {
		p = &pod{}
		m.pods[seen.ID], n.pods[seen.ID] = p, p
	}
	p.Pod = seen
	if n.silent && p.Ready {
		m.touch(n)
	}
}

// PodGone folds in that a pod was deleted or has ended.
func (m *Monitor) PodGone(_ unit.Instant, id PodID) {
	p := m.pods[id]
	if p == nil {
		return
	}
	delete(m.pods, id)
	n := m.nodes[p.Node]
	delete(n.pods, id)
	m.drop(n)
}

func (n *node) sortedPods() []*pod {
	out := make([]*pod, 0, len(n.pods))
	for _, p := range n.pods {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *pod) int { return cmp.Compare(a.ID, b.ID) })
	return out
}
