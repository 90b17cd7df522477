package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// chooseByMasks computes what choosePlain computes, for all rows at once. The feasible rows are the intersection of
// a few masks: each rule removes the rows that it rejects. The feasible rows are divided into groups for which the
// normalized scorers give equal scores. The best row is searched for in tiles of rows, most of which are skipped as a
// whole. The cost depends on what is special about the pod: the rows in domains with pods that its terms match, and the
// rows with taints or host ports. Nothing is kept for one demand.
//
// The answers equal those of choosePlain; TestMasksAgree checks that.

// marks are sets of rows with some property, independent of any demand. Most rules only need to examine these rows.
// Only updateMarks changes them.
type marks struct {
	position int // in cluster.changes

	seen        rows.Mask // the node exists in the API
	cordoned    rows.Mask // spec.unschedulable
	tainted     rows.Mask // NoSchedule or NoExecute taints
	discouraged rows.Mask // PreferNoSchedule taints
	lacking     rows.Mask // the agent reports that it lacks something
	ports       rows.Mask // pods there use host ports
	nominated   rows.Mask // pods are nominated there
	reporting   rows.Mask // the agent reports its NUMA nodes
	disks       rows.Mask // pods there name disks
	limited     rows.Mask // a CSI driver there has a volume limit
}

// updateMarks brings the marks up to date.
func (c *state) updateMarks() *marks {
	m := &c.marks
	m.position = c.catchUp(&c.changes, m.position, func(r row) {
		m.seen = m.seen.Put(r, c.seen[r])
		m.cordoned = m.cordoned.Put(r, c.unschedulable[r])
		m.tainted = m.tainted.Put(r, len(c.taints[r]) > 0)
		m.discouraged = m.discouraged.Put(r, len(c.softTaints[r]) > 0)
		m.lacking = m.lacking.Put(r, len(c.agentLacks[r]) > 0)
		m.ports = m.ports.Put(r, len(c.ports[r]) > 0)
		m.nominated = m.nominated.Put(r, len(c.nominated[r]) > 0)
		m.reporting = m.reporting.Put(r, c.expected[r] != nil)
		s := c.storage.On(r)
		m.disks = m.disks.Put(r, s != nil && len(s.Disks) > 0)
		m.limited = m.limited.Put(r, s.Limited())
	})
	return m
}

// maskSpace is working space. What it has between calls is not used, except divisions, which is a cache.
type maskSpace struct {
	rows, before, other rows.Mask
	groups              grouping
	divisions           []*division
	scorers             []weightedScorer
	one                 []int64
}

// chooseByMasks returns what choosePlain returns.
func (c *cluster) chooseByMasks(d *demand, self PodID) choice {
	rows := c.feasibleRows(d, self)
	n := rows.Count()
	switch n {
	case 0:
		return choice{row: noRow, failure: c.explainByMasks(d, self)}
	case 1:
		only := row(noRow)
		rows.Each(func(r row) { only = r })
		return choice{row: only, feasible: 1}
	}
	g := c.group(d, rows)
	g.count(&c.state, rows)
	c.measureSpread(d, rows)
	c.weighGroups(d, g)
	k := bestRow{c: c, offset: c.tieOffset(self), best: noRow}
	if a, ok := c.resourceQueryOf(d); ok {
		c.bestByTiles(d, &a, rows, g, &k)
	} else {
		c.bestByFit(d, rows, g, &k)
	}
	g.end()
	return choice{row: k.best, score: k.total, feasible: n}
}

// weighGroups computes the normalized scores of the groups that have rows.
func (c *cluster) weighGroups(d *demand, g *grouping) {
	for _, s := range d.profile.scorers {
		if s.around == nil || !s.applies(d) {
			continue
		}
		one := c.rawScores(&s, d, g.members, g.sizes, c.masks.one[:0])
		s.around.normalize(one)
		for i, group := range g.present {
			g.scores[group] += s.weight * one[i]
		}
		c.masks.one = one
	}
	d.spans = d.spans[:0]
}

// unnominated returns the marks, and the rows that are seen and have no nominated pods. The mask is working space.
func (c *cluster) unnominated() (*marks, rows.Mask) {
	marks := c.updateMarks()
	rows := marks.seen.CopyOf(c.masks.rows)
	c.masks.rows = rows
	rows.Less(marks.nominated)
	return marks, rows
}

// feasibleRows returns the rows that no rule rejects. The mask is working space.
func (c *cluster) feasibleRows(d *demand, self PodID) rows.Mask {
	marks, rows := c.unnominated()
	for _, f := range d.profile.filters {
		if rows.None() {
			break
		}
		f.narrow(&c.state, d, rows)
	}
	marks.nominated.Both(marks.seen, func(r row) {
		if c.feasible(d, self, r) {
			rows.Set(r)
		}
	})
	return rows
}

// narrowAmong removes from m the rows in some that judge rejects.
func (c *state) narrowAmong(judge func(*state, *demand, row) bool, d *demand, m, some rows.Mask) {
	c.keepIn(m, some, func(r row) bool { return judge(c, d, r) })
}

// explainByMasks returns why every row is rejected.
func (c *cluster) explainByMasks(d *demand, self PodID) *Failure {
	failure := newFailure(c.seenCount, d)
	marks, rows := c.unnominated()
	for _, f := range d.profile.filters {
		if rows.None() {
			break
		}
		rejected := rows.CopyOf(c.masks.before)
		c.masks.before = rejected
		f.narrow(&c.state, d, rows)
		if rejected.Less(rows); !rejected.None() {
			c.addReasons(failure, f, d, rejected)
		}
	}
	marks.nominated.Both(marks.seen, func(r row) {
		c.withNominated(d, self, r, func() bool {
			by := c.firstRejecting(d.profile.filters, d, r)
			if by != nil {
				failure.add(by, by.explain(&c.state, d, r, nil), 1)
			}
			return by == nil
		})
	})
	return failure
}

// addReasons adds to failure why f rejects the rows in m.
func (c *state) addReasons(failure *Failure, f *filter, d *demand, m rows.Mask) {
	if t, is := f.filterRule.(bulkExplainer); is {
		t.explainRows(c, failure, d, m)
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

// emptyMask returns an empty set of rows in working space. It is valid until the next call.
func (c *state) emptyMask(words int) rows.Mask {
	if cap(c.masks.other) < words {
		c.masks.other = make(rows.Mask, words)
	}
	m := c.masks.other[:words]
	clear(m)
	return m
}
