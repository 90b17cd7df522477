package scheduler

import (
	"math"
	"math/bits"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// A grouping puts rows into groups that no normalized scorer tells apart for one demand. It begins with the domains of
// coarse topologies, which have few; then every row is moved of which a scorer says something out of the ordinary.
type grouping struct {
	division *division
	of       []int32 // by row; the division's, but for strays
	groups   int
	strays   []stray
	moved    map[move]int32
	halves   []int32 // by group: where its rows of some set go; 0: nowhere yet
	sums     []int64 // by row, while they are added up; else 0
	coarse   []*census.Topology

	counts []int32 // by group: its rows
	worth  []int64 // by group: what the normalized scorers say of it
	found  []bool  // by group: it is in present
	// The groups that have rows, with a row of each and their sizes.
	present []int32
	members []row
	sizes   []int32
}

// stray is a row that was moved out of its group in the division.
type stray struct {
	row  row
	from int32
}

// move says where rows of a group go of which a scorer says value. step tells scorers apart.
type move struct {
	group int32
	step  int32
	value int64
}

// A division puts rows into groups by their domains in some coarse topologies. It is kept for the next demand that
// these matter to.
type division struct {
	coarse   []*census.Topology
	spans    []int32 // of each, how many domains it had numbers for, and one
	groups   int
	position int     // in cluster.moves
	of       []int32 // by row; unseen: it is not seen
	sizes    []int32 // by group
}

const unseen = -1

// divisionsMax is how many divisions are kept, those used last; each takes four bytes a row. Chosen: more than there
// are sets of zones, regions and the like by which pods are commonly spread.
const divisionsMax = 8

// coarseMax is up to how many domains a topology is coarse; groupsMax bounds the groups that coarse topologies make
// together. Chosen: zones, regions and kinds of machines are coarse, racks and hosts are not.
const (
	coarseMax = 64
	groupsMax = 4096
)

// group puts the rows in m into groups for d, until the grouping is ended.
func (c *state) group(d *demand, m rows.Mask) *grouping {
	g := &c.survey.groups
	g.begin(c, d)
	for _, s := range d.profile.scorers {
		if s.around != nil && s.applies(d) {
			s.around.split(c, d, m, g)
		}
	}
	return g
}

func (g *grouping) begin(c *state, d *demand) {
	if n := len(c.name); len(g.sums) < n {
		g.sums = make([]int64, n)
	}
	if g.moved == nil || len(g.moved) > groupsMax {
		g.moved = map[move]int32{}
	}
	clear(g.moved)
	g.coarse, g.strays = g.coarse[:0], g.strays[:0]
	g.divide(d)
	g.division = c.divisionOf(g.coarse)
	g.of, g.groups = g.division.of, g.division.groups
}

// end puts the rows back that were moved.
func (g *grouping) end() {
	for _, s := range g.strays {
		g.of[s.row] = s.from
	}
}

// divisionOf returns the division by some topologies, as rows are now.
func (c *state) divisionOf(coarse []*census.Topology) *division {
	list := c.survey.divisions
	i := slices.IndexFunc(list, func(v *division) bool { return v.fits(coarse) })
	if i < 0 {
		if i = len(list); i == divisionsMax {
			i--
			list = list[:i]
		}
		list = append(list, newDivision(coarse))
	}
	v := list[i]
	copy(list[1:i+1], list[:i]) // the one used last comes first
	list[0] = v
	c.survey.divisions = list
	for len(v.of) < len(c.name) {
		v.of = append(v.of, unseen)
	}
	v.position = c.catchUp(&c.moves, v.position, func(r row) { v.put(c, r) })
	return v
}

func newDivision(coarse []*census.Topology) *division {
	v := &division{coarse: slices.Clone(coarse), groups: 1, position: -1}
	for _, t := range coarse {
		v.spans = append(v.spans, t.Span())
		v.groups *= int(t.Span())
	}
	v.sizes = make([]int32, v.groups)
	return v
}

func (v *division) fits(coarse []*census.Topology) bool {
	if !slices.Equal(v.coarse, coarse) {
		return false
	}
	for i, t := range coarse {
		if v.spans[i] != t.Span() {
			return false
		}
	}
	return true
}

// put puts row r where it belongs.
func (v *division) put(c *state, r row) {
	was, now := v.of[r], int32(unseen)
	if c.seen[r] {
		now = 0
		for i, t := range v.coarse {
			now = now*v.spans[i] + t.At(r) + 1
		}
		v.sizes[now]++
	}
	if was != unseen {
		v.sizes[was]--
	}
	v.of[r] = now
}

// divide finds the coarse topologies that matter to the scorers of d.
func (g *grouping) divide(d *demand) {
	groups := 1
	add := func(t *census.Topology) {
		span := int(t.Span())
		if t.Domains() > 0 && !g.isCoarse(t) && t.Domains() <= coarseMax && groups*span <= groupsMax {
			g.coarse, groups = append(g.coarse, t), groups*span
		}
	}
	for i := range d.soft {
		add(d.soft[i].topo)
	}
	for _, list := range [...][]weightedCounter{d.drawn, d.wantedBy} {
		for i := range list {
			if k := list[i].counter; k.Count.Len() > 0 {
				add(k.Of.Topo)
			}
		}
	}
}

func (g *grouping) isCoarse(t *census.Topology) bool { return slices.Contains(g.coarse, t) }

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
	g.send(r, to)
}

