package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// tablesMin is the number of rows from which anything but asking every rule about every row pays. Chosen: below it,
// that takes less than 20 microseconds.
const tablesMin = 64

// tablesMax is how many demands have tables, at 24 bytes a row each. Chosen: kinds that come one after another in long
// runs, and a few at a time; more in turn are better surveyed.
const tablesMax = 16

// What answers cost, in nanoseconds: a survey surveyCost and for each row a part (surveyShare) of a nanosecond, tables
// tableBuildCost for each row when they are built and tableRowCost for each that has changed when they are used again.
// Measured on 2026-11-23 by BenchmarkRuns and BenchmarkTurns, for pods with the default spread: a survey takes 28
// microseconds on 5,000 nodes and 50 on 50,000, tables 2.3 and 35 milliseconds. Wrong by a factor, they make some pods
// as much dearer.
const (
	surveyCost     = 25000
	surveyShare    = 2
	tableBuildCost = 600
	tableRowCost   = 1000
)

func surveyTime(rows int) int { return surveyCost + rows/surveyShare }

// tablesAfter is after how many surveys tables are built that cost as much: whoever has hired for the price of a
// purchase buys. However many pods of a kind come, they cost at most twice what the better way costs, that is known
// only when no more come.
func tablesAfter(rows int) int { return rows * tableBuildCost / surveyTime(rows) }

// tablesPay reports whether tables are the better way to ask about d now: it was asked about so often lately, with so
// few changes between, that correcting them costs less than a survey.
func (c *cluster) tablesPay(d *demand) bool {
	rows := len(c.name)
	since := c.changes.End() - d.asked
	d.asked = c.changes.End()
	if d.tables != nil && len(d.tables.groups) > 64+rows/256 {
		c.dropTables(d)
		d.often = -8 * tablesAfter(rows) // too much is different around it
	}
	if since*tableRowCost > surveyTime(rows) {
		c.dropTables(d)
		d.often = min(d.often, 0)
		return false
	}
	d.often++
	return d.often >= tablesAfter(rows)
}

// tables keep what the rules said of every row to one demand, and correct it only where a row changed. They are for the
// pods of which many alike come one after another; see tablesPay.
//
// Rows are in groups: rows of one group get the same answer from every rule that looks around, whatever the counters
// say at the moment, and the same raw score from every scorer that is normalized. So such a rule is asked about one row
// of each group, at decision time, against the live counters. What rules that look at nothing but the row said is kept:
// a row that one of them rejected is in no group but counted under its reasons, and in a group rows are ordered by the
// sum of the other scores.
//
// The answers equal those of choosePlain; TestTablesAgree holds them to it.
type tables struct {
	position int    // in the change log
	epoch    uint64 // see cluster.epoch

	of     []int32  // by row: its group; nowhere; or, less than that, the rejection nowhere-1-of
	local  []int32  // by row in a group: the weighted sum of scores that look at the row alone
	ring   []uint64 // by row: cluster.ring as it was when the row was put where it is
	order  treap
	groups []group
	index  map[string]int32 // of groups, by key
	empty  int              // how many groups have no rows

	rejections []rejection
	byReason   map[string]int32 // of rejections, by rule and reasons

	// Working space.
	key     []int32
	bytes   []byte
	reasons []string
	rows    []row
	alike   []int32
	members []int32
	one     []int64
	totals  []int64
}

const nowhere = -1

type group struct {
	root int32 // of the treap of its rows
	size int32
	// nominated: a row by itself, beside whose nominated pods the demand must fit.
	nominated bool
}

// rejection is a rule with its reasons, and how many rows it rejected for them.
type rejection struct {
	by      *filter
	reasons []string
	final   bool
	rows    int32
}

