package placement

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Back-off of a pod after its n-th failure in a row: the first doubled n-1 times, up to the longest. Upstream's
// defaults of podInitialBackoffSeconds and podMaxBackoffSeconds. Raising them spares a busy API server and delays
// recovery.
const (
	backoffMin = time.Second
	backoffMax = 10 * time.Second
)

// pool is where a pending pod waits.
type pool int

const (
	absent        pool = iota
	gated              // has scheduling gates: no one but its owner can help it
	active             // ready; ordered by priority, then by how long it waited
	backoff            // an event may have helped it; due at until, or at once when active is empty
	failedBind         // its bind failed; due at until, never earlier: the API server needs the pause
	unsettled          // as failedBind, but the bind may have happened: still assumed
	unschedulable      // fits nowhere until an event wakes its class
	binding            // placed, and the fate of its bind is on the way; or others are asked about it
)

// entry is one pending pod.
type entry struct {
	pod    Pod
	class  *class
	who    *census.Identity
	demand *demand // as of its last attempt; nil before the first
	pool   pool
	// opinion is what others said about it since it was asked about; nil: nothing yet.
	opinion *Opinion
	// evictions is what others left of those they were asked about; nil: nothing was heard yet.
	evictions *[]Preemption
	place     int // in the heap of its pool

	came     unit.Instant // when it was first seen
	attempts int          // placements tried
	misses   int          // of them, ended unschedulable in a row
	errors   int          // binds failed in a row
	since    unit.Instant // when it was added or last failed: the longer ago, the earlier its turn
	until    unit.Instant // end of its back-off
	flushed  bool         // a check has found that it had been forgotten
}

// queue holds every pending pod in exactly one pool.
type queue struct {
	cluster        *cluster
	first, longest time.Duration // back-off
	entries        map[PodID]*entry
	active         heap.Heap[*entry]
	backoff        heap.Heap[*entry]
	failed         heap.Heap[*entry] // pools failedBind and unsettled
}

func newQueue(c *cluster, first, longest time.Duration) *queue {
	return &queue{
		cluster: c, first: first, longest: longest,
		entries: map[PodID]*entry{},
		active:  heap.New(inTurn, placeOf),
		backoff: heap.New(dueFirst, placeOf),
		failed:  heap.New(dueFirst, placeOf),
	}
}

// inTurn orders by priority, highest first, then by time, then by id so that the order is total.
func inTurn(a, b *entry) int {
	return cmp.Or(cmp.Compare(b.pod.Priority, a.pod.Priority), cmp.Compare(a.since, b.since), strings.Compare(string(a.pod.ID), string(b.pod.ID)))
}

func dueFirst(a, b *entry) int { return cmp.Or(cmp.Compare(a.until, b.until), inTurn(a, b)) }

func placeOf(e *entry) *int { return &e.place }

// stateOf tells where a pod waits.
func (q *queue) stateOf(id PodID) pool {
	if e := q.entries[id]; e != nil {
		return e.pool
	}
	return absent
}

// put adds a pending pod or replaces what is known of it. A change that matters to the rules is an event that may help
// the pod itself.
func (q *queue) put(now unit.Instant, pod Pod) {
	e := q.entries[pod.ID]
	if e == nil {
		e = &entry{since: now, came: now}
		q.entries[pod.ID] = e
	}
	was := e.pool
	changed := q.describe(e, pod)
	if was == active || was == backoff || was == failedBind || was == unsettled {
		q.reorder(e) // the priority may have changed
		if len(pod.Gates) > 0 && was != unsettled {
			q.move(e, gated)
		}
		return
	}
	switch {
	case len(pod.Gates) > 0:
		q.move(e, gated)
	case was == unschedulable && !changed:
	case was == binding:
	default:
		q.ready(now, e)
	}
}

// describe writes down what is known of a pod now. changed: it matters to the rules.
func (q *queue) describe(e *entry, pod Pod) (changed bool) {
	k, who := q.cluster.compile(&pod), q.cluster.identify(&pod)
	changed = e.class != k || e.who != who
	q.release(e)
	e.pod, e.class, e.who = pod, k, who
	return changed
}

// release lets go of what e holds.
func (q *queue) release(e *entry) {
	if e.class != nil {
		q.cluster.releaseClass(e.class)
		q.cluster.releaseIdentity(e.who)
	}
}

// ready makes e active, or lets it sit out its back-off.
func (q *queue) ready(now unit.Instant, e *entry) {
	if now < e.until {
		q.move(e, backoff)
		return
	}
	q.move(e, active)
}

// remove drops a pod for good.
func (q *queue) remove(id PodID) {
	if e := q.entries[id]; e != nil {
		q.move(e, absent)
		q.release(e)
		delete(q.entries, id)
	}
}

