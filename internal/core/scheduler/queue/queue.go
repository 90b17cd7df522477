// Package queue holds what waits to be tried, and says what is next and when.
//
// # Model
//
// Each entry is in one pool at a time: it is active (ready, the highest priority first, then who has waited longest),
// sits out a back-off after a failure, waits for somebody else (Gated, Unschedulable, Binding), or is in none while it
// is being tried (Absent). Pop takes the next out; who tried it says what came of that, by the pool into which it goes
// then. A back-off doubles with each failure in a row, up to a limit; failed placements and failed binds are counted
// apart.
//
// # Invariants
//
//   - The order is total and depends on nothing but priorities, times and IDs: the same history gives the same order.
//   - The back-off of a failed bind is waited out. That of a failed placement ends at once when nothing is active:
//     whoever woke the entry promised it a place, and the scheduler is idle.
//   - Whoever leaves the pool Unschedulable is reported to the function given to New, wherever it goes.
//
// The queue knows no nodes and no rules: what an entry waits for, and when that has come, is for others to know. It
// reads no clock, and is for one goroutine at a time.
package queue

import (
	"cmp"
	"iter"
	"maps"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Back-off of an entry after its n-th failure in a row: the first doubled n-1 times, up to the longest. Upstream's
// defaults of podInitialBackoffSeconds and podMaxBackoffSeconds. Raising them spares a busy API server and delays
// recovery.
const (
	BackoffFirst = time.Second
	BackoffMax   = 10 * time.Second
)

// Pool is where an entry waits.
type Pool uint8

const (
	// Absent is no pool: a popped entry, or one that is gone.
	Absent Pool = iota
	// Gated entries may not be tried: no one but their owner can help them.
	Gated
	// Active entries are ready.
	Active
	// Backoff is for entries that an event may have helped. They are due at the end of their back-off, or at once when
	// nobody is active.
	Backoff
	// FailedBind is for entries whose bind failed. They are due at the end of their back-off, never earlier: the API
	// server needs the pause.
	FailedBind
	// Unsettled is as FailedBind, but the bind may have happened.
	Unsettled
	// Unschedulable entries fit nowhere until something happens.
	Unschedulable
	// Binding is for entries that were placed, with the fate of the bind on its way, or about which others are asked.
	Binding
)

// Entry is what the queue keeps of one thing that waits. Who has more to keep of it embeds an Entry.
type Entry struct {
	// ID tells entries apart. It does not change while the entry is in a queue.
	ID string
	// Priority and Gated may change; Queue.Seen is told then.
	Priority int32
	Gated    bool // it may not be tried
	pool     Pool

	// Came is when the entry was added.
	Came unit.Instant
	// Attempts counts placements tried. Who tries counts them.
	Attempts int

	misses int32        // placements in a row that found no place
	errors int32        // binds in a row that failed
	since  unit.Instant // when it was added or last failed: the longer ago, the earlier its turn
	until  unit.Instant // end of its back-off
	place  int          // in the heap of its pool
}

// Pool is where the entry waits.
func (e *Entry) Pool() Pool { return e.pool }

// Missed reports whether the last placement found no place.
func (e *Entry) Missed() bool { return e.misses > 0 }

func (e *Entry) entry() *Entry { return e }

// An Item is a pointer to something that embeds an Entry.
type Item interface {
	comparable
	entry() *Entry
}

// Queue holds every item in exactly one pool. Make it with New.
type Queue[T Item] struct {
	first, longest time.Duration // back-off
	woken          func(T)
	items          map[string]T
	active         heap.Heap[T]
	backoff        heap.Heap[T]
	failed         heap.Heap[T] // pools FailedBind and Unsettled
}

// New returns an empty queue. first and longest bound the back-off, zero is BackoffFirst and BackoffMax. woken is
// called with each item that leaves the pool Unschedulable, before it is anywhere else.
func New[T Item](first, longest time.Duration, woken func(T)) *Queue[T] {
	place := func(x T) *int { return &x.entry().place }
	inTurn := func(a, b T) int { return inTurn(a.entry(), b.entry()) }
	dueFirst := func(a, b T) int { return dueFirst(a.entry(), b.entry()) }
	return &Queue[T]{
		first:   cmp.Or(first, BackoffFirst),
		longest: cmp.Or(longest, BackoffMax),
		woken:   woken,
		items:   map[string]T{},
		active:  heap.New(inTurn, place),
		backoff: heap.New(dueFirst, place),
		failed:  heap.New(dueFirst, place),
	}
}

// inTurn orders by priority, highest first, then by time, then by ID so that the order is total.
func inTurn(a, b *Entry) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.since, b.since), strings.Compare(a.ID, b.ID))
}

func dueFirst(a, b *Entry) int { return cmp.Or(cmp.Compare(a.until, b.until), inTurn(a, b)) }

// Find returns the item of an ID; the zero value if there is none.
func (q *Queue[T]) Find(id string) T { return q.items[id] }

// PoolOf tells where the item of an ID waits.
func (q *Queue[T]) PoolOf(id string) Pool {
	if x, ok := q.items[id]; ok {
		return x.entry().pool
	}
	return Absent
}

// All yields every item, in no order.
func (q *Queue[T]) All() iter.Seq[T] { return maps.Values(q.items) }

