package hints

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// Supply is what the NUMA nodes have of one resource, and how much of it is needed. Nodes are identified by place.
type Supply struct {
	// By place.
	Total, Free []int64
	Need        int64
	Nodes       []int // places of the nodes that may take part; nil: all
	Must        []int // places of the nodes that must
}

// Best finds the best hint for supplies, in the same way as an offer does for a pod's requests. It returns the places
// of the hint's nodes (nil: any), whether the hint is preferred, and whether the policy admits it. distance is nil when
// distances do not count. oracle and bench compare it with upstream's merge.
func Best(p Policy, distance [][]int, nodes int, supplies []Supply) (places []int, preferred, admitted bool) {
	m := NewMerger(nodes)
	m.Distance = distance
	var wants []*Want
	impossible := false
	for _, s := range supplies {
		if w := s.want(nodes); w != nil {
			wants = append(wants, w)
		} else {
			impossible = true
		}
	}
	h, admitted := m.Merge(p, wants, impossible)
	if h.Nodes != nil {
		places = h.Nodes.Members()
	}
	return places, h.Preferred, admitted
}

func (s Supply) want(nodes int) *Want {
	within := bitset.Full(nodes)
	if s.Nodes != nil {
		within = bitset.Of(nodes, s.Nodes...)
	}
	f := &Family{Within: within, Must: bitset.Of(nodes, s.Must...), Loads: []Load{{s.Free, s.Need}}}
	if f.IsEmpty() {
		return nil
	}
	empty := &Family{Within: within, Must: bitset.New(nodes), Loads: []Load{{s.Total, s.Need}}}
	return &Want{Families: []*Family{f}, Copies: 1, Width: empty.Width(within.Count(), nodes)}
}
