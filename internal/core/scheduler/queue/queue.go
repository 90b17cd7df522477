// Package queue is the scheduler's queue: it has the pods that wait to be scheduled, and says which is next and when.
//
// # Model
//
// Each entry is in one pool at a time. Active entries are ready: the highest priority first, then the one that waited
// longest. Other entries are in back-off after a failure, or wait for something else (Gated, Unschedulable, Binding).
// An entry that is being tried is in no pool (Absent). Pop takes out the next entry; the caller tries it, and then
// moves it to the pool that fits the outcome. The back-off doubles with each failure in a row, up to a limit. Failed
// placements and failed binds are counted separately.
//
// # Invariants
//
//   - The order is total and depends only on priorities, times and IDs: the same history gives the same order.
//   - The back-off of a failed bind is always waited out. The back-off of a failed placement ends early when no entry
//     is active: an event may have made room for the entry, and the scheduler is idle.
//   - The function given to New is called for each entry that leaves the pool Unschedulable, whichever pool it goes to.
//
// The queue knows nothing about nodes. The caller decides what an entry waits for, and whether it has happened. The
// queue reads no clock. One goroutine at a time may use it.
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

// The back-off of an entry after its n-th failure in a row is BackoffFirst, doubled n-1 times, up to BackoffMax. These
// are upstream's defaults of podInitialBackoffSeconds and podMaxBackoffSeconds. Higher values put less load on a busy
// API server, and delay recovery.
const (
	BackoffFirst = time.Second
	BackoffMax   = 10 * time.Second
)

// Pool is where an entry waits.
type Pool uint8

const (
	// Absent is no pool: the entry was popped, or removed.
	Absent Pool = iota
	// Gated entries may not be tried: only a change of the entry itself helps.
	Gated
	// Active entries are ready to be tried.
	Active
	// Backoff is for entries that an event may have helped. They become ready when their back-off ends, or at once when
	// no entry is active.
	Backoff
	// FailedBind is for entries whose bind failed. They become ready when their back-off ends, never earlier: the API
	// server needs the pause.
	FailedBind
	// BindUnknown is like FailedBind, but the bind may have succeeded: its outcome is not known.
	BindUnknown
	// Unschedulable entries fit on no node until something changes.
	Unschedulable
	// Binding is for entries that were placed, until the outcome of the bind is known, and for entries about which
	// extenders are asked.
	Binding
)

// Entry has the queue's data about one thing that waits. Types with more data embed an Entry.
type Entry struct {
	// ID identifies the entry. It does not change while the entry is in a queue.
	ID string
	// The owner may change Priority and Gated, and must call Queue.Updated after that.
	Priority int32
	Gated    bool // the entry may not be tried
	pool     Pool // only Queue.move changes it

	// Came is when the entry was added.
	Came unit.Instant
	// Attempts counts how often a placement was tried. The caller increments it.
	Attempts int

	failures     int32        // failed placements in a row
	bindFailures int32        // failed binds in a row
	since        unit.Instant // when it was added or last failed; at equal priority, the earlier entry goes first
	until        unit.Instant // the end of its back-off
	place        int          // its index in the heap of its pool
}

// Pool returns the pool in which the entry is.
func (e *Entry) Pool() Pool { return e.pool }

// HasFailed reports whether the last placement failed.
func (e *Entry) HasFailed() bool { return e.failures > 0 }

func (e *Entry) entry() *Entry { return e }

// An Item is a pointer to something that embeds an Entry.
type Item interface {
	comparable
	entry() *Entry
}

// Queue has each item in exactly one pool. New makes a queue.
type Queue[T Item] struct {
	first, longest time.Duration // the shortest and the longest back-off
	woken          func(T)       // called when an item leaves the pool Unschedulable
	items          map[string]T  // by ID
	active         heap.Heap[T]  // the pool Active, in the order of inOrder
	backoff        heap.Heap[T]  // the pool Backoff, the first due first
	failed         heap.Heap[T]  // the pools FailedBind and BindUnknown, the first due first
}

// New returns an empty queue. first and longest bound the back-off; zero stands for BackoffFirst and BackoffMax. woken
// is called with each item that leaves the pool Unschedulable, before the item is in another pool.
func New[T Item](first, longest time.Duration, woken func(T)) *Queue[T] {
	place := func(x T) *int { return &x.entry().place }
	inTurn := func(a, b T) int { return inOrder(a.entry(), b.entry()) }
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

// inOrder orders by priority, highest first, then by time, then by ID, so that the order is total.
func inOrder(a, b *Entry) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.since, b.since), strings.Compare(a.ID, b.ID))
}

