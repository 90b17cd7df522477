package scheduler

import (
	"cmp"
	"math"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// A rowIndex finds the waiters to which a change on one row may matter. Waiters that require a label or name are
// indexed by it. The waiters under each label or name are indexed by the amounts of resources that they request.
type rowIndex struct {
	roomOnly bool // all waiters in it are to be notified only if there may be room
	byLabel  map[selector.LabelID]*bucket
	byName   map[string]*bucket
	// Waiters that require no label or name.
	others *bucket
}

// bucket has waiters grouped by the resources that they request.
type bucket struct {
	roomOnly bool // see rowIndex
	size     int  // how many waiters it has
	sets     []requesters
}

// requesters are waiters that request the same resources. For each resource there is a list of them, sorted by the
// amount. A waiter that requests more of a resource than is free cannot fit. So for each resource only the first part
// of its list matters, and the shortest of these parts has all waiters that may fit.
type requesters struct {
	columns []int         // the resources; podsColumn stands for room for one pod
	lists   [][]requester // for each of columns
}

type requester struct {
	amount int64
	waiter *waiter
}

// podsColumn stands for the number of pods on a node.
const podsColumn = -1

// anyRoom is the amount for waiters to which resources do not matter.
const anyRoom = math.MinInt64

// columnsMax is the largest number of resources by which a waiter is listed: those of which it requests the largest
// parts of a node. Chosen: common pods request CPU, memory and a device.
const columnsMax = 4

// spot is the place of a waiter in a rowIndex.
type spot struct {
	in     bool               // it is in the index
	labels []selector.LabelID // under which it is indexed
	names  []string           // under which it is indexed; without labels and names, it is in others
	asks   []request          // the requests by which it is listed
}

func newRowIndex(roomOnly bool) rowIndex {
	return rowIndex{
		roomOnly: roomOnly,
		byLabel:  map[selector.LabelID]*bucket{},
		byName:   map[string]*bucket{},
		others:   &bucket{roomOnly: roomOnly},
	}
}

// labelsMax is the largest number of labels under which a waiter is indexed; a waiter with more is in others. Chosen:
// terms that people write name fewer.
const labelsMax = 32

// add adds w under labels or names of which every row on which it fits has one.
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

// demanded returns labels or names of which every row on which d fits has at least one; none: there is no such
// requirement.
func (x *rowIndex) demanded(d *demand) (labels []selector.LabelID, names []string) {
	if !d.profile.Skip["NodeAffinity"] {
		if d.onlyNames != nil {
			return nil, d.onlyNames
		}
		for _, l := range d.nodeSelector { // the one with the fewest waiters
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

// scarcest returns the requests of d that are the largest parts of a node, sorted by column. A few nodes are examined
// to find them.
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

// mostOf returns the most that any of a few nodes has of a column's resource.
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

// setOf returns the index of the requesters with these columns; -1: there are none.
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

// each calls see for the waiters to which a change on row r may matter.
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

// each calls see for the waiters that the change may help. If roomOnly, it examines only those that request no more of
// a resource than the row could have.
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

// within returns the waiters that request no more of a resource than could be free, for the resource with the fewest
// such waiters.
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

// noMoreThan compares for a binary search for the first requester of more than most.
func noMoreThan(q requester, most int64) int {
	if q.amount <= most {
		return -1
	}
	return 1
}
