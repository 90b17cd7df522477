package scheduler

import (
	"cmp"
	"math"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// A rowIndex finds the waiters to which something that has happened on one row may matter: of those that demand one of
// the row's labels, or its name, or none, those whose request of the resource that is scarcest for them may fit.
type rowIndex struct {
	roomOnly bool // everybody in it hears of room
	byLabel  map[selector.LabelID]*bucket
	byName   map[string]*bucket
	others   *bucket
}

// bucket holds waiters by the resources that they ask for.
type bucket struct {
	roomOnly bool
	size     int
	sets     []requesters
}

// requesters ask for the same resources. They are listed by each of these, from the least on: what has so much free of
// one is of no use to those who ask for more of it, and the shortest of the lists up to there has everybody else.
type requesters struct {
	columns []int // podsColumn: room for one pod
	lists   [][]requester
}

type requester struct {
	amount int64
	waiter *waiter
}

// podsColumn stands for the number of pods that a node takes.
const podsColumn = -1

// anyRoom is asked for where nobody looks at room.
const anyRoom = math.MinInt64

// columnsMax is by how many resources a waiter is listed at most, those of which it asks for the largest parts of a
// node. Chosen: common pods ask for CPU, memory and a device.
const columnsMax = 4

// spot is where a waiter is in a rowIndex.
type spot struct {
	in     bool
	labels []selector.LabelID
	names  []string
	asks   []request // what is asked for of the columns by which it is listed
}

func newRowIndex(roomOnly bool) rowIndex {
	return rowIndex{roomOnly: roomOnly, byLabel: map[selector.LabelID]*bucket{}, byName: map[string]*bucket{}, others: &bucket{roomOnly: roomOnly}}
}

// labelsMax is how many labels a waiter may be found by. Chosen: with more it is among those that are found by none.
const labelsMax = 32

// add puts w where it is found by a label or name without which no row is of use to it.
func (x *rowIndex) add(c *cluster, w *waiter) spot {
	at := spot{in: true}
	at.asks = c.scarcest(w.demand)
	at.labels, at.names = x.demanded(w.demand)
	x.eachBucket(&at, func(b *bucket) { b.add(at.asks, w) })
	return at
}

func (x *rowIndex) remove(w *waiter, at spot) {
	if !at.in {
		return
	}
	x.eachBucket(&at, func(b *bucket) { b.remove(at.asks, w) })
	for _, l := range at.labels {
		if x.byLabel[l].size == 0 {
			delete(x.byLabel, l)
		}
	}
	for _, n := range at.names {
		if x.byName[n].size == 0 {
			delete(x.byName, n)
		}
	}
}

func (x *rowIndex) eachBucket(at *spot, see func(*bucket)) {
	if at.labels == nil && at.names == nil {
		see(x.others)
	}
	for _, l := range at.labels {
		if x.byLabel[l] == nil {
			x.byLabel[l] = &bucket{roomOnly: x.roomOnly}
		}
		see(x.byLabel[l])
	}
	for _, n := range at.names {
		if x.byName[n] == nil {
			x.byName[n] = &bucket{roomOnly: x.roomOnly}
		}
		see(x.byName[n])
	}
}

// demanded lists labels or names one of which a row must have; none: it need not have any.
func (x *rowIndex) demanded(d *demand) (labels []selector.LabelID, names []string) {
	if !d.profile.Skip["NodeAffinity"] {
		if d.onlyNames != nil {
			return nil, d.onlyNames
		}
		for _, l := range d.nodeSelector { // the one by which fewest others are found
			if labels == nil || x.sizeOf(l) < x.sizeOf(labels[0]) {
				labels = []selector.LabelID{l}
			}
		}
		if labels == nil && d.hasTerms {
			labels = selector.AnyOf(d.nodeTerms.List(), labelsMax)
		}
	}
	if labels != nil || d.volumes == nil || d.profile.Skip["VolumeBinding"] {
		return labels, nil
	}
	for _, b := range d.volumes.Bound {
		if b.Volume != nil && b.Volume.Plugin == "" && b.Volume.From.Limited {
			return selector.AnyOf(b.Volume.From.Terms, labelsMax), nil
		}
	}
	return nil, nil
}

func (x *rowIndex) sizeOf(l selector.LabelID) int {
	if b := x.byLabel[l]; b != nil {
		return b.size
	}
	return 0
}

// scarcest are the resources of which d asks for the largest parts of a node, as far as a few nodes tell, in the order
// of columns.
func (c *cluster) scarcest(d *demand) (asks []request) {
	if d.profile.Skip["NodeResourcesFit"] {
		return []request{{column: podsColumn, value: anyRoom}}
	}
	var parts []float64 // of asks, the largest first
	for _, q := range d.requests {
		if d.profile.ignores(c.columns.all[q.column].resource) {
			continue
		}
		part := float64(q.value) / float64(max(c.mostOf(q.column), 1))
		at, _ := slices.BinarySearchFunc(parts, part, func(a, b float64) int { return cmp.Compare(b, a) })
		if at == columnsMax {
			continue
		}
		asks, parts = slices.Insert(asks, at, q), slices.Insert(parts, at, part)
		asks, parts = asks[:min(len(asks), columnsMax)], parts[:min(len(parts), columnsMax)]
	}
	if len(asks) == 0 {
		return []request{{column: podsColumn, value: 1}}
	}
	slices.SortFunc(asks, func(a, b request) int { return a.column - b.column })
	return asks
}

// mostOf is the most that one of a few nodes has of a column.
func (c *cluster) mostOf(column int) (most int64) {
	const nodes = 8
	seen := 0
	for r := 0; r < len(c.name) && seen < nodes; r++ {
		if c.seen[r] {
			most = max(most, c.columns.has(column, row(r)))
			seen++
		}
	}
	return most
}

// setOf finds those who ask for the same columns; -1: there are none.
func (b *bucket) setOf(asks []request) int {
	return slices.IndexFunc(b.sets, func(s requesters) bool {
		return slices.EqualFunc(s.columns, asks, func(column int, q request) bool { return column == q.column })
	})
}

func (b *bucket) add(asks []request, w *waiter) {
	b.size++
	at := b.setOf(asks)
	if at < 0 {
		at = len(b.sets)
		fresh := requesters{lists: make([][]requester, len(asks))}
		for _, q := range asks {
			fresh.columns = append(fresh.columns, q.column)
		}
		b.sets = append(b.sets, fresh)
	}
	for i, q := range asks {
		list := &b.sets[at].lists[i]
		x := requester{amount: q.value, waiter: w}
		to, _ := slices.BinarySearchFunc(*list, x, fewerFirst)
		*list = slices.Insert(*list, to, x)
	}
}

func (b *bucket) remove(asks []request, w *waiter) {
	b.size--
	at := b.setOf(asks)
	for i, q := range asks {
		list := &b.sets[at].lists[i]
		from, _ := slices.BinarySearchFunc(*list, requester{amount: q.value, waiter: w}, fewerFirst)
		*list = slices.Delete(*list, from, from+1)
	}
	if len(b.sets[at].lists[0]) == 0 {
		b.sets = slices.Delete(b.sets, at, at+1)
	}
}

func fewerFirst(a, b requester) int {
	return cmp.Or(cmp.Compare(a.amount, b.amount), cmp.Compare(a.waiter.number, b.waiter.number))
}

// each calls see for the waiters to which what has happened on row r may matter.
func (x *rowIndex) each(c *cluster, r row, see func(*waiter)) {
	if !c.Present(r) {
		return
	}
	c.waits.events++
	e := rowEvent{c: c, row: r, number: c.waits.events, preemptors: c.waits.anyPreemptor(c)}
	x.others.each(&e, see)
	if len(x.byName) > 0 {
		x.byName[c.name[r]].each(&e, see)
	}
	if len(x.byLabel) > 0 {
		for _, l := range c.labels[r] {
			x.byLabel[l].each(&e, see)
		}
	}
}

// each leaves out whom nothing that has happened helps. Of who hears of room only, it looks at those that ask for no
// more of a resource than the row could have.
func (b *bucket) each(e *rowEvent, see func(*waiter)) {
	if b == nil {
		return
	}
	for i := range b.sets {
		list := b.sets[i].lists[0]
		if b.roomOnly {
			list = b.sets[i].within(e)
		}
		for _, q := range list {
			if e.mayHelp(q.waiter) {
				see(q.waiter)
			}
		}
	}
}

// within lists who asks for no more of a column than there could be: of that column by which they are fewest.
func (s *requesters) within(e *rowEvent) (fewest []requester) {
	for i, column := range s.columns {
		free, most := e.c.freeIn(e.row, column)
		if !e.preemptors {
			most = free
		}
		list := s.lists[i]
		n, _ := slices.BinarySearchFunc(list, most, noMoreThan)
		if i == 0 || n < len(fewest) {
			fewest = list[:n]
		}
	}
	return fewest
}

// noMoreThan is for the search of the first who asks for more than most.
func noMoreThan(q requester, most int64) int {
	if q.amount <= most {
		return -1
	}
	return 1
}
