package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// A survey answers what choosePlain answers, for all rows at once: which are feasible is the meet of a few masks,
// each rule taking out the rows that it rejects; the feasible ones are put into groups that no normalized scorer
// tells apart; and the best is searched for among tiles of rows, of which most are passed over whole. What differs
// from pod to pod costs what it differs by: rows in domains that have pods it means, rows with taints or ports.
// Nothing is kept for one kind of pods.
//
// The answers equal those of choosePlain; TestSurveysAgree holds them to it.

// marks are rows of which something holds whatever the demand: most rules look at few rows besides.
type marks struct {
	position int // in cluster.changes

	seen        rows.Mask
	cordoned    rows.Mask
	tainted     rows.Mask // by taints that keep pods off
	discouraged rows.Mask // by those that only discourage
	lacking     rows.Mask // their agent says that it lacks something
	ports       rows.Mask // pods there hold some
	wished      rows.Mask // pods are nominated there
	reporting   rows.Mask // their agent says what its NUMA nodes have
	disks       rows.Mask // pods there name some
	limited     rows.Mask // drivers there attach so many volumes only
}

// look brings the marks up to date.
func (c *state) look() *marks {
	m := &c.marks
	m.position = c.catchUp(&c.changes, m.position, func(r row) {
		m.seen = m.seen.Put(r, c.seen[r])
		m.cordoned = m.cordoned.Put(r, c.unschedulable[r])
		m.tainted = m.tainted.Put(r, len(c.taints[r]) > 0)
		m.discouraged = m.discouraged.Put(r, len(c.softTaints[r]) > 0)
		m.lacking = m.lacking.Put(r, len(c.agentLacks[r]) > 0)
		m.ports = m.ports.Put(r, len(c.ports[r]) > 0)
		m.wished = m.wished.Put(r, len(c.nominated[r]) > 0)
		m.reporting = m.reporting.Put(r, c.beliefs[r] != nil)
		s := c.storage.On(r)
		m.disks = m.disks.Put(r, s != nil && len(s.Disks) > 0)
		m.limited = m.limited.Put(r, s.Limited())
	})
	return m
}

// survey is working space, of no meaning between calls.
type survey struct {
	rows, before, other rows.Mask
	groups              grouping
	divisions           []*division
	scorers             []weightedScorer
	one                 []int64
}

// chooseBySurvey is choosePlain for all rows at once.
func (c *cluster) chooseBySurvey(d *demand, self PodID) choice {
	rows := c.feasibleRows(d, self)
	n := rows.Count()
	switch n {
	case 0:
		return choice{row: noRow, failure: c.explainSurvey(d, self)}
	case 1:
		only := row(noRow)
		rows.Each(func(r row) { only = r })
		return choice{row: only, feasible: 1}
	}
	g := c.group(d, rows)
	g.count(&c.state, rows)
	c.measureSpread(d, rows)
	c.weighGroups(d, g)
	k := contest{c: c, mine: c.turnOf(self), best: noRow}
	if a, ok := c.askingOf(d); ok {
		c.bestByTiles(d, &a, rows, g, &k)
	} else {
		c.bestByFit(d, rows, g, &k)
	}
	g.end()
	return choice{row: k.best, score: k.total, feasible: n}
}

// weighGroups finds what the normalized scorers say of the groups that have rows.
func (c *cluster) weighGroups(d *demand, g *grouping) {
	for _, s := range d.profile.scorers {
		if s.around == nil || !s.applies(d) {
			continue
		}
		one := c.rawScores(&s, d, g.members, g.sizes, c.survey.one[:0])
		s.around.normalize(one)
		for i, group := range g.present {
			g.worth[group] += s.weight * one[i]
		}
		c.survey.one = one
	}
	d.spans = d.spans[:0]
}

// feasibleRows is the set of rows that no rule rejects, in working space.
func (c *cluster) feasibleRows(d *demand, self PodID) rows.Mask {
	marks := c.look()
	rows := marks.seen.CopyOf(c.survey.rows)
	c.survey.rows = rows
	rows.Less(marks.wished)
	for _, f := range d.profile.filters {
		if rows.None() {
			break
		}
		f.narrow(&c.state, d, rows)
	}
	marks.wished.Both(marks.seen, func(r row) {
		if c.feasible(d, self, r) {
			rows.Set(r)
		}
	})
	return rows
}

// narrowAmong takes out of m the rows among some that judge rejects.
func (c *state) narrowAmong(judge func(*state, *demand, row) bool, d *demand, m, some rows.Mask) {
	c.keepIn(m, some, func(r row) bool { return judge(c, d, r) })
}

// explainSurvey says why every row is rejected.
func (c *cluster) explainSurvey(d *demand, self PodID) *Failure {
	failure := newFailure(c.seenCount, d)
	marks := c.look()
	rows := marks.seen.CopyOf(c.survey.rows)
	c.survey.rows = rows
	rows.Less(marks.wished)
	for _, f := range d.profile.filters {
		if rows.None() {
			break
		}
		rejected := rows.CopyOf(c.survey.before)
		c.survey.before = rejected
		f.narrow(&c.state, d, rows)
		if rejected.Less(rows); !rejected.None() {
			c.tell(failure, f, d, rejected)
		}
	}
	marks.wished.Both(marks.seen, func(r row) {
		c.asIfNominated(d, self, r, func() bool {
			by := c.objection(d.profile.filters, d, r)
			if by != nil {
				failure.add(by, by.explain(&c.state, d, r, nil), 1)
			}
			return by == nil
		})
	})
	return failure
}

// tell adds to failure why f rejects the rows in m.
func (c *state) tell(failure *Failure, f *filter, d *demand, m rows.Mask) {
	if t, is := f.filterRule.(teller); is {
		t.tell(c, failure, d, m)
		return
	}
	var reasons, last []string
	same := 0
	m.Each(func(r row) {
		if f.alike && same > 0 {
			same++
			return
		}
		reasons = f.explain(c, d, r, reasons[:0])
		if same > 0 && !slices.Equal(reasons, last) {
			failure.add(f, last, same)
			same = 0
		}
		last = append(last[:0], reasons...)
		same++
	})
	failure.add(f, last, same)
}

// emptyMask is an empty set of rows in working space, until the next is asked for.
func (c *state) emptyMask(words int) rows.Mask {
	if cap(c.survey.other) < words {
		c.survey.other = make(rows.Mask, words)
	}
	m := c.survey.other[:words]
	clear(m)
	return m
}
