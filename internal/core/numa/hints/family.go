package hints

import (
	"cmp"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// A Family is the sets of NUMA nodes that can satisfy a request: the sets within a universe of nodes that include
// certain nodes and have enough. An additional node never reduces what a set has. So a family is closed upwards within
// its universe.
type Family struct {
	Within bitset.Set // the universe: nodes that may be in a set
	Must   bitset.Set // nodes that must be in a set, because the pod has resources there already
	Loads  []Load     // what the nodes of a set must have together
	// Near are devices that are near several nodes. A load counts such a device several times, so it is only an upper
	// bound.
	Near  []Near
	Need  int64        // number of devices needed out of Near
	Hit   []bitset.Set // a set must include a node of each
	Alone bool         // only sets with one node
}

// Load is an amount that the nodes of a set must have together.
type Load struct {
	Weight []int64 // by node
	Need   int64
}

// Near is a number of devices that each of some nodes provides.
type Near struct {
	Nodes bitset.Set
	Count int64
}

// admits reports whether the set nodes is in the family.
func (f *Family) admits(nodes bitset.Set) bool {
	if !nodes.In(f.Within) || !f.Must.In(nodes) || f.Alone && nodes.Count() != 1 {
		return false
	}
	for i := range f.Loads {
		if f.Loads[i].Sum(nodes) < f.Loads[i].Need {
			return false
		}
	}
	return f.reaches(nodes)
}

// Sum returns how much the nodes have together.
func (l *Load) Sum(nodes bitset.Set) int64 {
	var n int64
	for i := range nodes.All {
		n += l.Weight[i]
	}
	return n
}

// reaches applies the rules about devices near several nodes.
func (f *Family) reaches(nodes bitset.Set) bool {
	if f.Near != nil {
		var n int64
		for i := range f.Near {
			if f.Near[i].Nodes.Meets(nodes) {
				n += f.Near[i].Count
			}
		}
		if n < f.Need {
			return false
		}
	}
	for _, h := range f.Hit {
		if !h.Meets(nodes) {
			return false
		}
	}
	return true
}

// admitsOne reports whether the set that consists of node n is in the family.
func (f *Family) admitsOne(n int) bool {
	if !f.Within.Has(n) {
		return false
	}
	for i := range f.Loads {
		if f.Loads[i].Weight[n] < f.Loads[i].Need {
			return false
		}
	}
	if must := f.Must.Count(); must > 1 || must == 1 && !f.Must.Has(n) {
		return false
	}
	for _, h := range f.Hit {
		if !h.Has(n) {
			return false
		}
	}
	return true // a load counts the devices near one node correctly
}

// IsEmpty reports whether the family has no sets.
func (f *Family) IsEmpty() bool {
	if !f.Alone {
		return f.Within.IsEmpty() || !f.admits(f.Within)
	}
	for n := range f.Within.All {
		if f.admitsOne(n) {
			return false
		}
	}
	return true
}

// narrowest returns the set with the fewest nodes, at most most of them, and the smallest as a number among equals; nil
// when there is none.
func (f *Family) narrowest(most, nodes int, steps *int) bitset.Set {
	finder := Merger{nodes: nodes, steps: *steps}
	defer func() { *steps = finder.steps }()
	for size := 1; size <= most; size++ {
		if found := finder.find([]*Family{f}, size, nil); found != nil {
			return found
		}
	}
	return nil
}

// Width returns the number of nodes of the smallest set with at most most nodes; most when there is none.
func (f *Family) Width(most, nodes int) int {
	steps := searchSteps
	return cmp.Or(f.narrowest(most, nodes, &steps).Count(), most)
}

// A Want is one request to the NUMA nodes: CPUs, memory of all kinds, or devices of one resource.
type Want struct {
	Families []*Family // any set of any family satisfies it; no family is empty, and their universes are disjoint
	Copies   int       // number of resources that upstream counts it as: memory counts once for each kind
	Width    int       // sets with this many nodes are preferred: on an empty machine fewer would not be enough
	Sockets  int       // align-by-socket: sets on this many sockets are preferred as well; 0: no such rule
}
