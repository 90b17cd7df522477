package numa

// A family is the sets of NUMA nodes from which something can be had: those within a universe of nodes that include
// certain nodes and hold enough. What a node adds can only help, so a family is closed upwards within its universe.
type family struct {
	within set    // nodes that may take part
	must   set    // nodes that have to: the pod holds something there already
	loads  []load // what the nodes of a set must hold together
	near   []near // devices near several nodes. Their load counts some of them twice: it only bounds what a set can reach
	need   int64  // of near devices
	hit    []set  // a set must have a node of each
	alone  bool   // only sets of one node
}

// load is an amount that the nodes of a set must hold together.
type load struct {
	weight []int64 // by node
	need   int64
}

// near is a number of devices that any of some nodes brings.
type near struct {
	nodes set
	count int64
}

// admits reports whether nodes is in the family.
func (f *family) admits(nodes set) bool {
	if !nodes.in(f.within) || !f.must.in(nodes) || f.alone && nodes.count() != 1 {
		return false
	}
	for i := range f.loads {
		if f.loads[i].sum(nodes) < f.loads[i].need {
			return false
		}
	}
	return f.reaches(nodes)
}

func (l *load) sum(nodes set) int64 {
	var n int64
	for i := range nodes.all {
		n += l.weight[i]
	}
	return n
}

// reaches applies the rules on devices near several nodes.
func (f *family) reaches(nodes set) bool {
	if f.near != nil {
		var n int64
		for i := range f.near {
			if f.near[i].nodes.meets(nodes) {
				n += f.near[i].count
			}
		}
		if n < f.need {
			return false
		}
	}
	for _, h := range f.hit {
		if !h.meets(nodes) {
			return false
		}
	}
	return true
}

// isEmpty reports whether no set is in the family.
func (f *family) isEmpty() bool {
	if !f.alone {
		return f.within.isEmpty() || !f.admits(f.within)
	}
	for i := range f.within.all {
		if f.admits(setOf(len(f.within)*64, i)) {
			return false
		}
	}
	return true
}

// narrowest returns the size of the smallest set of up to most nodes, 0 when there is none.
func (f *family) narrowest(most, nodes int, steps *int) int {
	one := []*family{f}
	for size := 1; size <= most; size++ {
		r := newReach(one, size, nodes)
		if r == nil {
			continue
		}
		s := search{places: r.places, goal: r, steps: steps}
		if _, ok := s.run(size, nodes); ok {
			return size
		}
	}
	return 0
}

// A want is one thing asked of the NUMA nodes: CPUs, memory of all kinds, or devices of one resource.
type want struct {
	families []*family // any set of any of them will do; none is empty, and their universes are disjoint
	copies   int       // as how many resources upstream counts it: memory once for each kind
	width    int       // sets of so many nodes are preferred: on an empty machine fewer would not do
	sockets  int       // align-by-socket: sets that touch so many sockets are preferred as well; 0: no such rule
}
