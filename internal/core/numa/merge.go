package numa

// hint is where the resources of a container or a pod are to come from.
type hint struct {
	nodes     set  // nil: anywhere
	preferred bool // nothing narrower would do on an empty machine, and all resources agree
}

// merger finds the best hint for what is wanted. Its doc is the package's: How the best hint is found.
type merger struct {
	nodes     int
	distance  [][]int // by node, when the closest nodes are preferred; else nil
	socketsOf func(nodes set) int
	steps     int
}

// best returns what upstream's policies best-effort and restricted would: the best of all ways to combine one set for
// each want. impossible says that something is wanted which no set offers; such a want has no say except that nothing is
// preferred.
func (m *merger) best(wants []*want, impossible bool) hint {
	m.steps = searchSteps
	if len(wants) == 0 {
		return hint{full(m.nodes), !impossible}
	}
	if !impossible {
		if nodes := m.preferred(wants); nodes != nil {
			return hint{nodes, true}
		}
	}
	if nodes := m.compromise(wants); nodes != nil {
		return hint{nodes, false}
	}
	return hint{full(m.nodes), false}
}

// single returns what upstream's policy single-numa-node would: the first node that every want prefers.
func (m *merger) single(wants []*want, impossible bool) hint {
	if impossible || len(wants) == 0 {
		return hint{nil, !impossible}
	}
	for n := range m.nodes {
		if !allPrefer(wants, n) {
			continue
		}
		if m.nodes == 1 {
			return hint{nil, true} // all nodes: upstream makes that anywhere
		}
		return hint{setOf(m.nodes, n), true}
	}
	return hint{nil, false}
}

func allPrefer(wants []*want, n int) bool {
	for _, w := range wants {
		admitted := false
		for _, f := range w.families {
			admitted = admitted || f.admitsOne(n)
		}
		if w.width != 1 || !admitted {
			return false
		}
	}
	return true
}

// preferred returns the best set that every want prefers, or nil.
func (m *merger) preferred(wants []*want) set {
	size, fixed, bySocket := 0, false, (*want)(nil)
	for _, w := range wants {
		switch {
		case w.sockets > 0:
			bySocket = w
		case fixed && w.width != size:
			return nil
		default:
			size, fixed = w.width, true
		}
	}
	if fixed {
		return m.preferredOf(wants, size, bySocket)
	}
	for size := bySocket.width; size <= m.nodes; size++ {
		if nodes := m.preferredOf(wants, size, bySocket); nodes != nil {
			return nodes
		}
	}
	return nil
}

func (m *merger) preferredOf(wants []*want, size int, bySocket *want) set {
	if bySocket != nil && bySocket.width == size {
		bySocket = nil
	}
	var best set
	for families := range combinations(wants, false) {
		if nodes := m.find(families, size, bySocket); nodes != nil && (best == nil || m.less(nodes, best)) {
			best = nodes
		}
	}
	return best
}

// find returns the best set of size nodes that is in all of families, or nil. With bySocket it touches as many sockets as
// that wants.
func (m *merger) find(families []*family, size int, bySocket *want) set {
	if size == 1 && bySocket == nil {
		return m.findOne(families)
	}
	r := newReach(families, size, m.nodes)
	if r == nil || anyAlone(families) {
		return nil
	}
	s := search{places: r.places, distance: m.distance, goal: r, steps: &m.steps}
	if bySocket != nil {
		s.goal = &socketGoal{r, m.socketsOf, bySocket.sockets}
	}
	if found := s.run(size, m.nodes); found != nil || m.steps >= 0 || r.mix == nil || bySocket != nil {
		return found
	}
	return r.mix.some // better than none
}

// findOne is find for one node.
func (m *merger) findOne(families []*family) set {
	best := -1
	for n := range m.nodes {
		admitted := true
		for _, f := range families {
			admitted = admitted && f.admitsOne(n)
		}
		if admitted && (best < 0 || m.distance != nil && m.distance[n][n] < m.distance[best][best]) {
			best = n
		}
	}
	if best < 0 {
		return nil
	}
	return setOf(m.nodes, best)
}

