package hints

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// Hint says from which nodes the resources of a container or a pod should be taken.
type Hint struct {
	Nodes     bitset.Set // nil: any
	Preferred bool       // fewer nodes would not be enough even on an empty machine, and all resources agree
}

// Merger finds the best hint for wants. The package doc explains how.
type Merger struct {
	// Number of NUMA nodes.
	nodes     int
	Distance  [][]int                    // by node and node, when the closest nodes are preferred; otherwise nil
	SocketsOf func(nodes bitset.Set) int // number of sockets that nodes belong to; called only when a Want has Sockets
	steps     int                        // search steps left; see searchSteps
}

// NewMerger returns a Merger for that many nodes. Distances do not count until Distance is set.
func NewMerger(nodes int) *Merger { return &Merger{nodes: nodes, steps: searchSteps} }

// Merge returns the best hint for wants, and whether policy p admits a pod with it. p must not be PolicyNone.
// impossible: in addition to wants, something is requested that no set of nodes has.
func (m *Merger) Merge(p Policy, wants []*Want, impossible bool) (h Hint, admitted bool) {
	switch p {
	case PolicySingleNUMANode:
		h = m.single(wants, impossible)
		return h, h.Preferred
	case PolicyRestricted:
		h = m.best(wants, impossible)
		return h, h.Preferred
	}
	return m.best(wants, impossible), true
}

// best returns the hint of upstream's policies best-effort and restricted: the best of all combinations of one set for
// each want. impossible: something is requested that no set has. It has no influence, except that no result is
// preferred.
func (m *Merger) best(wants []*Want, impossible bool) Hint {
	m.steps = searchSteps
	if len(wants) == 0 {
		return Hint{bitset.Full(m.nodes), !impossible}
	}
	if !impossible {
		if nodes := m.preferred(wants); nodes != nil {
			return Hint{nodes, true}
		}
	}
	if nodes := m.compromise(wants); nodes != nil {
		return Hint{nodes, false}
	}
	return Hint{bitset.Full(m.nodes), false}
}

// single returns the hint of upstream's policy single-numa-node: the first node that every want prefers.
func (m *Merger) single(wants []*Want, impossible bool) Hint {
	if impossible || len(wants) == 0 {
		return Hint{nil, !impossible}
	}
	for n := range m.nodes {
		if !allPrefer(wants, n) {
			continue
		}
		if m.nodes == 1 {
			return Hint{nil, true} // upstream turns a hint with all nodes into one with any
		}
		return Hint{bitset.Of(m.nodes, n), true}
	}
	return Hint{nil, false}
}

func allPrefer(wants []*Want, n int) bool {
	for _, w := range wants {
		admitted := false
		for _, f := range w.Families {
			admitted = admitted || f.admitsOne(n)
		}
		if w.Width != 1 || !admitted {
			return false
		}
	}
	return true
}

// preferred returns the best set that every want prefers, or nil.
func (m *Merger) preferred(wants []*Want) bitset.Set {
	size := 0
	fixed := false
	bySocket := (*Want)(nil)
	for _, w := range wants {
		switch {
		case w.Sockets > 0:
			bySocket = w
		case fixed && w.Width != size:
			return nil
		default:
			size, fixed = w.Width, true
		}
	}
	if fixed {
		return m.preferredOf(wants, size, bySocket)
	}
	for size := bySocket.Width; size <= m.nodes; size++ {
		if nodes := m.preferredOf(wants, size, bySocket); nodes != nil {
			return nodes
		}
	}
	return nil
}

func (m *Merger) preferredOf(wants []*Want, size int, bySocket *Want) bitset.Set {
	if bySocket != nil && bySocket.Width == size {
		bySocket = nil
	}
	var best bitset.Set
	for families := range combinations(wants, false) {
		if nodes := m.find(families, size, bySocket); nodes != nil && (best == nil || m.less(nodes, best)) {
			best = nodes
		}
	}
	return best
}

// find returns the best set of size nodes that is in all of families, or nil. With bySocket, the set must be on as many
// sockets as that want says.
func (m *Merger) find(families []*Family, size int, bySocket *Want) bitset.Set {
	if size == 1 && bySocket == nil {
		return m.findOne(families)
	}
	r := newReach(families, size, m.nodes)
	if r == nil || anyAlone(families) {
		return nil
	}
	s := search{places: r.places, distance: m.Distance, goal: r, steps: &m.steps}
	if bySocket != nil {
		s.goal = &socketGoal{r, m.SocketsOf, bySocket.Sockets}
	}
	if found := s.run(size, m.nodes); found != nil || m.steps >= 0 || r.mix == nil || bySocket != nil {
		return found
	}
	return r.mix.some // not the best, but better than none
}

// findOne is find for size 1.
func (m *Merger) findOne(families []*Family) bitset.Set {
	best := -1
	for n := range m.nodes {
		admitted := true
		for _, f := range families {
			admitted = admitted && f.admitsOne(n)
		}
		if admitted && (best < 0 || m.Distance != nil && m.Distance[n][n] < m.Distance[best][best]) {
			best = n
		}
	}
	if best < 0 {
		return nil
	}
	return bitset.Of(m.nodes, best)
}

