package placement

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/selector"
)

// A rowIndex finds the waiters to which something that has happened on one row may matter: of those that demand one of
// the row's labels, or its name, or none, those whose request of the resource that is scarcest for them may fit.
type rowIndex struct {
	roomOnly bool // everybody in it hears of room
	byLabel  map[selector.LabelID]*bucket
	byName   map[string]*bucket
	others   *bucket
}

// bucket holds waiters by the resource that is scarcest for them.
type bucket struct {
	roomOnly bool
	size     int
	lists    []requesters
}

// requesters ask for some of a column, from the least on.
type requesters struct {
	column int // podsColumn: room for one pod
	list   []requester
}

type requester struct {
	amount int64
	waiter *waiter
}

// podsColumn stands for the number of pods that a node takes.
const podsColumn = -1

// spot is where a waiter is in a rowIndex.
type spot struct {
	in     bool
	labels []selector.LabelID
	names  []string
	column int
	amount int64
}

func newRowIndex(roomOnly bool) rowIndex {
	return rowIndex{roomOnly: roomOnly, byLabel: map[selector.LabelID]*bucket{}, byName: map[string]*bucket{}, others: &bucket{roomOnly: roomOnly}}
}

// labelsMax is how many labels a waiter may be found by. Chosen: with more it is among those that are found by none.
const labelsMax = 32

// add puts w where it is found by a label or name without which no row is of use to it.
func (x *rowIndex) add(c *cluster, w *waiter) spot {
	at := spot{in: true}
	at.column, at.amount = c.scarcest(w.demand)
	at.labels, at.names = x.demanded(w.demand)
	x.eachBucket(&at, func(b *bucket) { b.add(at.column, requester{at.amount, w}) })
	return at
}

func (x *rowIndex) remove(w *waiter, at spot) {
	if !at.in {
		return
	}
	x.eachBucket(&at, func(b *bucket) { b.remove(at.column, requester{at.amount, w}) })
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

// scarcest is the resource of which d asks for the largest part of a node, as far as a few nodes tell.
func (c *cluster) scarcest(d *demand) (column int, amount int64) {
	const nodes = 8
	column, amount = podsColumn, 1
	most := 0.0
	for _, q := range d.requests {
		if d.profile.ignores(c.columns.all[q.column].resource) {
			continue
		}
		have, seen := int64(0), 0
		for r := range c.name {
			if !c.seen[r] {
				continue
			}
			have = max(have, c.columns.has(q.column, row(r)))
			if seen++; seen == nodes {
				break
			}
		}
		if part := float64(q.value) / float64(max(have, 1)); part > most {
			most, column, amount = part, q.column, q.value
		}
	}
	return column, amount
}

func (b *bucket) add(column int, q requester) {
	b.size++
	at := slices.IndexFunc(b.lists, func(l requesters) bool { return l.column == column })
	if at < 0 {
		at = len(b.lists)
		b.lists = append(b.lists, requesters{column: column})
	}
	l := &b.lists[at]
	i, _ := slices.BinarySearchFunc(l.list, q, fewerFirst)
	l.list = slices.Insert(l.list, i, q)
}

func (b *bucket) remove(column int, q requester) {
	b.size--
	at := slices.IndexFunc(b.lists, func(l requesters) bool { return l.column == column })
	l := &b.lists[at]
	i, _ := slices.BinarySearchFunc(l.list, q, fewerFirst)
	if l.list = slices.Delete(l.list, i, i+1); len(l.list) == 0 {
		b.lists = slices.Delete(b.lists, at, at+1)
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
	x.others.each(c, r, see)
	if len(x.byName) > 0 {
		x.byName[c.name[r]].each(c, r, see)
	}
	if len(x.byLabel) > 0 {
		for _, l := range c.labels[r] {
			x.byLabel[l].each(c, r, see)
		}
	}
}

// each leaves out who asks for more than the row could have. Those who do not hear of room yet are to: it may be all
// that keeps them off now.
func (b *bucket) each(c *cluster, r row, see func(*waiter)) {
	if b == nil {
		return
	}
	for i := range b.lists {
		l := &b.lists[i]
		f := freeRoom{column: l.column}
		f.now, f.most = c.freeIn(r, l.column)
		if !c.waits.anyPreemptor(c) {
			f.most = f.now
		}
		for _, q := range l.list {
			if b.roomOnly && q.amount > f.most {
				break
			}
			if q.amount <= f.now || q.waiter.rules&RuleResources == 0 || q.amount <= f.most && q.amount <= f.without(c, r, q.waiter) {
				see(q.waiter)
			}
		}
	}
}

// freeRoom is what is free of a column on a row, now, at most, and without the pods below some priorities.
type freeRoom struct {
	column    int
	now, most int64
	above     map[int32]int64
}

// without is what would be free for w if it evicted whom it may.
func (f *freeRoom) without(c *cluster, r row, w *waiter) int64 {
	if !w.maySearch() {
		return f.now
	}
	p := w.demand.priority
	if _, known := f.above[p]; !known {
		if f.above == nil {
			f.above = map[int32]int64{}
		}
		f.above[p] = c.freeAbove(r, f.column, p)
	}
	return f.above[p]
}

// freeIn is what is free of a column on row r, and how much there would be at most if pods were evicted.
func (c *cluster) freeIn(r row, column int) (free, most int64) {
	if column == podsColumn {
		return c.podsMax[r] - c.podsHeld[r], c.podsMax[r]
	}
	most = c.columns.has(column, r)
	return most - c.columns.takes(column, r), most
}

// freeAbove is what would be free without the pods below a priority.
func (c *cluster) freeAbove(r row, column int, priority int32) (free int64) {
	free, _ = c.freeIn(r, column)
	for _, h := range c.held[r] {
		if h.class.priority >= priority {
			continue
		}
		if column == podsColumn {
			free++
			continue
		}
		for _, q := range h.class.requests {
			if q.column == column {
				free += q.value
			}
		}
	}
	return free
}

// anyPreemptor reports whether a waiter could evict any pod that is counted.
func (s *waits) anyPreemptor(c *cluster) bool {
	for p := range s.preemptors {
		if c.anyBelow(p) {
			return true
		}
	}
	return false
}
