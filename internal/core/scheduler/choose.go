package scheduler

import (
	"cmp"
	"iter"
	"slices"
)

// A choice is the result of judging all rows. If failure is nil, row is the best of the feasible rows.
type choice struct {
	row      row
	score    int64
	feasible int
	failure  *Failure
}

// choose judges and scores the nodes for a pod. self is its ID, d its demand.
func (c *cluster) choose(d *demand, self PodID) choice {
	c.decisions++
	if w := c.nominations[self]; w != nil && c.Present(w.Row) && c.verdict(d, self, w.Row).Plugin == "" {
		return choice{row: w.Row, feasible: 1} // its victims were evicted there: no other node is considered
	}
	d.used = c.decisions
	if n := c.sampleOf(d); n < c.seenCount {
		return c.chooseAmong(d, self, c.around(d), n)
	}
	switch {
	case len(c.name) < tablesMin:
		return c.choosePlain(d, self)
	case c.tablesPay(d):
		return c.chooseByTables(d, self)
	}
	return c.chooseByMasks(d, self)
}

// choosePlain evaluates every rule for every row. It is the plain form of what masks and tables compute
// faster.
func (c *cluster) choosePlain(d *demand, self PodID) choice {
	return c.chooseAmong(d, self, c.candidates(d), c.seenCount)
}

// chooseAmong evaluates candidates until enough are feasible, and returns the best of them.
func (c *cluster) chooseAmong(d *demand, self PodID, candidates iter.Seq[row], enough int) choice {
	w := &c.plain
	rows, alike := w.rows[:0], w.alike[:0]
	for r := range candidates {
		if c.seen[r] && c.feasible(d, self, r) {
			if rows, alike = append(rows, r), append(alike, 1); len(rows) == enough {
				break
			}
		}
	}
	w.rows, w.alike = rows, alike
	switch len(rows) {
	case 0:
		return choice{row: noRow, failure: c.explainAll(d, self)}
	case 1:
		return choice{row: rows[0], feasible: 1}
	}
	totals := append(w.totals[:0], make([]int64, len(rows))...)
	w.totals = totals
	if c.extenderScores != nil {
		for j, r := range rows {
			totals[j] = c.extenderScores[r]
		}
	}
	for _, s := range d.profile.scorers {
		if s.applies(d) {
			raw := c.rawScores(&s, d, rows, alike, w.raw[:0])
			w.raw = raw
			if s.around != nil {
				s.around.normalize(raw)
			}
			for j := range rows {
				totals[j] += s.weight * raw[j]
			}
		}
	}
	offset := c.tieOffset(self)
	best := 0
	for i := 1; i < len(rows); i++ {
		if totals[i] > totals[best] || totals[i] == totals[best] && c.winsTie(rows[i], rows[best], offset) {
			best = i
		}
	}
	return choice{row: rows[best], score: totals[best], feasible: len(rows)}
}

// candidates are the rows that may be feasible: all rows, or the named ones if the pod's affinity names its nodes, as
// that of DaemonSet pods does.
func (c *cluster) candidates(d *demand) iter.Seq[row] {
	return func(yield func(row) bool) {
		if d.onlyNames == nil || d.profile.Skip["NodeAffinity"] {
			for i := range c.name {
				if !yield(row(i)) {
					return
				}
			}
			return
		}
		for _, name := range d.onlyNames {
			if r, ok := c.rows[name]; ok && !yield(r) {
				return
			}
		}
	}
}

func (c *state) feasible(d *demand, self PodID, r row) bool {
	return c.withNominated(d, self, r, func() bool { return c.firstRejecting(d.profile.filters, d, r) == nil })
}

// rawScores appends the raw score of s for each of rows.
func (c *state) rawScores(s *weightedScorer, d *demand, rows []row, alike []int32, scores []int64) []int64 {
	if s.alone != nil {
		for _, r := range rows {
			scores = append(scores, s.alone.raw(c, &d.needs, r))
		}
		return scores
	}
	if p, is := s.around.(preparer); is {
		p.prepare(c, d, rows, alike)
	}
	for _, r := range rows {
		scores = append(scores, s.around.raw(c, d, r))
	}
	return scores
}

func (c *cluster) explainAll(d *demand, self PodID) *Failure {
	f := newFailure(c.seenCount, d)
	for i := range c.name {
		if r := row(i); c.seen[r] {
			c.withNominated(d, self, r, func() bool {
				by := c.firstRejecting(d.profile.filters, d, r)
				if by != nil {
					f.add(by, by.explain(&c.state, d, r, nil), 1)
				}
				return by == nil
			})
		}
	}
	return f
}

// tieOffset returns the offset at which the order of equal nodes begins for a pod, so that ties spread over the nodes.
func (c *cluster) tieOffset(pod PodID) uint64 { return mix(hashText(string(pod)) ^ c.seed) }

// winsTie reports whether row a comes before row b in the circular order of tieHash that begins at offset. Rows with
// the same hash are ordered by name.
func (c *cluster) winsTie(a, b row, offset uint64) bool {
	return cmp.Or(cmp.Compare(c.tieHash[a]-offset, c.tieHash[b]-offset), cmp.Compare(c.name[a], c.name[b])) < 0
}

// mix is the finalizer of splitmix64: every input bit reaches every output bit.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// NodeScore is the score of one feasible node.
type NodeScore struct {
	Node    string
	Total   int64
	Plugins map[string]PluginScore // by upstream's names
}

// PluginScore is the result of one scorer, without its weight.
type PluginScore struct{ Raw, Normalized int64 }

func (c *cluster) scores(d *demand, self PodID) []NodeScore {
	var rows []row
	var alike []int32
	var out []NodeScore
	for _, n := range c.byName() {
		if c.feasible(d, self, n.row) {
			rows, alike = append(rows, n.row), append(alike, 1)
			out = append(out, NodeScore{Node: n.name, Plugins: map[string]PluginScore{}})
		}
	}
	if len(rows) < 2 {
		return nil
	}
	for _, s := range d.profile.scorers {
		if !s.applies(d) {
			continue
		}
		raw := c.rawScores(&s, d, rows, alike, nil)
		normalized := slices.Clone(raw)
		if s.around != nil {
			s.around.normalize(normalized)
		}
		for i := range rows {
			out[i].Plugins[s.plugin] = PluginScore{raw[i], normalized[i]}
			out[i].Total += s.weight * normalized[i]
		}
	}
	return out
}

// totals evaluates every rule for every row, and returns the totals of those that are feasible.
func (c *cluster) totals(d *demand, self PodID) (out []NodeTotal, failure *Failure) {
	chosen := c.choosePlain(d, self)
	if chosen.failure != nil {
		return nil, chosen.failure
	}
	for i, r := range c.plain.rows {
		of := NodeTotal{Node: c.name[r]}
		if chosen.feasible > 1 {
			of.Total = c.plain.totals[i]
		}
		out = append(out, of)
	}
	return out, nil
}
