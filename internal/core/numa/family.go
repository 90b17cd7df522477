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

// admitsOne reports whether the set of node n alone is in the family.
func (f *family) admitsOne(n int) bool {
	if !f.within.has(n) {
		return false
	}
	for i := range f.loads {
		if f.loads[i].weight[n] < f.loads[i].need {
			return false
		}
	}
	if must := f.must.count(); must > 1 || must == 1 && !f.must.has(n) {
		return false
	}
	for _, h := range f.hit {
		if !h.has(n) {
			return false
		}
	}
	return true // a load counts the devices near one node rightly
}

// isEmpty reports whether no set is in the family.
func (f *family) isEmpty() bool {
	if !f.alone {
		return f.within.isEmpty() || !f.admits(f.within)
	}
	for n := range f.within.all {
		if f.admitsOne(n) {
			return false
		}
	}
	return true
}

// narrowest returns the smallest set of up to most nodes, the smallest as a number among equals; nil when there is none.
func (f *family) narrowest(most, nodes int, steps *int) set {
	finder := merger{nodes: nodes, steps: *steps}
	defer func() { *steps = finder.steps }()
	for size := 1; size <= most; size++ {
		if found := finder.find([]*family{f}, size, nil); found != nil {
			return found
		}
	}
	return nil
}

// A want is one thing asked of the NUMA nodes: CPUs, memory of all kinds, or devices of one resource.
type want struct {
	families []*family // any set of any of them will do; none is empty, and their universes are disjoint
	copies   int       // as how many resources upstream counts it: memory once for each kind
	width    int       // sets of so many nodes are preferred: on an empty machine fewer would not do
	sockets  int       // align-by-socket: sets that touch so many sockets are preferred as well; 0: no such rule
}
