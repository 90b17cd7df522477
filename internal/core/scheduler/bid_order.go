package scheduler

import (
	"cmp"
	"math/bits"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// byBound hands out rows by their bounds, and asks what budgets say only of those whose turn it is. It looks at few: a
// heap holds for every 64 rows, as many as a word of a mask has, one with the least bound. The first rows are handed
// out in the order of their bounds, of equal ones in the order of the ring: mostly one of them is the cheapest. Where
// bounds say little, all rows are asked; so then those of one word follow each other, which lie together in memory.
type byBound struct {
	cluster *cluster
	bounds  *bidBounds
	among   rows.Mask // those not handed out yet
	mine    uint64    // the turn of whom they are for
	handed  int
	words   []boundsWord
	heap    heap.Heap[*boundsWord]
	rest    *boundsWord // whose rows follow each other now; nil: none's
}

// A boundsWord stands in the heap for the rows of one word.
type boundsWord struct {
	index int
	row   row  // no row of the word that is among has a lesser bound
	first bool // row is among, and no other of the word goes before it; otherwise they are still to be looked through
	place int
}

// bestFirst is how many rows are handed out in the order of their bounds. Chosen: to find the next takes a look at 64
// bounds, that is about as long as to ask a row. Where all 50,000 rows had to be asked, that order took three times as
// long as their own, since rows that follow each other did not lie together (BenchmarkPreempt, forbids-zones).
const bestFirst = 64

// begin makes x, working space, ready for rows among some, which it takes out as it hands them out.
func (x *byBound) begin(c *cluster, bounds *bidBounds, among rows.Mask, mine uint64) *byBound {
	x.cluster, x.bounds, x.among, x.mine = c, bounds, among, mine
	x.handed, x.rest, x.words = 0, nil, x.words[:0]
	for i, word := range among {
		if word != 0 && bounds.leastOf(i).state == bidGood {
			x.words = append(x.words, boundsWord{index: i, row: bounds.least[i]})
		}
	}
	x.heap = heap.New(x.compare, func(w *boundsWord) *int { return &w.place })
	for i := range x.words {
		x.heap.Set(&x.words[i])
	}
	return x
}

// compare orders words by their least bounds; those that are still to be looked through go before others as good.
func (x *byBound) compare(a, b *boundsWord) int {
	order := compareBids(&x.bounds.rows[a.row], &x.bounds.rows[b.row])
	switch {
	case order != 0:
		return order
	case a.first && b.first && x.cluster.winsTie(a.row, b.row, x.mine), !a.first && b.first:
		return -1
	case a.first:
		return 1
	}
	return cmp.Compare(a.index, b.index)
}

// than is the next row that may cost less than the best, or as much and goes before it on the ring; noRow: there is
// none.
func (x *byBound) than(best row, cost *bid) row {
	promises := func(r row, surely bool) bool {
		if best == noRow {
			return true
		}
		order := compareBids(&x.bounds.rows[r], cost)
		return order < 0 || order == 0 && (!surely || x.cluster.winsTie(r, best, x.mine))
	}
	for {
		if x.rest != nil {
			if r := x.nextOf(x.rest, promises); r != noRow {
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
		case x.handed >= bestFirst:
			x.heap.Remove(w)
			x.rest = w
		case !w.first:
			x.lookThrough(w)
		case x.bounds.stale.Has(w.row):
			x.settle(w)
		default:
			x.among.Clear(w.row)
			x.handed++
			w.first = false
			x.heap.Set(w)
			return w.row
		}
	}
}

// nextOf is the next row of a word, in their own order, that promises enough when budgets have been asked; noRow: there
// is none.
func (x *byBound) nextOf(w *boundsWord, promises func(r row, surely bool) bool) row {
	for x.among[w.index] != 0 {
		r := row(w.index<<6 | bits.TrailingZeros64(x.among[w.index]))
		x.among.Clear(r)
		if x.bounds.rows[r].state == bidGood && promises(r, true) {
			x.bounds.settle(x.cluster, r)
			if promises(r, true) {
				return r
			}
		}
	}
	return noRow
}

// lookThrough finds the row of a word that goes first, or takes the word out.
func (x *byBound) lookThrough(w *boundsWord) {
	first := row(noRow)
	x.each(w, func(r row) {
		b := &x.bounds.rows[r]
		if b.state != bidGood {
			return
		}
		if first != noRow {
			order := compareBids(b, &x.bounds.rows[first])
			if order > 0 || order == 0 && !x.cluster.winsTie(r, first, x.mine) {
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

// settle asks what budgets say of the row that stands for a word; where that makes it dearer, also of the rows of the
// word that promise more: mostly they follow.
func (x *byBound) settle(w *boundsWord) {
	if !x.bounds.settle(x.cluster, w.row) {
		return
	}
	x.each(w, func(r row) {
		if x.bounds.rows[r].isLessThan(&x.bounds.rows[w.row]) {
			x.bounds.settle(x.cluster, r)
		}
	})
	x.lookThrough(w)
}

func (x *byBound) each(w *boundsWord, see func(row)) {
	for word := x.among[w.index]; word != 0; word &= word - 1 {
		see(row(w.index<<6 | bits.TrailingZeros64(word)))
	}
}