func dueFirst(a, b *Entry) int { return cmp.Or(cmp.Compare(a.until, b.until), inOrder(a, b)) }

// Find returns the item with an ID, or the zero value if there is none.
func (q *Queue[T]) Find(id string) T { return q.items[id] }

// PoolOf returns the pool of the item with an ID.
func (q *Queue[T]) PoolOf(id string) Pool {
	if x, ok := q.items[id]; ok {
		return x.entry().pool
	}
	return Absent
}

// All yields every item, in no order.
func (q *Queue[T]) All() iter.Seq[T] { return maps.Values(q.items) }

// Len returns how many items there are.
func (q *Queue[T]) Len() int { return len(q.items) }

// Add adds x to the queue, in no pool.
func (q *Queue[T]) Add(now unit.Instant, x T) {
	e := x.entry()
	e.Came, e.since = now, now
	q.items[e.ID] = x
}

// Updated moves x to the right pool after a change of the pod: Gated and Priority may have changed. changed says that x
// should be tried again, because what keeps it from being placed may have changed, too.
func (q *Queue[T]) Updated(now unit.Instant, x T, changed bool) {
	switch e := x.entry(); e.pool {
	case Active, Backoff, FailedBind, BindUnknown:
		q.heapOf(e.pool).Set(x)
		if e.Gated && e.pool != BindUnknown {
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

// Pop takes the next item out of its pool; ok is false if there is none. While no item is active, it takes items from
// Backoff before their back-off ends.
func (q *Queue[T]) Pop(now unit.Instant) (x T, ok bool) {
	for q.failed.Len() > 0 && q.failed.First().entry().until <= now {
		due := q.failed.First()
		if e := due.entry(); e.pool == BindUnknown && e.Gated {
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

// Take takes x out of its pool, even if it is not the first there.
func (q *Queue[T]) Take(x T) { q.move(x, Absent) }

// Ready makes x active or, if its back-off has not ended, moves it to Backoff.
func (q *Queue[T]) Ready(now unit.Instant, x T) {
	if now < x.entry().until {
		q.move(x, Backoff)
		return
	}
	q.move(x, Active)
}

// Resume makes x active without regard to its back-off: the question about it was answered.
func (q *Queue[T]) Resume(x T) { q.move(x, Active) }

// Placed moves x to Binding until the outcome of its bind is known, or until extenders have answered.
func (q *Queue[T]) Placed(x T) {
	x.entry().failures = 0
	q.move(x, Binding)
}

// Await moves x, which fit nowhere, to Binding until extenders have answered.
func (q *Queue[T]) Await(x T) { q.move(x, Binding) }

// Failed records that x was tried and fit nowhere. x stays in no pool; the caller must call Wait.
func (q *Queue[T]) Failed(now unit.Instant, x T) {
	e := x.entry()
	e.failures++
	e.since, e.until = now, now.Add(q.backoffAfter(e.failures))
}

// Wait moves x to the pool Unschedulable.
func (q *Queue[T]) Wait(x T) { q.move(x, Unschedulable) }

// BindFailed records a failed bind: x becomes ready after its back-off. lost says that the bind may have succeeded.
func (q *Queue[T]) BindFailed(now unit.Instant, x T, lost bool) {
	e := x.entry()
	e.bindFailures++
	e.since, e.until = now, now.Add(q.backoffAfter(e.bindFailures))
	if lost {
		q.move(x, BindUnknown)
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

// Remove removes x from the queue.
func (q *Queue[T]) Remove(x T) {
	q.move(x, Absent)
	delete(q.items, x.entry().ID)
}

// NextDue returns when the first failed bind becomes ready; zero if there is none.
func (q *Queue[T]) NextDue() unit.Instant {
	if q.failed.Len() == 0 {
		return 0
	}
	return q.failed.First().entry().until
}

// Counts returns the number of items, by the labels of upstream's metric scheduler_pending_pods.
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

// move takes x out of its pool and puts it into pool to.
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

// heapOf returns the heap with the items of a pool, or nil for pools without order.
func (q *Queue[T]) heapOf(p Pool) *heap.Heap[T] {
	switch p {
	case Active:
		return &q.active
	case Backoff:
		return &q.backoff
	case FailedBind, BindUnknown:
		return &q.failed
	}
	return nil
}
