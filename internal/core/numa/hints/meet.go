package hints

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// meet is the goal of a set that is the intersection of one set from each of some families. Each node outside such a
// set must be left to a party that does without it. A party whose universe lacks the node does so at no cost. Any other
// party must still have enough without all the nodes left to it. So the question is whether the outside nodes can be
// shared out among the parties.
type meet struct {
	places  []int // nodes in every universe; all others are outside at no cost
	parties []party
	chosen  bitset.Set // the set so far
	steps   *int       // steps left, shared with the search
	outside []int      // scratch space of open
}

// party is a family that does without some nodes.
type party struct {
	family *Family
	rest   bitset.Set // the universe without those nodes
	slack  []int64    // by load: how much it can still do without
}

func newMeet(families []*Family, nodes int, steps *int) *meet {
	within := families[0].Within.Clone()
	for _, f := range families[1:] {
		within.Keep(f.Within)
	}
	m := &meet{places: within.Members(), chosen: bitset.New(nodes), steps: steps}
	for _, f := range families {
		p := party{family: f, rest: f.Within.Clone(), slack: make([]int64, len(f.Loads))}
		for i := range f.Loads {
			p.slack[i] = f.Loads[i].Sum(f.Within) - f.Loads[i].Need
		}
		m.parties = append(m.parties, p)
	}
	return m
}

func (m *meet) take(p int)   { m.chosen.Add(m.places[p]) }
func (m *meet) untake(p int) { m.chosen.Remove(m.places[p]) }

func (m *meet) open(hi, left int) bool {
	m.outside = m.outside[:0]
	for i, n := range m.places {
		if (i >= hi || left == 0) && !m.chosen.Has(n) {
			m.outside = append(m.outside, n)
		}
	}
	return m.share(m.outside)
}

// share reports whether nodes can be shared out among the parties, each node to one party that does without it.
func (m *meet) share(nodes []int) bool {
	if len(nodes) == 0 {
		return true
	}
	if *m.steps--; *m.steps < 0 {
		return false
	}
	for i := range m.parties {
		if m.parties[i].losesAll(nodes) {
			return true
		}
	}
	if len(m.parties) == 1 {
		return false
	}
	for i := range m.parties {
		p := &m.parties[i]
		if i > 0 && p.like(&m.parties[i-1]) || !p.lose(nodes[0]) {
			continue
		}
		shared := m.share(nodes[1:])
		p.regain(nodes[0])
		if shared {
			return true
		}
	}
	return false
}

func (p *party) like(q *party) bool { return p.family == q.family && slices.Equal(p.slack, q.slack) }

// losesAll reports whether p can do without all of nodes. It changes nothing.
func (p *party) losesAll(nodes []int) bool {
	for _, n := range nodes {
		if p.family.Must.Has(n) {
			return false
		}
	}
	for i := range p.slack {
		left := p.slack[i]
		for _, n := range nodes {
			left -= p.family.Loads[i].Weight[n]
		}
		if left < 0 {
			return false
		}
	}
	if p.family.Near == nil && p.family.Hit == nil {
		return true
	}
	for _, n := range nodes {
		p.rest.Remove(n)
	}
	reaches := p.family.reaches(p.rest)
	for _, n := range nodes {
		p.rest.Add(n)
	}
	return reaches
}

// lose makes p do without n, if it can.
func (p *party) lose(n int) bool {
	if !p.losesAll([]int{n}) {
		return false
	}
	p.rest.Remove(n)
	for i := range p.slack {
		p.slack[i] -= p.family.Loads[i].Weight[n]
	}
	return true
}

func (p *party) regain(n int) {
	p.rest.Add(n)
	for i := range p.slack {
		p.slack[i] += p.family.Loads[i].Weight[n]
	}
}