func (g *grouping) send(r row, to int32) {
	if from := g.of[r]; from < int32(g.division.groups) {
		g.strays = append(g.strays, stray{r, from})
	}
	g.of[r] = to
}

// moveAll moves the rows in both masks, each with those of its group.
func (g *grouping) moveAll(m, some rows.Mask) {
	if !m.Meets(some) {
		return
	}
	for len(g.halves) < g.groups {
		g.halves = append(g.halves, 0)
	}
	halves := g.halves[:g.groups]
	clear(halves)
	m.Both(some, func(r row) {
		to := &halves[g.of[r]]
		if *to == 0 {
			*to = int32(g.groups)
			g.groups++
		}
		g.send(r, *to)
	})
}

// count counts the rows of m in each group, and finds one of each.
func (g *grouping) count(c *state, m rows.Mask) {
	common := g.division.groups
	g.counts = append(append(g.counts[:0], g.division.sizes...), make([]int32, g.groups-common)...)
	if 2*m.Count() < c.seenCount {
		clear(g.counts)
		m.Each(func(r row) { g.counts[g.of[r]]++ })
	} else {
		for w, seen := range c.marks.seen {
			for out := seen &^ m[w]; out != 0; out &= out - 1 {
				g.counts[g.of[w<<6|bits.TrailingZeros64(out)]]--
			}
		}
		for _, s := range g.strays {
			g.counts[s.from]--
			g.counts[g.of[s.row]]++
		}
	}
	g.worth = append(g.worth[:0], make([]int64, g.groups)...)
	g.present, g.members, g.sizes = g.present[:0], g.members[:0], g.sizes[:0]
	g.found = append(g.found[:0], make([]bool, g.groups)...)
	for _, s := range g.strays {
		g.meet(s.row)
	}
	missing := 0
	for _, n := range g.counts[:common] {
		missing += int(min(n, 1))
	}
	for w := 0; missing > 0 && w < len(m); w++ {
		for word := m[w]; word != 0 && missing > 0; word &= word - 1 {
			if r := row(w<<6 | bits.TrailingZeros64(word)); g.of[r] < int32(common) && g.meet(r) {
				missing--
			}
		}
	}
}

// meet lists the group of row r unless it is known already.
func (g *grouping) meet(r row) (first bool) {
	group := g.of[r]
	if g.found[group] {
		return false
	}
	g.found[group] = true
	g.present, g.members, g.sizes = append(g.present, group), append(g.members, r), append(g.sizes, g.counts[group])
	return true
}

// noWorth is what groups are worth at most when there are none.
const noWorth = math.MinInt64

// common is the number of groups in the division, and the most that one of them is worth that has rows.
func (g *grouping) common() (groups int32, top int64) {
	groups, top = int32(g.division.groups), noWorth
	for _, group := range g.present {
		if group < groups {
			top = max(top, g.worth[group])
		}
	}
	return groups, top
}
