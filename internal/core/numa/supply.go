package numa

import "cmp"

// Supply is what the NUMA nodes have of one resource, and how much of it is needed. A node is known by its place.
type Supply struct {
	Total, Free []int64
	Need        int64
	Nodes       []int // that can take part; nil: all
	Must        []int // of those, nodes that have to
}

// Merge finds the best hint for supplies as Offer does for a pod's requests: the places of its nodes (nil: anywhere),
// whether it is preferred, and whether the policy admits it. distance may be nil when distances do not count. It is what
// oracle and bench hold against upstream's merge.
func Merge(t TopologyConfig, distance [][]int, nodes int, supplies []Supply) (places []int, preferred, admitted bool) {
	m := merger{nodes: nodes}
	if t.PreferClosest {
		m.distance = distance
	}
	var wants []*want
	impossible := false
	for _, s := range supplies {
		if w := s.want(nodes); w != nil {
			wants = append(wants, w)
		} else {
			impossible = true
		}
	}
	var h hint
	if t.Policy == PolicySingleNUMANode {
		h = m.single(wants, impossible)
	} else {
		h = m.best(wants, impossible)
	}
	if h.nodes != nil {
		places = h.nodes.members()
	}
	return places, h.preferred, h.preferred || t.Policy == PolicyBestEffort
}

func (s Supply) want(nodes int) *want {
	within := full(nodes)
	if s.Nodes != nil {
		within = setOf(nodes, s.Nodes...)
	}
	f := &family{within: within, must: setOf(nodes, s.Must...), loads: []load{{s.Free, s.Need}}}
	if f.isEmpty() {
		return nil
	}
	empty := &family{within: within, must: newSet(nodes), loads: []load{{s.Total, s.Need}}}
	steps, most := searchSteps, within.count()
	return &want{families: []*family{f}, copies: 1, width: cmp.Or(empty.narrowest(most, nodes, &steps).count(), most)}
}
