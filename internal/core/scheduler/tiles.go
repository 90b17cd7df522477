package scheduler

import (
	"math"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// A tiling divides rows into tiles of rows with about equal free resources. The extremes of a tile bound the resource
// scores of all its rows for any pod, so most tiles are skipped as a whole, even for requests never seen before. A row
// that changes leaves its tile and is examined individually, until there are enough such rows to make new tiles of
// them.
type tiling struct {
	position int // in cluster.changes
	tiles    []tile
	loose    []row   // in no tile
	odd      int     // how many of loose, when tiles were last made, were odd; see vitals
	base     int     // how many tiles there were when all rows were last divided
	in       []int32 // by row: its tile; looseRow; noTile: it has no node
	at       []int32 // by row: its place in the tile or in loose
	// By row.
	summaries []rowSummary
	// Working space, by tile: the bounds of the scores of its rows, and the tiles in order.
	bounds []bounds
	order  []int32
}

// bounds are the lowest and the highest possible score.
type bounds struct{ low, high int64 }

const (
	looseRow = -1
	noTile   = -2
)

// tileRows is how many rows a tile has at most. fewRows is the limit for tiles of rows that have changed, which are
// less similar. looseMax is how many loose rows that could be in tiles are examined individually. When there are an
// eighth more tiles than after all rows were divided, all rows are divided again. Chosen: computing the bounds of a
// tile takes about as long as examining one row; adding a row to a tile takes a tenth of a microsecond.
const (
	tileRows = 64
	fewRows  = 16
	looseMax = 128
)

// A tile loses rows over time. Its bounds still hold for the remaining rows.
type tile struct {
	rows              []row
	least, most       rowSummary // the lowest and highest values of its rows, field by field
	tieFirst, tieLast uint64
	uniform           bool // all rows have the same vitals
}

// rowSummary are the resources of a row as needed for bounds of scores.
// free, by requests
type rowSummary struct {
	pods, cpu, memory int64      // free CPU and memory in percent, as LeastAllocated counts
	left              [2]float64 // one millicore and one byte in percent of the row's allocatable
	unit              [2]float64 // the requested share of CPU and memory
	taken             [2]float64 // evenness of taken
	even              int64      // its scores cannot be bounded; see summaryOf
	odd               bool       // see summaryOf
}

// exactMax is the most that a row may have of a resource to be in a tile: up to it, percentages are exact enough.
const exactMax = 1 << 45

// summaryOf returns the vitals of row r. They are odd if the row has no CPU or memory, or more than any real machine:
// then scores cannot be computed from vitals.
func (c *state) summaryOf(r row) (v rowSummary) {
	cpu, memory := c.columns.has(cpuColumn, r), c.columns.has(memoryColumn, r)
	if cpu <= 0 || memory <= 0 || cpu > exactMax || memory > exactMax {
		return rowSummary{odd: true}
	}
	takenCPU, takenMemory := c.columns.takes(cpuColumn, r), c.columns.takes(memoryColumn, r)
	a, b := float64(cpu), float64(memory)
	v = rowSummary{
		pods: c.podsMax[r] - c.podCount[r], cpu: cpu - takenCPU, memory: memory - takenMemory,
		left:  [2]float64{scoreMax * float64(cpu-c.scoreCPU[r]) / a, scoreMax * float64(memory-c.scoreMemory[r]) / b},
		unit:  [2]float64{scoreMax / a, scoreMax / b},
		taken: [2]float64{float64(takenCPU) / a, float64(takenMemory) / b},
	}
	v.even = evenness(min(v.taken[0], 1), min(v.taken[1], 1))
	return v
}

// widen sets each field of v to the lower (sign 1) or the higher (sign -1) of v and o.
func (v *rowSummary) widen(o *rowSummary, sign int64) {
	whole := func(a, b int64) int64 { return sign * min(sign*a, sign*b) }
	part := func(a, b float64) float64 { return float64(sign) * min(float64(sign)*a, float64(sign)*b) }
	v.pods = whole(v.pods, o.pods)
	v.cpu = whole(v.cpu, o.cpu)
	v.memory = whole(v.memory, o.memory)
	v.even = whole(v.even, o.even)
	for i := range v.left {
		v.left[i] = part(v.left[i], o.left[i])
		v.unit[i] = part(v.unit[i], o.unit[i])
		v.taken[i] = part(v.taken[i], o.taken[i])
	}
}

// updateTiles brings the tiles up to date.
func (c *state) updateTiles() *tiling {
	x := &c.tiling
	for len(x.in) < len(c.name) {
		x.in = append(x.in, noTile)
		x.at = append(x.at, 0)
		x.summaries = append(x.summaries, rowSummary{})
	}
	next, ok := x.position, false
	if x.tiles != nil && c.changes.End()-x.position <= len(c.name)/4 {
		next, ok = c.changes.Since(x.position, func(r row) { x.rowChanged(c, r) })
	}
	if x.position = next; !ok || len(x.tiles) > x.base+x.base/8+looseMax/fewRows {
		x.begin(c)
	}
	if len(x.loose) > looseMax+x.odd {
		x.makeTiles(c, fewRows)
	}
	return x
}

// begin divides all rows into tiles anew.
func (x *tiling) begin(c *state) {
	x.position, x.odd = c.changes.End(), 0
	x.tiles, x.loose = make([]tile, 0, len(c.name)/tileRows+1), x.loose[:0]
	for r := range x.in {
		x.in[r] = noTile
		if c.seen[r] {
			x.addLoose(c, row(r))
		}
	}
	x.makeTiles(c, tileRows)
	x.base = len(x.tiles)
}

// addLoose adds row r to the loose rows.
func (x *tiling) addLoose(c *state, r row) {
	x.summaries[r] = c.summaryOf(r)
	x.in[r], x.at[r] = looseRow, int32(len(x.loose))
	x.loose = append(x.loose, r)
}

// rowChanged removes row r, which has changed, from its tile.
func (x *tiling) rowChanged(c *state, r row) {
	if x.in[r] == looseRow && c.seen[r] {
		x.summaries[r] = c.summaryOf(r)
		return
	}
	if t := x.in[r]; t != noTile {
		list := &x.loose
		if t != looseRow {
			list = &x.tiles[t].rows
		}
		last := len(*list) - 1
		moved := (*list)[last]
		(*list)[x.at[r]], x.at[moved] = moved, x.at[r]
		*list = (*list)[:last]
		x.in[r] = noTile
	}
	if c.seen[r] {
		x.addLoose(c, r)
	}
}

// rowPlace is a row with the keys by which rows are divided: its free resources, its size, and its place in the
// tie-breaking order.
type rowPlace struct {
	row  row
	keys [placeKeys]float64
}

// The keys of a row, and the index of the last one, which breaks ties.
const (
	placeKeys = 5
	tieKey    = placeKeys - 1
)

// The requests for which rows should be similar: half a CPU and one GiB. Chosen: common pods request about that. For
// other pods the results are as exact, but more tiles are examined.
const (
	commonCPU    = 500
	commonMemory = 1 << 30
)

// makeTiles makes tiles of the loose rows, with at most size rows each.
func (x *tiling) makeTiles(c *state, size int) {
	places := make([]rowPlace, 0, len(x.loose))
	odd := x.loose[:0]
	for _, r := range x.loose {
		v := &x.summaries[r]
		if v.odd {
			x.at[r] = int32(len(odd))
			odd = append(odd, r)
			continue
		}
		keys := [placeKeys]float64{v.left[0], v.left[1], v.unit[0] * commonCPU, v.unit[1] * commonMemory, float64(c.tieHash[r])}
		places = append(places, rowPlace{r, keys})
	}
	x.loose, x.odd = odd, len(odd)
	x.split(c, places, size, make([]row, 0, len(places)))
}

// split divides places by the key in which they differ most, until the parts are small enough for a tile. rows is the
// memory for the rows of tiles.
func (x *tiling) split(c *state, places []rowPlace, size int, rows []row) []row {
	if len(places) <= size {
		return x.makeTile(c, places, rows)
	}
	widest, width := tieKey, 0.0
	for k := range tieKey {
		least, most := places[0].keys[k], places[0].keys[k]
		for i := range places {
			least, most = min(least, places[i].keys[k]), max(most, places[i].keys[k])
		}
		if most-least > width {
			widest, width = k, most-least
		}
	}
	half := (len(places) + size - 1) / size / 2 * size
	halve(places, half, widest)
	return x.split(c, places[half:], size, x.split(c, places[:half], size, rows))
}

// halve moves the n places with the smallest keys to the front.
func halve(places []rowPlace, n, key int) {
	for low, high := 0, len(places)-1; low < high; {
		middle := places[(low+high)/2].keys[key]
		i, j := low, high
		for i <= j {
			for places[i].keys[key] < middle {
				i++
			}
			for places[j].keys[key] > middle {
				j--
			}
			if i <= j {
				places[i], places[j] = places[j], places[i]
				i, j = i+1, j-1
			}
		}
		switch {
		case n <= j:
			high = j
		case n >= i:
			low = i
		default:
			return
		}
	}
}

func (x *tiling) makeTile(c *state, places []rowPlace, rows []row) []row {
	if len(places) == 0 {
		return rows
	}
	from := len(rows)
	first := x.summaries[places[0].row]
	ring := c.tieHash[places[0].row]
	t := tile{uniform: true, least: first, most: first, tieFirst: ring, tieLast: ring}
	for i := range places {
		r := places[i].row
		x.in[r], x.at[r] = int32(len(x.tiles)), int32(i)
		rows = append(rows, r)
		v := &x.summaries[r]
		t.uniform = t.uniform && *v == first
		t.least.widen(v, 1)
		t.most.widen(v, -1)
		t.tieFirst, t.tieLast = min(t.tieFirst, c.tieHash[r]), max(t.tieLast, c.tieHash[r])
	}
	t.rows = rows[from:len(rows):len(rows)]
	x.tiles = append(x.tiles, t)
	return rows
}

// A resourceQuery is what one demand needs of resources, as far as tiles bound the scores.
type resourceQuery struct {
	scorers       []weightedScorer // those that depend on the row alone
	fit, balance  int64            // weights of the two scorers that tiles bound; 0: not used
	fitWeights    [2]int64
	fitValues     [2]float64
	balanceValues [2]float64
	most          int64 // the highest possible score
}

// resourceQueryOf returns the asking of d. ok is false if its profile scores resources in a way that tiles do not
// bound.
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
	return len(list) == 2 && list[0].column == cpuColumn && list[1].column == memoryColumn && list[0].value >= 0 && list[1].value >= 0
}

// inexact is more than the rounding error between a row's percentage and its bound.
const inexact = 1e-6

// bound returns the lowest and the highest weighted sum of the scores that depend on the row alone, for any row with
// vitals between least and most.
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
	if q.value > 0 { // only rows that have some of it come into question
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
	after  uint64 // the place of best in the tie-breaking order, counted from mine
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
		if top == noScore || k.best != noRow && (top+b.high < k.total || top+b.high == k.total && t.after(k.offset) > k.after) {
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

// after returns a lower bound of how far the rows of t are after place in the tie-breaking order.
func (t *tile) after(place uint64) uint64 {
	if t.tieFirst <= place && place <= t.tieLast {
		return 0
	}
	return t.tieFirst - place
}

// tileLevels is how many different levels tiles are sorted by.
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
