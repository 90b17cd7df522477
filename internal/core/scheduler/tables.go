package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// tablesMin is the number of rows below which every rule is evaluated for every row. Chosen: with fewer rows, that
// takes less than 20 microseconds.
const tablesMin = 64

// tablesMax is how many demands have tables, at 24 bytes per row each. Chosen: tables are for demands whose pods come
// in long runs, of a few demands at a time. If pods of more demands alternate, masks are faster.
const tablesMax = 16

// The cost of a decision in nanoseconds. A decision by masks takes masksCost, plus one nanosecond for each
// masksRowsPerNano rows. Tables take tableBuildCost per row when they are built, and tableRowCost per changed row when
// they are used again. Measured on 2026-11-23 by BenchmarkRuns and BenchmarkTurns, for pods with the default spread
// constraints: masks take 28 microseconds on 5,000 nodes and 50 on 50,000; tables take 2.3 and 35
// milliseconds. If a constant is wrong by a factor, some pods cost more by that factor.
const (
	masksCost        = 25000
	masksRowsPerNano = 2
	tableBuildCost   = 600
	tableRowCost     = 1000
)

func masksTime(rows int) int { return masksCost + rows/masksRowsPerNano }

// tablesAfter returns after how many decisions by masks tables are built: as many as cost the same as building them.
// This is the ski-rental rule: however many pods of a demand come, they cost at most twice as much as with the better
// choice, which is known only afterwards.
func tablesAfter(rows int) int { return rows * tableBuildCost / masksTime(rows) }

// tablesPay reports whether tables should be used for d: there were so many decisions for it, with so few changes
// between them, that updating tables costs less than deciding by masks.
func (c *cluster) tablesPay(d *demand) bool {
	rows := len(c.name)
	since := c.changes.End() - d.decidedAt
	d.decidedAt = c.changes.End()
	if d.tables != nil && len(d.tables.groups) > 64+rows/256 {
		c.dropTables(d)
		d.streak = -8 * tablesAfter(rows) // there are too many groups for tables to help
	}
	if since*tableRowCost > masksTime(rows) {
		c.dropTables(d)
		d.streak = min(d.streak, 0)
		return false
	}
	d.streak++
	return d.streak >= tablesAfter(rows)
}

// tables have the results of the rules for every row for one demand, and are updated only where a row changed. They are
// for many pods of one demand that come one after another; see tablesPay.
//
// Rows are in groups: all rows of a group get the same answer from every rule that depends on other rows, whatever the
// counters are, and the same raw score from every scorer that is normalized. So these rules are evaluated for one row
// of each group, at decision time, with the present counters. The results of rules that depend on the row alone are
// kept. A row that one of them rejects is in no group, but counts under the reasons of its rejection. In a group, rows
// are sorted by the sum of the other scores.
//
// The answers equal those of choosePlain; TestTablesAgree checks that.
type tables struct {
	position int    // in the change log, up to which they are updated
	epoch    uint64 // Census.Epoch when they were built

	// of is, by row, the number of its group, or nowhere. If a rule rejects the row, it is nowhere-1 minus the number of
	// its rejection.
	of      []int32
	local   []int32  // by row in a group: the weighted sum of the scores that depend on the row alone
	tieHash []uint64 // by row: nodes.tieHash when the row was added to its group
	order   treap
	groups  []group
	index   map[string]int32 // of groups, by encoded keys of the rules
	empty   int              // how many groups have no rows

	// Rejections by rules that depend on the row alone.
	rejections []rejection
	byReason   map[string]int32 // of rejections, by rule and reasons, encoded

	// Working space: what it has between calls is not used.
	key     []int32
	bytes   []byte
	reasons []string
	rows    []row
	alike   []int32
	members []int32
	one     []int64
	totals  []int64
}

// nowhere is the group of a row without a node.
const nowhere = -1

// group is rows for which rules and scorers that depend on other rows give the same results.
type group struct {
	root int32 // of the treap with its rows
	size int32
	// nominated says that it is a single row with nominated pods that count for the demand.
	nominated bool
}

// rejection is a rule with its reasons, and how many rows it rejects for them.
type rejection struct {
	by      *filter
	reasons []string
	final   bool
	rows    int32
}

// chooseByTables returns what choosePlain returns.
func (c *cluster) chooseByTables(d *demand, self PodID) choice {
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
	offset := c.tieOffset(self)
	for i, g := range t.members {
		root := t.groups[g].root
		top := t.local[t.order.first(root)]
		total := t.totals[i] + int64(top)
		if best != noRow && total < score {
			continue
		}
		candidate := t.order.from(root, top, offset, t.local, t.tieHash)
		if best == noRow || total > score || c.winsTie(candidate, best, offset) {
			best, score = candidate, total
		}
	}
	return choice{row: best, score: score, feasible: feasible}
}

