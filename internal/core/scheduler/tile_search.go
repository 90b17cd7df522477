package scheduler

import (
	"math"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// This file finds the rows with room, and the best row, by tiles.

// A resourceQuery is how one demand is scored by resources, as far as tiles bound these scores. Pairs are CPU and
// memory.
type resourceQuery struct {
	scorers       []weightedScorer // those that depend on the row alone
	fit, balance  int64            // weights of the two scorers that tiles bound; 0: not used
	fitWeights    [2]int64         // weights of the resources in fit
	fitValues     [2]float64       // what the pod adds for fit
	balanceValues [2]float64       // what the pod adds for balance
	most          int64            // the highest possible score
}

// resourceQueryOf returns the query of d. ok is false if its profile scores resources in a way that tiles do not bound.
func (c *cluster) resourceQueryOf(d *demand) (a resourceQuery, ok bool) {
	a = resourceQuery{scorers: c.masks.scorers[:0]}
	for _, s := range d.profile.scorers {
		if s.alone == nil || !s.alone.applies(&d.needs) {
			continue
		}
		a.scorers = append(a.scorers, s)
		switch s.plugin {
		case "NodeResourcesFit":
			if !leastOfTwo(d) {
				return a, false
			}
			a.fit = s.weight
		case "NodeResourcesBalancedAllocation":
			if !ofTwo(d.balanced) {
				return a, false
			}
			a.balance = s.weight
		default:
			return a, false
		}
	}
	c.masks.scorers = a.scorers
	a.most = scoreMax * (a.fit + a.balance)
	for i := range 2 {
		if a.fit > 0 {
			a.fitWeights[i], a.fitValues[i] = d.fit[i].weight, float64(d.fit[i].value)
		}
		if a.balance > 0 {
			a.balanceValues[i] = float64(d.balanced[i].value)
		}
	}
	return a, true
}

// leastOfTwo reports whether nodes are scored for d by their free CPU and memory.
func leastOfTwo(d *demand) bool {
	switch d.profile.Strategy.Type {
	case MostAllocated, RequestedToCapacityRatio:
		return false
	}
	return ofTwo(d.fit) && d.fit[0].weight >= 0 && d.fit[1].weight >= 0 && d.fit[0].weight+d.fit[1].weight > 0
}

// ofTwo reports whether list is CPU and memory, with requests that are not negative.
func ofTwo(list []scored) bool {
	return len(list) == 2 && list[0].column == cpuColumn && list[1].column == memoryColumn &&
		list[0].value >= 0 && list[1].value >= 0
}

// inexact, in percent, is more than the rounding error between a row's percentage and its bound.
const inexact = 1e-6

// bound returns the lowest and the highest weighted sum of the scores that depend on the row alone, for any row whose
// summary is between least and most.
func (a *resourceQuery) bound(least, most *rowSummary) (low, high int64) {
	if a.fit > 0 {
		var few, many int64
		for i, value := range a.fitValues {
			few += a.fitWeights[i] * int64(max(least.left[i]-value*most.unit[i]-inexact, 0))
			many += a.fitWeights[i] * int64(max(most.left[i]-value*least.unit[i]+inexact, 0))
		}
		weights := a.fitWeights[0] + a.fitWeights[1]
		low, high = a.fit*(few/weights), a.fit*(many/weights)
	}
	if a.balance > 0 {
		var few, many [2]float64
		for i, value := range a.balanceValues {
			few[i] = min(least.taken[i]+value*least.unit[i]/scoreMax, 1)
			many[i] = min(most.taken[i]+value*most.unit[i]/scoreMax, 1)
		}
		near := max(few[0]-many[1], few[1]-many[0], 0)
		far := max(many[0]-few[1], many[1]-few[0])
		low += a.balance * balanceGain(int64((1-far/2)*scoreMax-inexact), most.even)
		high += a.balance * balanceGain(int64((1-near/2)*scoreMax+inexact), least.even)
	}
	return low, high
}

// narrowByTiles removes from m the rows that have no room for d.
func (c *state) narrowByTiles(d *demand, m rows.Mask) {
	asks := [2]int64{math.MinInt64, math.MinInt64}
	for _, q := range d.requests {
		if q.column <= memoryColumn {
			asks[q.column] = q.value
		} else if !d.profile.ignores(c.columns.all[q.column].resource) {
			if c.columns.absent(q) {
				clear(m)
				return
			}
			c.narrowColumn(q, m)
		}
	}
	judge := func(r row) {
		if m.Has(r) && !passesResources(c, &d.needs, r) {
			m.Clear(r)
		}
	}
	x := c.updateTiles()
	for i := range x.tiles {
		t := &x.tiles[i]
		switch {
		case t.least.pods >= 1 && t.least.cpu >= asks[0] && t.least.memory >= asks[1]:
		case t.most.pods < 1 || t.most.cpu < asks[0] || t.most.memory < asks[1]:
			for _, r := range t.rows {
				m.Clear(r)
			}
		default:
			for _, r := range t.rows {
				judge(r)
			}
		}
	}
	for _, r := range x.loose {
		judge(r)
	}
}

// narrowColumn removes from m the rows that have less of one resource free than q requests.
func (c *state) narrowColumn(q request, m rows.Mask) {
	k := &c.columns.all[q.column]
	fits := func(r row) bool { return Fits(q.value, k.requested.At(r), k.allocatable.At(r)) }
	if q.value > 0 { // a row that has none of it does not fit
		var room []row
		if k.allocatable.Few(func(r row, _ int64) {
			if m.Has(r) && fits(r) {
				room = append(room, r)
			}
		}) {
			clear(m)
			for _, r := range room {
				m.Set(r)
			}
			return
		}
	}
	m.Each(func(r row) {
		if !fits(r) {
			m.Clear(r)
		}
	})
}

// A bestRow is the search for the row with the highest score.
type bestRow struct {
	c      *cluster
	offset uint64 // the pod's offset in the tie-breaking order; see tieOffset
	best   row
	total  int64
	after  uint64 // the place of best in the tie-breaking order, counted from offset
}

// offer replaces the best row by r if r is better.
func (k *bestRow) offer(r row, total int64) {
	if k.best != noRow && total < k.total {
		return
	}
	after := k.c.tieHash[r] - k.offset
	if k.best == noRow || total > k.total || after < k.after || after == k.after && k.c.name[r] < k.c.name[k.best] {
		k.best = r
		k.total = total
		k.after = after
	}
}

// bestByTiles finds the best row in m. It examines the tiles with the highest bounds first, and skips tiles that cannot
// have the best row.
func (c *cluster) bestByTiles(d *demand, a *resourceQuery, m rows.Mask, g *grouping, k *bestRow) {
	x := c.updateTiles()
	alone := func(r row) (sum int64) {
		for i := range a.scorers {
			sum += a.scorers[i].weight * a.scorers[i].alone.raw(&c.state, &d.needs, r)
		}
		return sum
	}
	look := func(r row, most int64) {
		worth, v := g.scores[g.of[r]], &x.summaries[r]
		if k.best != noRow && worth+most < k.total {
			return
		}
		low, high := int64(0), a.most
		if !v.odd {
			low, high = a.bound(v, v)
		}
		switch {
		case low == high:
			k.offer(r, worth+low)
		case k.best == noRow || worth+high >= k.total:
			k.offer(r, worth+alone(r))
		}
	}
	common, top := g.common()
	for _, i := range x.inOrder(a) {
		t, b := &x.tiles[i], x.bounds[i]
		if top == noScore {
			continue
		}
		if k.best != noRow && (top+b.high < k.total || top+b.high == k.total && t.after(k.offset) > k.after) {
			continue
		}
		if t.uniform {
			b.low = alone(t.rows[0])
			b.high = b.low
		}
		for _, r := range t.rows {
			switch {
			case g.of[r] >= common || !m.Has(r):
			case b.low == b.high:
				k.offer(r, g.scores[g.of[r]]+b.low)
			default:
				look(r, b.high)
			}
		}
	}
	for _, r := range x.loose {
		if g.of[r] < common && m.Has(r) {
			look(r, a.most)
		}
	}
	for i := range g.strays {
		look(g.strays[i].row, a.most)
	}
}

// after returns a lower bound of the distance from place to any row of t in the tie-breaking order.
func (t *tile) after(place uint64) uint64 {
	if t.tieFirst <= place && place <= t.tieLast {
		return 0
	}
	return t.tieFirst - place
}

// tileLevels is into how many levels of scores inOrder sorts tiles. Chosen: more levels than scores that differ much.
const tileLevels = 256

// inOrder computes the bounds of the tiles, and returns those that have rows, the highest bounds first.
func (x *tiling) inOrder(a *resourceQuery) []int32 {
	x.bounds = slices.Grow(x.bounds[:0], len(x.tiles))[:len(x.tiles)]
	level := func(i int) int64 {
		return tileLevels - 1 - min(x.bounds[i].high*tileLevels/max(a.most, 1), tileLevels-1)
	}
	var begins [tileLevels + 1]int32
	for i := range x.tiles {
		if t := &x.tiles[i]; len(t.rows) > 0 {
			x.bounds[i].low, x.bounds[i].high = a.bound(&t.least, &t.most)
			begins[level(i)+1]++
		}
	}
	for i := range tileLevels {
		begins[i+1] += begins[i]
	}
	x.order = slices.Grow(x.order[:0], int(begins[tileLevels]))[:begins[tileLevels]]
	for i := range x.tiles {
		if len(x.tiles[i].rows) > 0 {
			l := level(i)
			x.order[begins[l]] = int32(i)
			begins[l]++
		}
	}
	return x.order
}