// chooseFast is choosePlain by tables.
func (c *cluster) chooseFast(d *demand, self PodID) choice {
	t := c.tablesOf(d)
	feasible := c.feasibleGroups(d, t)
	switch feasible {
	case 0:
		return choice{row: noRow, failure: c.explainTables(d, t)}
	case 1:
		return choice{row: t.rows[0], feasible: 1}
	}
	t.totals = t.totals[:0]
	for range t.rows {
		t.totals = append(t.totals, 0)
	}
	for _, s := range d.profile.scorers {
		if s.around == nil || !s.applies(d) {
			continue
		}
		t.one = c.rawScores(&s, d, t.rows, t.alike, t.one[:0])
		s.around.normalize(t.one)
		for i := range t.one {
			t.totals[i] += s.weight * t.one[i]
		}
	}
	best, score := row(noRow), int64(0)
	mine := c.turnOf(self)
	for i, g := range t.members {
		root := t.groups[g].root
		top := t.local[t.order.first(root)]
		total := t.totals[i] + int64(top)
		if best != noRow && total < score {
			continue
		}
		candidate := t.order.from(root, top, mine, t.local, t.ring)
		if best == noRow || total > score || c.winsTie(candidate, best, mine) {
			best, score = candidate, total
		}
	}
	return choice{row: best, score: score, feasible: feasible}
}

// feasibleGroups lists the groups that no rule rejects, with a row of each, and returns how many rows they have.
func (c *cluster) feasibleGroups(d *demand, t *tables) int {
	t.rows, t.alike, t.members = t.rows[:0], t.alike[:0], t.members[:0]
	n := 0
	for i := range t.groups {
		g := &t.groups[i]
		if g.size == 0 || c.objectionTo(d, t, g) != nil {
			continue
		}
		t.rows, t.alike, t.members = append(t.rows, row(g.root)), append(t.alike, g.size), append(t.members, int32(i))
		n += int(g.size)
	}
	return n
}

// objectionTo is the first rule that keeps d off the rows of g.
func (c *cluster) objectionTo(d *demand, t *tables, g *group) (by *filter) {
	around := d.profile.filters[d.profile.local:]
	if !g.nominated {
		return c.objection(around, d, row(g.root))
	}
	c.asIfNominated(d, "", row(g.root), func() bool {
		by = c.objection(around, d, row(g.root))
		return by == nil
	})
	return by
}

func (c *cluster) explainTables(d *demand, t *tables) *Failure {
	f := newFailure(c.seenCount, d)
	for i := range t.rejections {
		if x := &t.rejections[i]; x.rows > 0 {
			f.add(x.by, x.reasons, int(x.rows))
		}
	}
	for i := range t.groups {
		g := &t.groups[i]
		if g.size == 0 {
			continue
		}
		by := c.objectionTo(d, t, g)
		f.add(by, c.reasonsOf(d, g, by, t.reasons[:0]), int(g.size))
	}
	return f
}

// reasonsOf explains a rejection of g by a rule that looks around.
func (c *cluster) reasonsOf(d *demand, g *group, by *filter, reasons []string) []string {
	if !g.nominated {
		return by.explain(&c.state, d, row(g.root), reasons)
	}
	c.asIfNominated(d, "", row(g.root), func() bool {
		if by.judge(&c.state, d, row(g.root)) {
			return true
		}
		reasons = by.explain(&c.state, d, row(g.root), reasons)
		return false
	})
	return reasons
}

// tablesOf returns the tables of d as things are now.
func (c *cluster) tablesOf(d *demand) *tables {
	t := d.tables
	if t != nil && t.epoch == c.Epoch && t.empty <= 64+len(t.groups)/2 {
		for len(t.of) < len(c.name) {
			t.of, t.local, t.ring = append(t.of, nowhere), append(t.local, 0), append(t.ring, 0)
			t.order.addRow()
		}
		next, ok := c.changes.Since(t.position, func(r row) { c.enter(d, t, r) })
		t.position = next
		if ok {
			return t
		}
	}
	return c.buildTables(d)
}

func (c *cluster) buildTables(d *demand) *tables {
	c.dropTables(d)
	n := len(c.name)
	t := &tables{
		position: c.changes.End(), epoch: c.Epoch, of: make([]int32, n), local: make([]int32, n), ring: make([]uint64, n), order: newTreap(n),
		index: map[string]int32{}, byReason: map[string]int32{},
	}
	for r := range t.of {
		t.of[r] = nowhere
	}
	for r := range t.of {
		c.enter(d, t, row(r))
	}
	d.tables = t
	c.tables = append(c.tables, d)
	c.makeRoom()
	return t
}