// feasibleGroups finds the groups that no rule rejects, with a row of each, and returns how many rows they have.
func (c *cluster) feasibleGroups(d *demand, t *tables) int {
	t.rows = t.rows[:0]
	t.alike = t.alike[:0]
	t.members = t.members[:0]
	n := 0
	for i := range t.groups {
		g := &t.groups[i]
		if g.size == 0 || c.groupRejectedBy(d, t, g) != nil {
			continue
		}
		t.rows = append(t.rows, row(g.root))
		t.alike = append(t.alike, g.size)
		t.members = append(t.members, int32(i))
		n += int(g.size)
	}
	return n
}

// groupRejectedBy returns the first rule that rejects the rows of g; nil: none does.
func (c *cluster) groupRejectedBy(d *demand, t *tables, g *group) (by *filter) {
	around := d.profile.filters[d.profile.local:]
	if !g.nominated {
		return c.firstRejecting(around, d, row(g.root))
	}
	c.withNominated(d, "", row(g.root), func() bool {
		by = c.firstRejecting(around, d, row(g.root))
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
		by := c.groupRejectedBy(d, t, g)
		f.add(by, c.reasonsOf(d, g, by, t.reasons[:0]), int(g.size))
	}
	return f
}

// reasonsOf returns the reasons of a rejection of g by a rule that depends on other rows.
func (c *cluster) reasonsOf(d *demand, g *group, by *filter, reasons []string) []string {
	if !g.nominated {
		return by.explain(&c.state, d, row(g.root), reasons)
	}
	c.withNominated(d, "", row(g.root), func() bool {
		if by.judge(&c.state, d, row(g.root)) {
			return true
		}
		reasons = by.explain(&c.state, d, row(g.root), reasons)
		return false
	})
	return reasons
}

// tablesOf returns the tables of d, brought up to date.
func (c *cluster) tablesOf(d *demand) *tables {
	t := d.tables
	if t != nil && t.epoch == c.Epoch && t.empty <= 64+len(t.groups)/2 {
		for len(t.of) < len(c.name) {
			t.of = append(t.of, nowhere)
			t.local = append(t.local, 0)
			t.tieHash = append(t.tieHash, 0)
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
		position: c.changes.End(),
		epoch:    c.Epoch,
		of:       make([]int32, n),
		local:    make([]int32, n),
		tieHash:  make([]uint64, n),
		order:    newTreap(n),
		index:    map[string]int32{},
		byReason: map[string]int32{},
	}
	for r := range t.of {
		t.of[r] = nowhere
	}
	for r := range t.of {
		c.enter(d, t, row(r))
	}
	d.tables = t
	c.tables = append(c.tables, d)
	c.limitTables()
	return t
}

// limitTables drops the tables that were used longest ago, until there are at most tablesMax. Their demands get new
// tables only after tablesAfter more decisions. Otherwise, if the pods of more demands alternate than may have tables,
// tables would be built for each pod.
func (c *cluster) limitTables() {
	for len(c.tables) > tablesMax {
		last := slices.MinFunc(c.tables, func(a, b *demand) int { return int(int64(a.used) - int64(b.used)) })
		c.dropTables(last)
		last.streak = 0
	}
}

func (c *cluster) dropTables(d *demand) {
	if d.tables != nil {
		d.tables = nil
		c.tables = shrink.Without(c.tables, d)
	}
}

// enter evaluates row r again and puts it into its group.
func (c *cluster) enter(d *demand, t *tables, r row) {
	t.takeOut(r)
	if !c.seen[r] {
		return
	}
	var by *filter
	final := false
	t.reasons = t.reasons[:0]
	local := d.profile.filters[:d.profile.local]
	c.withNominated(d, "", r, func() bool {
		if by = c.firstRejecting(local, d, r); by != nil {
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
	t.local[r], t.tieHash[r] = 0, c.tieHash[r]
	for _, s := range d.profile.scorers {
		if s.alone != nil && s.alone.applies(&d.needs) {
			t.local[r] += int32(s.weight * s.alone.raw(&c.state, &d.needs, r))
		}
	}
	g.root = t.order.insert(g.root, int32(r), t.local, t.tieHash)
}

func (t *tables) takeOut(r row) {
	switch i := t.of[r]; {
	case i >= 0:
		g := &t.groups[i]
		g.root = t.order.remove(g.root, int32(r), t.local, t.tieHash)
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

// groupOf returns the group of row r, and creates it if necessary.
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
	nominated := d.looksAround() && c.hasNominated(d, r)
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

// hasNominated reports whether pods are nominated on row r that count for d.
func (c *cluster) hasNominated(d *demand, r row) bool {
	return slices.ContainsFunc(c.nominated[r], func(w *nominated) bool { return w.class.priority >= d.priority })
}