// Len is how many items there are.
func (q *Queue[T]) Len() int { return len(q.items) }

// Add makes x an item of the queue, in no pool yet.
func (q *Queue[T]) Add(now unit.Instant, x T) {
	e := x.entry()
	e.Came, e.since = now, now
	q.items[e.ID] = x
}

// Seen puts x where it belongs after something about it was seen: its gates and priority may be others. changed: so may
// what keeps it from being placed, and it is worth a try.
func (q *Queue[T]) Seen(now unit.Instant, x T, changed bool) {
	switch e := x.entry(); e.pool {
	case Active, Backoff, FailedBind, Unsettled:
		q.heapOf(e.pool).Set(x)
		if e.Gated && e.pool != Unsettled {
			q.move(x, Gated)
		}
	case Unschedulable:
		if e.Gated {
			q.move(x, Gated)
		} else if changed {
			q.Ready(now, x)
		}
	case Binding:
		if e.Gated {
			q.move(x, Gated)
		}
	default:
		if e.Gated {
			q.move(x, Gated)
		} else {
			q.Ready(now, x)
		}
	}
}

// Pop takes the next item to try out of its pool; ok is false if there is none. While nothing is active, items in
// Backoff come at once.
func (q *Queue[T]) Pop(now unit.Instant) (x T, ok bool) {
	for q.failed.Len() > 0 && q.failed.First().entry().until <= now {
		due := q.failed.First()
		if e := due.entry(); e.pool == Unsettled && e.Gated {
			q.move(due, Gated)
		} else {
			q.move(due, Active)
		}
	}
	for q.backoff.Len() > 0 && q.backoff.First().entry().until <= now {
		q.move(q.backoff.First(), Active)
	}
	switch {
	case q.active.Len() > 0:
		x = q.active.First()
	case q.backoff.Len() > 0:
		x = q.backoff.First()
	default:
		return x, false
	}
	q.move(x, Absent)
	return x, true
}

// Take takes x out of its pool, whatever its turn.
func (q *Queue[T]) Take(x T) { q.move(x, Absent) }

// Ready makes x active, or lets it sit out its back-off.
func (q *Queue[T]) Ready(now unit.Instant, x T) {
	if now < x.entry().until {
		q.move(x, Backoff)
		return
	}
	q.move(x, Active)
}

// Resume makes x active, whatever its back-off: others have answered what was asked about it.
func (q *Queue[T]) Resume(x T) { q.move(x, Active) }

// Placed keeps x until the fate of its bind is known, or until others have said where it may go.
func (q *Queue[T]) Placed(x T) {
	x.entry().misses = 0
	q.move(x, Binding)
}

// Hold keeps x, which has found no place, until others have answered what was asked about it.
func (q *Queue[T]) Hold(x T) { q.move(x, Binding) }

// Miss notes that x was tried and found no place. It is in no pool yet; see Wait.
func (q *Queue[T]) Miss(now unit.Instant, x T) {
	e := x.entry()
	e.misses++
	e.since, e.until = now, now.Add(q.backoffAfter(e.misses))
}

// Wait keeps x in the pool Unschedulable.
func (q *Queue[T]) Wait(x T) { q.move(x, Unschedulable) }

// BindFailed lets x try again after its back-off. lost: the bind may have happened.
func (q *Queue[T]) BindFailed(now unit.Instant, x T, lost bool) {
	e := x.entry()
	e.errors++
	e.since, e.until = now, now.Add(q.backoffAfter(e.errors))
	if lost {
		q.move(x, Unsettled)
	} else {
		q.move(x, FailedBind)
	}
}

func (q *Queue[T]) backoffAfter(failures int32) time.Duration {
	d := q.first
	for ; failures > 1 && d < q.longest; failures-- {
		d *= 2
	}
	return min(d, q.longest)
}

// Remove drops x for good.
func (q *Queue[T]) Remove(x T) {
	q.move(x, Absent)
	delete(q.items, x.entry().ID)
}

// Wake is when the first failed bind is due. Zero: there is none.
func (q *Queue[T]) Wake() unit.Instant {
	if q.failed.Len() == 0 {
		return 0
	}
	return q.failed.First().entry().until
}

// Counts gives the size of each pool under the names of upstream's scheduler_pending_pods metric.
func (q *Queue[T]) Counts() map[string]int {
	n := map[string]int{
		"active":  q.active.Len(),
		"backoff": q.backoff.Len() + q.failed.Len(),
	}
	for _, x := range q.items {
		switch x.entry().pool {
		case Gated:
			n["gated"]++
		case Unschedulable:
			n["unschedulable"]++
		}
	}
	return n
}

// move takes x out of its pool and puts it into to.
func (q *Queue[T]) move(x T, to Pool) {
	e := x.entry()
	if h := q.heapOf(e.pool); h != nil {
		h.Remove(x)
	}
	if e.pool == Unschedulable {
		q.woken(x)
	}
	e.pool = to
	if h := q.heapOf(to); h != nil {
		h.Set(x)
	}
}

// heapOf is where the items of a pool are in order; nil: nowhere.
func (q *Queue[T]) heapOf(p Pool) *heap.Heap[T] {
	switch p {
	case Active:
		return &q.active
	case Backoff:
		return &q.backoff
	case FailedBind, Unsettled:
		return &q.failed
	}
	return nil
}