// socketGoal adds to a reach that the set touches so many sockets.
type socketGoal struct {
	*reach
	socketsOf func(set) int
	want      int
}

func (g *socketGoal) open(hi, left int) bool {
	return g.reach.open(hi, left) && (left > 0 || g.socketsOf(g.chosen) == g.want)
}

// combinations yields every choice of one family for each want; with copies, as often as the want counts.
func combinations(wants []*want, copies bool) func(yield func([]*family) bool) {
	return func(yield func([]*family) bool) {
		var chosen []*family
		var choose func(i int) bool
		choose = func(i int) bool {
			if i == len(wants) {
				return yield(chosen)
			}
			have := len(chosen)
			for _, f := range wants[i].families {
				for range wants[i].copies {
					if chosen = append(chosen, f); !copies {
						break
					}
				}
				if !choose(i + 1) {
					return false
				}
				chosen = chosen[:have]
			}
			return true
		}
		choose(0)
	}
}

func anyAlone(families []*family) bool {
	for _, f := range families {
		if f.alone {
			return true
		}
	}
	return false
}

// compromise returns the best intersection of sets, one for each want, when none is preferred by all; nil when all
// intersections are empty.
func (m *merger) compromise(wants []*want) set {
	aim := 0
	for _, w := range wants {
		aim = max(aim, m.narrowest(w))
	}
	var best set
	for families := range combinations(wants, true) {
		if nodes := m.intersection(families, aim); nodes != nil && (best == nil || m.betterCompromise(nodes, best, aim)) {
			best = nodes
		}
	}
	return best
}

// narrowest returns the size of the smallest set of w.
func (m *merger) narrowest(w *want) int {
	smallest := 0
	for _, f := range w.families {
		most := m.nodes
		if f.alone {
			most = 1
		}
		if n := f.narrowest(most, m.nodes, &m.steps).count(); n > 0 && (smallest == 0 || n < smallest) {
			smallest = n
		}
	}
	return smallest
}

// intersection returns the best intersection of one set from each of families, none of which is empty; nil when all are empty.
func (m *merger) intersection(families []*family, aim int) set {
	if anyAlone(families) {
		return m.aloneIn(families)
	}
	goal := newMeet(families, m.nodes, &m.steps)
	for size := min(aim, len(goal.places)); size > 0 && size <= len(goal.places); size++ {
		s := search{places: goal.places, distance: m.distance, goal: goal, steps: &m.steps}
		if nodes := s.run(size, m.nodes); nodes != nil {
			return nodes
		}
		goal.chosen.clear()
	}
	return nil
}

// aloneIn returns the best single node: one of the sets is a single node, and any of the other families has a set around it
// if the node is in its universe.
func (m *merger) aloneIn(families []*family) set {
	around := make([]*family, len(families))
	for i, f := range families {
		if around[i] = f; !f.alone {
			around[i] = &family{within: f.within, must: newSet(m.nodes)}
		}
	}
	return m.findOne(around)
}

// betterCompromise prefers sets of aim nodes, then smaller ones, the larger the better, then larger ones, the smaller the
// better: as near to aim as can be, and rather below than above.
func (m *merger) betterCompromise(a, b set, aim int) bool {
	ca, cb := a.count(), b.count()
	if ca == cb {
		return m.less(a, b)
	}
	if (ca <= aim) != (cb <= aim) {
		return ca <= aim
	}
	return (ca > cb) == (ca <= aim)
}

// less orders sets: the smaller, then the closer if distances count, then the smaller as a number.
func (m *merger) less(a, b set) bool {
	if ca, cb := a.count(), b.count(); ca != cb {
		return ca < cb
	}
	if m.distance != nil {
		if da, db := m.spread(a), m.spread(b); da != db {
			return da < db
		}
	}
	return a.compare(b) < 0
}

// spread sums the distances within nodes, to themselves included.
func (m *merger) spread(nodes set) int {
	sum := 0
	for a := range nodes.all {
		for b := range nodes.all {
			sum += m.distance[a][b]
		}
	}
	return sum
}