// makeRoom drops the tables that were used longest ago until the others are few enough. They must pay anew, or more
// kinds in turn than may have tables would build them for each pod.
func (c *cluster) makeRoom() {
	for len(c.tables) > tablesMax {
		last := slices.MinFunc(c.tables, func(a, b *demand) int { return int(int64(a.used) - int64(b.used)) })
		c.dropTables(last)
		last.often = 0
	}
}

func (c *cluster) dropTables(d *demand) {
	if d.tables != nil {
		d.tables = nil
		c.tables = shrink.Without(c.tables, d)
	}
}

// enter asks about row r anew and puts it where it belongs.
func (c *cluster) enter(d *demand, t *tables, r row) {
	t.takeOut(r)
	if !c.seen[r] {
		return
	}
	var by *filter
	final := false
	t.reasons = t.reasons[:0]
	local := d.profile.filters[:d.profile.local]
	c.asIfNominated(d, "", r, func() bool {
		if by = c.objection(local, d, r); by != nil {
			t.reasons, final = by.explain(&c.state, d, r, t.reasons[:0]), by.final(&c.state, d, r)
		}
		return by == nil
	})
	if by != nil {
		i := t.rejectionOf(by, final)
		t.rejections[i].rows++
		t.of[r] = nowhere - 1 - i
		return
	}
	i := t.groupOf(c, d, r)
	g := &t.groups[i]
	if g.size == 0 {
		t.empty--
	}
	g.size++
	t.of[r] = i
	t.local[r], t.ring[r] = 0, c.ring[r]
	for _, s := range d.profile.scorers {
		if s.alone != nil && s.alone.applies(&d.needs) {
			t.local[r] += int32(s.weight * s.alone.raw(&c.state, &d.needs, r))
		}
	}
	g.root = t.order.insert(g.root, int32(r), t.local, t.ring)
}

func (t *tables) takeOut(r row) {
	switch i := t.of[r]; {
	case i >= 0:
		g := &t.groups[i]
		g.root = t.order.remove(g.root, int32(r), t.local, t.ring)
		if g.size--; g.size == 0 {
			t.empty++
		}
	case i < nowhere:
		t.rejections[nowhere-1-i].rows--
	}
	t.of[r] = nowhere
}

func (t *tables) rejectionOf(by *filter, final bool) int32 {
	b := encode.Strings(encode.Bool(encode.Number(t.bytes[:0], int64(by.rule)), final), t.reasons)
	t.bytes = b
	i, known := t.byReason[string(b)]
	if !known {
		i = int32(len(t.rejections))
		t.byReason[string(b)] = i
		t.rejections = append(t.rejections, rejection{by: by, reasons: slices.Clone(t.reasons), final: final})
	}
	return i
}

// groupOf returns the group of rows that rules and scorers that look around cannot tell from r.
func (t *tables) groupOf(c *cluster, d *demand, r row) int32 {
	key := t.key[:0]
	for _, f := range d.profile.filters[d.profile.local:] {
		key = f.around.key(&c.state, d, r, key)
	}
	for _, s := range d.profile.scorers {
		if s.around != nil && s.applies(d) {
			key = s.around.key(&c.state, d, r, key)
		}
	}
	nominated := d.looksAround() && c.yields(d, r)
	if nominated {
		key = append(key, int32(r))
	}
	t.key = key
	b := t.bytes[:0]
	for _, k := range key {
		b = append(b, byte(k), byte(k>>8), byte(k>>16), byte(k>>24))
	}
	t.bytes = b
	i, known := t.index[string(b)]
	if !known {
		i = int32(len(t.groups))
		t.index[string(b)] = i
		t.groups = append(t.groups, group{root: nobody, nominated: nominated})
		t.empty++
	}
	return i
}

// yields reports whether pods are nominated on row r beside which d must fit.
func (c *cluster) yields(d *demand, r row) bool {
	return slices.ContainsFunc(c.nominated[r], func(w *nominated) bool { return w.class.priority >= d.priority })
}