// settle drops a pod whose bind the API accepted.
func (q *queue) settle(id PodID) { q.remove(id) }

// pop takes the next pod to try, or nil. While active has none, pods in back-off come at once: an event promised them a
// place, and the scheduler is idle.
func (q *queue) pop(now unit.Instant) *entry {
	for q.failed.Len() > 0 && q.failed.First().until <= now {
		e := q.failed.First()
		if e.pool == unsettled && len(e.pod.Gates) > 0 {
			q.move(e, gated)
			continue
		}
		q.move(e, active)
	}
	for q.backoff.Len() > 0 && q.backoff.First().until <= now {
		q.move(q.backoff.First(), active)
	}
	var e *entry
	switch {
	case q.active.Len() > 0:
		e = q.active.First()
	case q.backoff.Len() > 0:
		e = q.backoff.First()
	default:
		return nil
	}
	q.move(e, absent)
	return e
}

// parkBinding keeps a popped, placed pod until its bind is settled.
func (q *queue) parkBinding(e *entry) {
	e.misses = 0
	q.move(e, binding)
}

// parkUnschedulable keeps a popped pod that fits nowhere.
func (q *queue) parkUnschedulable(now unit.Instant, e *entry) {
	e.misses++
	e.since, e.until = now, now.Add(q.backoffAfter(e.misses))
	q.wait(now, e)
}

// wait puts e into the unschedulable pool, with the others of its demand.
func (q *queue) wait(now unit.Instant, e *entry) *waiter {
	e.flushed = false
	q.move(e, absent)
	e.pool = unschedulable
	return q.cluster.park(now, e)
}

// renew lets e wait as what it is now, if it has become another to others since it began to wait, and be asked about.
func (q *queue) renew(now unit.Instant, e *entry) bool {
	fresh := q.cluster.demandOf(e.class, e.who, e.pod.Owner)
	if fresh == e.demand {
		return false
	}
	q.move(e, absent)
	e.demand = fresh
	q.cluster.waits.concernAll(q.wait(now, e))
	return true
}

// bindFailed lets a pod try again after its back-off. lost: the bind may have happened.
func (q *queue) bindFailed(now unit.Instant, pod Pod, lost bool) {
	e := q.entries[pod.ID]
	if e == nil {
		e = &entry{came: now}
		q.describe(e, pod)
		q.entries[pod.ID] = e
	}
	e.errors++
	e.since, e.until = now, now.Add(q.backoffAfter(e.errors))
	if lost {
		q.move(e, unsettled)
	} else {
		q.move(e, failedBind)
	}
}

func (q *queue) backoffAfter(failures int) time.Duration {
	d := q.first
	for ; failures > 1 && d < q.longest; failures-- {
		d *= 2
	}
	return min(d, q.longest)
}

// renewAll does so for the waiting pods of a namespace that are meant otherwise now.
func (q *queue) renewAll(now unit.Instant, namespace string, meant func(*entry) bool) {
	for _, w := range slices.SortedFunc(maps.Values(q.cluster.waits.of), func(a, b *waiter) int { return cmp.Compare(a.number, b.number) }) {
		for _, id := range slices.Sorted(maps.Keys(w.pods)) {
			if e := w.pods[id]; e.who.Namespace == namespace && meant(e) {
				q.renew(now, e)
			}
		}
	}
}

// wakeAt is when the first failed bind is due.
func (q *queue) wakeAt() unit.Instant {
	if q.failed.Len() == 0 {
		return 0
	}
	return q.failed.First().until
}

// counts gives the size of each pool under the names of upstream's scheduler_pending_pods metric.
func (q *queue) counts() map[string]int {
	n := map[string]int{
		"active":  q.active.Len(),
		"backoff": q.backoff.Len() + q.failed.Len(),
	}
	for _, e := range q.entries {
		switch e.pool {
		case gated:
			n["gated"]++
		case unschedulable:
			n["unschedulable"]++
		}
	}
	return n
}

// move takes e out of its pool and puts it into to, which is not the unschedulable one; see wait.
func (q *queue) move(e *entry, to pool) {
	if h := q.heapOf(e.pool); h != nil {
		h.Remove(e)
	}
	if e.pool == unschedulable {
		q.cluster.unpark(e)
	}
	e.pool = to
	if h := q.heapOf(to); h != nil {
		h.Set(e)
	}
}

func (q *queue) reorder(e *entry) {
	if h := q.heapOf(e.pool); h != nil {
		h.Set(e)
	}
}

func (q *queue) heapOf(p pool) *heap.Heap[*entry] {
	switch p {
	case active:
		return &q.active
	case backoff:
		return &q.backoff
	case failedBind, unsettled:
		return &q.failed
	}
	return nil
}
