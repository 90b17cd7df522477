package scheduler

import (
	"cmp"
	"math/bits"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// boundOrder returns rows in the order of their bounds, and computes the effect of budgets only for rows that are next.
// It examines few rows: a heap has, for every 64 rows (a word of a mask), one row with the lowest bound. The first rows
// are returned in the order of their bounds, and with equal bounds in tie-breaking order (winsTie). Usually one of them
// is the cheapest. If not, bounds say little, and nearly all rows must be returned. So after the first ones, the rows
// of one word are returned one after another, because they are adjacent in memory.
type boundOrder struct {
	cluster *cluster
	bounds  *costBounds
	among   rows.Mask // those not returned yet
	offset  uint64    // the tie-breaking offset of the pod; see tieOffset
	// returned counts the rows that were returned in the order of their bounds.
	returned int
	words    []boundsWord
	heap     heap.Heap[*boundsWord]
	rest     *boundsWord // the word whose rows are now returned one after another; nil: none
}

// A boundsWord is the entry of a word's rows in the heap.
type boundsWord struct {
	index int  // of the word in the mask
	row   row  // no row of the word in among has a lower bound
	first bool // row is in among, and first of its word in order; false: the word must be searched for its first row
	place int  // its index in the heap
}

// bestFirst is how many rows are returned in the order of their bounds. Chosen: finding the next row in order compares
// 64 bounds, which takes about as long as evaluating a row. Where all 50,000 rows had to be evaluated, this order took
// three times as long as row order, because consecutive rows were not adjacent in memory (BenchmarkPreempt,
// forbids-zones).
const bestFirst = 64

// begin initializes x for the rows in among. x is reused between calls, and removes rows from among as it returns them.
func (x *boundOrder) begin(c *cluster, bounds *costBounds, among rows.Mask, offset uint64) *boundOrder {
	x.cluster = c
	x.bounds = bounds
	x.among = among
	x.offset = offset
	x.returned = 0
	x.rest = nil
	x.words = x.words[:0]
	for i, word := range among {
		if word != 0 && bounds.leastOf(i).state == costHelps {
			x.words = append(x.words, boundsWord{index: i, row: bounds.least[i]})
		}
	}
	x.heap = heap.New(x.compare, func(w *boundsWord) *int { return &w.place })
	for i := range x.words {
		x.heap.Set(&x.words[i])
	}
	return x
}

// compare orders words by their lowest bounds. Of equal ones, words that must still be searched go first.
func (x *boundOrder) compare(a, b *boundsWord) int {
	order := compareCosts(&x.bounds.rows[a.row], &x.bounds.rows[b.row])
	switch {
	case order != 0:
		return order
	case a.first && b.first && x.cluster.winsTie(a.row, b.row, x.offset), !a.first && b.first:
		return -1
	case a.first:
		return 1
	}
	return cmp.Compare(a.index, b.index)
}

// nextBelow returns the next row that may cost less than cost, or the same but wins the tie with best. It returns noRow
// if there is none.
func (x *boundOrder) nextBelow(best row, cost *preemptCost) row {
	promises := func(r row, surely bool) bool {
		if best == noRow {
			return true
		}
		order := compareCosts(&x.bounds.rows[r], cost)
		return order < 0 || order == 0 && (!surely || x.cluster.winsTie(r, best, x.offset))
	}
	for {
		if x.rest != nil {
			if r := x.nextInWord(x.rest, promises); r != noRow {
				return r
			}
			x.rest = nil
		}
		if x.heap.Len() == 0 {
			return noRow
		}
		w := x.heap.First()
		switch {
		case !promises(w.row, w.first):
			return noRow
		case x.returned >= bestFirst:
			x.heap.Remove(w)
			x.rest = w
		case !w.first:
			x.findFirst(w)
		case x.bounds.stale.Has(w.row):
			x.addBudgets(w)
		default:
			x.among.Clear(w.row)
			x.returned++
			w.first = false
			x.heap.Set(w)
			return w.row
		}
	}
}

// nextInWord returns the next row of a word, in row order, whose bound with budgets is low enough; noRow: there is
// none.
func (x *boundOrder) nextInWord(w *boundsWord, promises func(r row, surely bool) bool) row {
	for x.among[w.index] != 0 {
		r := row(w.index<<6 | bits.TrailingZeros64(x.among[w.index]))
		x.among.Clear(r)
		if x.bounds.rows[r].state == costHelps && promises(r, true) {
			x.bounds.addBudgets(x.cluster, r)
			if promises(r, true) {
				return r
			}
		}
	}
	return noRow
}

// findFirst finds the first row of a word in order, or removes the word if it has no row left.
func (x *boundOrder) findFirst(w *boundsWord) {
	first := row(noRow)
	x.each(w, func(r row) {
		b := &x.bounds.rows[r]
		if b.state != costHelps {
			return
		}
		if first != noRow {
			order := compareCosts(b, &x.bounds.rows[first])
			if order > 0 || order == 0 && !x.cluster.winsTie(r, first, x.offset) {
				return
			}
		}
		first = r
	})
	if first == noRow {
		x.heap.Remove(w)
		return
	}
	w.row, w.first = first, true
	x.heap.Set(w)
}

// addBudgets computes the effect of budgets on the bound of the row that represents a word. If that raises the bound,
// it does the same for the rows of the word with lower bounds, because these would usually be next.
func (x *boundOrder) addBudgets(w *boundsWord) {
	if !x.bounds.addBudgets(x.cluster, w.row) {
		return
	}
	x.each(w, func(r row) {
		if x.bounds.rows[r].isLessThan(&x.bounds.rows[w.row]) {
			x.bounds.addBudgets(x.cluster, r)
		}
	})
	x.findFirst(w)
}

func (x *boundOrder) each(w *boundsWord, see func(row)) {
	for word := x.among[w.index]; word != 0; word &= word - 1 {
		see(row(w.index<<6 | bits.TrailingZeros64(word)))
	}
}
