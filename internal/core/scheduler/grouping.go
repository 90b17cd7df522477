package scheduler

import (
	"math"
	"math/bits"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// A grouping divides rows into groups, so that the normalized scorers of one demand give all rows of a group the same
// score. It begins with the domains of topologies with few domains (coarse ones). Then each row to which a scorer gives
// another value is moved to another group.
type grouping struct {
	division *division
	of       []int32 // by row: its group; the same slice as division.of, which end restores
	groups   int     // how many groups there are
	// The rows that must be restored in of when the grouping ends.
	strays []stray
	moved  map[move]int32 // the group to which rows with this reason are moved
	halves []int32        // by group: the group to which moveAll moves its rows; 0: none yet
	sums   []int64        // by row: working space for sums; 0 between uses
	// coarse are the topologies of the division.
	coarse []*census.Topology

	counts []int32 // by group: how many rows it has
	scores []int64 // by group: the sum of the normalized scores
	listed []bool  // by group: it is in present
	// The groups that have rows, with one row of each and its size.
	present []int32
	members []row
	sizes   []int32
}

// stray is a row that was moved out of its group of the division.
type stray struct {
	row  row
	from int32
}

// move is the reason for which rows of a group are moved: a scorer's value. step identifies the scorer.
type move struct {
	group int32
	step  int32
	value int64
}

// A division divides rows into groups by their domains in some coarse topologies. It is kept for later demands with the
// same topologies.
type division struct {
	coarse   []*census.Topology
	spans    []int32 // by topology: Span when the division was made
	groups   int     // how many groups there are
	position int     // in cluster.moves
	of       []int32 // by row; unseen: the row has no node
	sizes    []int32 // by group
}

// unseen is the group of a row without a node.
const unseen = -1

// divisionsMax is how many divisions are kept, the most recently used. Each takes four bytes per row. Chosen: more than
// there are sets of topology keys (zones, regions and the like) by which pods are commonly spread.
const divisionsMax = 8

// coarseMax is how many domains a coarse topology may have. groupsMax limits the number of groups of a division.
// Chosen: zones, regions and machine types are coarse; racks and hosts are not.
const (
	coarseMax = 64
	groupsMax = 4096
)

// group divides the rows in m into groups for d. The caller must call end when it no longer needs them.
func (c *state) group(d *demand, m rows.Mask) *grouping {
	g := &c.masks.groups
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

// end restores the groups of the rows that were moved.
func (g *grouping) end() {
	for _, s := range g.strays {
		g.of[s.row] = s.from
	}
}

// divisionOf returns the division by some topologies, brought up to date.
func (c *state) divisionOf(coarse []*census.Topology) *division {
	list := c.masks.divisions
	i := slices.IndexFunc(list, func(v *division) bool { return v.fits(coarse) })
	if i < 0 {
		if i = len(list); i == divisionsMax {
			i--
			list = list[:i]
		}
		list = append(list, newDivision(coarse))
	}
	v := list[i]
	copy(list[1:i+1], list[:i]) // most recently used first
	list[0] = v
	c.masks.divisions = list
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

// put sets the group of row r.
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
	for _, list := range [...][]weightedCounter{d.preferredPods, d.preferredByOthers} {
		for i := range list {
			if k := list[i].counter; k.Count.Len() > 0 {
				add(k.Of.Topo)
			}
		}
	}
}

func (g *grouping) isCoarse(t *census.Topology) bool { return slices.Contains(g.coarse, t) }

// step returns the number of a new scorer's moves.
func (g *grouping) step() int32 { return int32(len(g.moved)) }

// move moves row r to another group, together with the rows of its present group that have the same value in this step.
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

// moveAll moves the rows in both masks: those of each group to one new group.
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

// count counts the rows of m in each group, and finds one row of each.
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
	g.scores = append(g.scores[:0], make([]int64, g.groups)...)
	g.present = g.present[:0]
	g.members = g.members[:0]
	g.sizes = g.sizes[:0]
	g.listed = append(g.listed[:0], make([]bool, g.groups)...)
	for _, s := range g.strays {
		g.list(s.row)
	}
	missing := 0
	for _, n := range g.counts[:common] {
		missing += int(min(n, 1))
	}
	for w := 0; missing > 0 && w < len(m); w++ {
		for word := m[w]; word != 0 && missing > 0; word &= word - 1 {
			if r := row(w<<6 | bits.TrailingZeros64(word)); g.of[r] < int32(common) && g.list(r) {
				missing--
			}
		}
	}
}

// list adds the group of row r to present, with r as its row, unless it is there already.
func (g *grouping) list(r row) (first bool) {
	group := g.of[r]
	if g.listed[group] {
		return false
	}
	g.listed[group] = true
	g.present = append(g.present, group)
	g.members = append(g.members, r)
	g.sizes = append(g.sizes, g.counts[group])
	return true
}

// noScore stands for the highest score if there are no groups.
const noScore = math.MinInt64

// common returns the number of groups of the division, and the highest score of those of them that have rows.
func (g *grouping) common() (groups int32, top int64) {
	groups, top = int32(g.division.groups), noScore
	for _, group := range g.present {
		if group < groups {
			top = max(top, g.scores[group])
		}
	}
	return groups, top
}
