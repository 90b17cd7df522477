package placement

import "math/bits"

// A grouping puts rows into groups that no normalized scorer tells apart for one demand. It begins with the domains of
// coarse topologies, which have few; then every row is moved of which a scorer says something out of the ordinary.
type grouping struct {
	of     []int32 // by row
	groups int
	moved  map[move]int32
	halves []int32 // by group: where its rows of some set go; 0: nowhere yet
	sums   []int64 // by row, while they are added up; else 0

	coarse []*topology

	contenders []contender // by group
	// Of the groups that have rows: the best one, how many there are, and the score of the best.
	best   []row
	sizes  []int32
	scores []int64
}

// move says where rows of a group go of which a scorer says value. step tells scorers apart.
type move struct {
	group int32
	step  int32
	value int64
}

// coarseMax is up to how many domains a topology is coarse; groupsMax bounds the groups that coarse topologies make
// together. Chosen: zones, regions and kinds of machines are coarse, racks and hosts are not.
const (
	coarseMax = 64
	groupsMax = 4096
)

// group puts the rows in m into groups for d.
func (c *cluster) group(d *demand, m mask) *grouping {
	g := &c.survey.groups
	g.begin(c, d)
	for _, s := range d.profile.scorers {
		if s.split != nil && s.applies(d) {
			s.split(c, d, m, g)
		}
	}
	return g
}

func (g *grouping) begin(c *cluster, d *demand) {
	n := len(c.name)
	if len(g.of) < n {
		g.of, g.sums = make([]int32, n), make([]int64, n)
	}
	if g.moved == nil || len(g.moved) > groupsMax {
		g.moved = map[move]int32{}
	}
	clear(g.moved)
	g.groups, g.coarse = 1, g.coarse[:0]
	g.divide(d)
	if len(g.coarse) == 0 {
		clear(g.of[:n])
		return
	}
	for i, t := range g.coarse {
		of, domain := g.of[:n], t.domain[:min(n, len(t.domain))]
		if i == 0 {
			for r, x := range domain {
				of[r] = x + 1
			}
			clear(of[len(domain):])
			continue
		}
		span := int32(len(t.rows) + 1)
		for r := range of {
			of[r] *= span
		}
		for r, x := range domain {
			of[r] += x + 1
		}
	}
}

// divide finds the coarse topologies that matter to the scorers of d.
func (g *grouping) divide(d *demand) {
	add := func(t *topology) {
		for _, known := range g.coarse {
			if known == t {
				return
			}
		}
		if span := len(t.rows) + 1; t.domains() <= coarseMax && g.groups*span <= groupsMax {
			g.coarse, g.groups = append(g.coarse, t), g.groups*span
		}
	}
	for i := range d.soft {
		add(d.soft[i].topo)
	}
	for _, list := range [...][]weightedCounter{d.drawn, d.wantedBy} {
		for i := range list {
			if k := list[i].counter; k.count.len() > 0 {
				add(k.of.topo)
			}
		}
	}
}

func (g *grouping) isCoarse(t *topology) bool {
	for _, known := range g.coarse {
		if known == t {
			return true
		}
	}
	return false
}

// step begins to move rows for another reason.
func (g *grouping) step() int32 { return int32(len(g.moved)) }

// move puts row r with the rows of its group of which the same was said in this step.
func (g *grouping) move(step int32, r row, value int64) {
	key := move{g.of[r], step, value}
	to, known := g.moved[key]
	if !known {
		to = int32(g.groups)
		g.groups++
		g.moved[key] = to
	}
	g.of[r] = to
}

// moveAll moves the rows in both masks, each with those of its group.
func (g *grouping) moveAll(m, some mask) {
	if !m.meets(some) {
		return
	}
	for len(g.halves) < g.groups {
		g.halves = append(g.halves, 0)
	}
	halves := g.halves[:g.groups]
	clear(halves)
	m.both(some, func(r row) {
		to := &halves[g.of[r]]
		if *to == 0 {
			*to = int32(g.groups)
			g.groups++
		}
		g.of[r] = *to
	})
}

// contender is the best row of a group so far.
type contender struct {
	score int64
	after uint64 // where on the ring row lies, from the pod's turn on
	row   row
	size  int32 // of the group
}

// bestOfGroups finds the best row of each group that has any in m, by the scores that look at a row alone and, of
// equal ones, by place on the ring; with the scores and sizes of these groups.
func (c *cluster) bestOfGroups(d *demand, m mask, g *grouping, mine uint64) []row {
	if cap(g.contenders) < g.groups {
		g.contenders = make([]contender, g.groups, 2*g.groups)
	}
	best := g.contenders[:g.groups]
	clear(best)
	of, ring := g.of[:len(c.name)], c.ring
	f := c.fitFor(d)
	plain := f != nil && f.high == nil && m.within(f.rows)
	for w, word := range m {
		for ; word != 0; word &= word - 1 {
			r := w<<6 | bits.TrailingZeros64(word)
			var score int64
			switch {
			case plain:
				score = int64(f.low[r])
			case f != nil && f.rows.has(row(r)):
				score = f.score(row(r))
			default:
				score = c.scoreAlone(d, row(r)) // a profile without the rule, or with weights beyond it
			}
			b := &best[of[r]]
			if b.size++; b.size > 1 && score < b.score {
				continue
			}
			after := ring[r] - mine
			if b.size == 1 || score > b.score || after < b.after || after == b.after && c.name[r] < c.name[b.row] {
				b.row, b.score, b.after = row(r), score, after
			}
		}
	}
	g.best, g.sizes, g.scores = g.best[:0], g.sizes[:0], g.scores[:0]
	for i := range best {
		if b := &best[i]; b.size > 0 {
			g.best, g.sizes, g.scores = append(g.best, b.row), append(g.sizes, b.size), append(g.scores, b.score)
		}
	}
	return g.best
}