// socketGoal adds to a reach the condition that the set is on a given number of sockets.
type socketGoal struct {
	*reach
	socketsOf func(bitset.Set) int
	want      int
}

func (g *socketGoal) open(hi, left int) bool {
	return g.reach.open(hi, left) && (left > 0 || g.socketsOf(g.chosen) == g.want)
}

// combinations yields every choice of one family for each want. With copies, a family appears as often as its want
// counts.
func combinations(wants []*Want, copies bool) func(yield func([]*Family) bool) {
	return func(yield func([]*Family) bool) {
		var chosen []*Family
		var choose func(i int) bool
		choose = func(i int) bool {
			if i == len(wants) {
				return yield(chosen)
			}
			have := len(chosen)
			for _, f := range wants[i].Families {
				for range wants[i].Copies {
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

func anyAlone(families []*Family) bool {
	for _, f := range families {
		if f.Alone {
			return true
		}
	}
	return false
}

// compromise returns the best intersection of sets, one for each want, when no set is preferred by all; nil when all
// intersections are empty.
func (m *Merger) compromise(wants []*Want) bitset.Set {
	aim := 0
	for _, w := range wants {
		aim = max(aim, m.narrowest(w))
	}
	var best bitset.Set
	for families := range combinations(wants, true) {
		if nodes := m.intersection(families, aim); nodes != nil && (best == nil || m.betterCompromise(nodes, best, aim)) {
			best = nodes
		}
	}
	return best
}

// narrowest returns the number of nodes of the smallest set of w.
func (m *Merger) narrowest(w *Want) int {
	smallest := 0
	for _, f := range w.Families {
		most := m.nodes
		if f.Alone {
			most = 1
		}
		if n := f.narrowest(most, m.nodes, &m.steps).Count(); n > 0 && (smallest == 0 || n < smallest) {
			smallest = n
		}
	}
	return smallest
}

// intersection returns the best intersection of one set from each of families, which must not be empty; nil when all
// intersections are empty.
func (m *Merger) intersection(families []*Family, aim int) bitset.Set {
	if anyAlone(families) {
		return m.aloneIn(families)
	}
	goal := newMeet(families, m.nodes, &m.steps)
	for size := min(aim, len(goal.places)); size > 0 && size <= len(goal.places); size++ {
		s := search{places: goal.places, distance: m.Distance, goal: goal, steps: &m.steps}
		if nodes := s.run(size, m.nodes); nodes != nil {
			return nodes
		}
		goal.chosen.Clear()
	}
	return nil
}

// aloneIn returns the best single node for families of which one has only single nodes. Each other family has a set
// around a node if the node is in its universe.
func (m *Merger) aloneIn(families []*Family) bitset.Set {
	around := make([]*Family, len(families))
	for i, f := range families {
		if around[i] = f; !f.Alone {
			around[i] = &Family{Within: f.Within, Must: bitset.New(m.nodes)}
		}
	}
	return m.findOne(around)
}

// betterCompromise reports whether a is nearer to aim nodes than b: first sets of at most aim nodes, the larger the
// better, then larger sets, the smaller the better.
func (m *Merger) betterCompromise(a, b bitset.Set, aim int) bool {
	ca, cb := a.Count(), b.Count()
	if ca == cb {
		return m.less(a, b)
	}
	if (ca <= aim) != (cb <= aim) {
		return ca <= aim
	}
	return (ca > cb) == (ca <= aim)
}

// less orders sets: by number of nodes, then by distances if these count, then as a number.
func (m *Merger) less(a, b bitset.Set) bool {
	if ca, cb := a.Count(), b.Count(); ca != cb {
		return ca < cb
	}
	if m.Distance != nil {
		if da, db := m.spread(a), m.spread(b); da != db {
			return da < db
		}
	}
	return a.Compare(b) < 0
}

// spread returns the sum of the distances between all nodes, and of each node to itself.
func (m *Merger) spread(nodes bitset.Set) int {
	sum := 0
	for a := range nodes.All {
		for b := range nodes.All {
			sum += m.Distance[a][b]
		}
	}
	return sum
}

// NarrowestAround returns the smallest set in families that includes all nodes of around, and whether it has width
// nodes.
func (m *Merger) NarrowestAround(families []*Family, around bitset.Set, width int) (bitset.Set, bool) {
	var best bitset.Set
	for _, f := range families {
		most := m.nodes
		if f.Alone {
			most = 1
		}
		within := *f
		within.Must = f.Must.Clone()
		within.Must.Unite(around)
		if nodes := within.narrowest(most, m.nodes, &m.steps); nodes != nil && (best == nil || m.less(nodes, best)) {
			best = nodes
		}
	}
	return best, best != nil && best.Count() == width
}
