package scheduler

// A tiling divides rows into tiles of rows with about equal free resources. The extremes of a tile bound the resource
// scores of all its rows for any pod, so most tiles are skipped as a whole, even for requests never seen before. A row
// that changes leaves its tile and is examined individually, until there are enough such rows to make new tiles of
// them.
type tiling struct {
	position  int // in cluster.changes
	tiles     []tile
	loose     []row        // in no tile
	odd       int          // how many of loose were odd (rowSummary.odd) when tiles were last made
	base      int          // how many tiles there were when all rows were last divided
	in        []int32      // by row: its tile; looseRow; noTile: it has no node
	at        []int32      // by row: its place in the tile or in loose
	summaries []rowSummary // by row
	// Working space, by tile: the bounds of the scores of its rows, and the tiles in the order of inOrder.
	bounds []bounds
	order  []int32
}

// bounds are the lowest and the highest possible score of a row.
type bounds struct{ low, high int64 }

// The values of tiling.in for rows that are in no tile.
const (
	looseRow = -1 // it is in loose
	noTile   = -2 // it has no node
)

// tileRows is how many rows a tile has at most. fewRows is the limit for tiles that are made of changed rows, which are
// less similar. looseMax is how many loose rows may be examined individually before tiles are made of them. When there
// are an eighth more tiles than after all rows were last divided, all rows are divided again. Chosen: computing the
// bounds of a tile takes about as long as examining one row; adding a row to a tile takes a tenth of a microsecond.
const (
	tileRows = 64
	fewRows  = 16
	looseMax = 128
)

// A tile has rows with about equal free resources. It loses rows over time. Its bounds still hold for the remaining
// rows.
type tile struct {
	rows              []row
	least, most       rowSummary // the lowest and highest values of its rows, field by field
	tieFirst, tieLast uint64     // the lowest and highest tieHash of its rows
	uniform           bool       // all rows have the same summary
}

// rowSummary has the resources of a row in the form that bounds of scores need. Pairs are CPU and memory.
type rowSummary struct {
	pods, cpu, memory int64      // how many more pods, millicores and bytes are free, by requests
	left              [2]float64 // what is free in percent, as LeastAllocated counts
	unit              [2]float64 // one millicore and one byte in percent of the row's allocatable
	taken             [2]float64 // the requested share
	even              int64      // evenness of taken
	odd               bool       // its scores cannot be bounded; see summaryOf
}

// exactMax is how many millicores or bytes a row may have at most to be in a tile. Up to it, percentages in floating
// point are exact enough.
const exactMax = 1 << 45

// summaryOf returns the summary of row r. It is odd if the row has no CPU or memory, or more than any real machine:
// then scores cannot be computed from it.
func (c *state) summaryOf(r row) (v rowSummary) {
	cpu, memory := c.columns.has(cpuColumn, r), c.columns.has(memoryColumn, r)
	if cpu <= 0 || memory <= 0 || cpu > exactMax || memory > exactMax {
		return rowSummary{odd: true}
	}
	takenCPU, takenMemory := c.columns.takes(cpuColumn, r), c.columns.takes(memoryColumn, r)
	a, b := float64(cpu), float64(memory)
	v = rowSummary{
		pods:   c.podsMax[r] - c.podCount[r],
		cpu:    cpu - takenCPU,
		memory: memory - takenMemory,
		left:   [2]float64{scoreMax * float64(cpu-c.scoreCPU[r]) / a, scoreMax * float64(memory-c.scoreMemory[r]) / b},
		unit:   [2]float64{scoreMax / a, scoreMax / b},
		taken:  [2]float64{float64(takenCPU) / a, float64(takenMemory) / b},
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
		keys := [placeKeys]float64{
			v.left[0],
			v.left[1],
			v.unit[0] * commonCPU,
			v.unit[1] * commonMemory,
			float64(c.tieHash[r]),
		}
		places = append(places, rowPlace{row: r, keys: keys})
	}
	x.loose, x.odd = odd, len(odd)
	x.split(c, places, size, make([]row, 0, len(places)))
}

// split divides places by the key in which they differ most, until the parts are small enough for a tile. It appends
// the rows of the tiles to rows, which they share as memory.
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
	hash := c.tieHash[places[0].row]
	t := tile{uniform: true, least: first, most: first, tieFirst: hash, tieLast: hash}
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
