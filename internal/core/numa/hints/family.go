package hints

import (
	"cmp"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// A Family is the sets of NUMA nodes from which something can be had: those within a universe of nodes that include
// certain nodes and hold enough. What a node adds can only help, so a family is closed upwards within its universe.
type Family struct {
	Within bitset.Set   // nodes that may take part
	Must   bitset.Set   // nodes that have to: the pod holds something there already
	Loads  []Load       // what the nodes of a set must hold together
	Near   []Near       // devices near several nodes. Their load counts some twice: it only bounds what a set can reach
	Need   int64        // of near devices
	Hit    []bitset.Set // a set must have a node of each
	Alone  bool         // only sets of one node
}

// Load is an amount that the nodes of a set must hold together.
type Load struct {
	Weight []int64 // by node
	Need   int64
}

// Near is a number of devices that any of some nodes brings.
type Near struct {
	Nodes bitset.Set
	Count int64
}

// admits reports whether nodes is in the family.
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

func (l *Load) Sum(nodes bitset.Set) int64 {
	var n int64
	for i := range nodes.All {
		n += l.Weight[i]
	}
	return n
}

// reaches applies the rules on devices near several nodes.
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

// admitsOne reports whether the set of node n alone is in the family.
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
	return true // a load counts the devices near one node rightly
}

// IsEmpty reports whether no set is in the family.
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

// narrowest returns the smallest set of up to most nodes, the smallest as a number among equals; nil when there is
// none.
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

// Width returns how many nodes the smallest set of up to most nodes has; most when there is none.
func (f *Family) Width(most, nodes int) int {
	steps := searchSteps
	return cmp.Or(f.narrowest(most, nodes, &steps).Count(), most)
}

// A Want is one thing asked of the NUMA nodes: CPUs, memory of all kinds, or devices of one resource.
type Want struct {
	Families []*Family // any set of any of them will do; none is empty, and their universes are disjoint
	Copies   int       // as how many resources upstream counts it: memory once for each kind
	Width    int       // sets of so many nodes are preferred: on an empty machine fewer would not do
	Sockets  int       // align-by-socket: sets that touch so many sockets are preferred as well; 0: no such rule
}
