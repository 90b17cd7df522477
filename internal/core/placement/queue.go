package placement

import (
	"cmp"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Back-off of a pod after its n-th failure in a row: the first doubled n-1 times, up to the longest. Upstream's defaults of
// podInitialBackoffSeconds and podMaxBackoffSeconds. Raising them spares a busy API server and delays recovery.
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
	who    *identity
	demand *demand // as of its last attempt; nil before the first
	pool   pool
	// opinion is what others said about it since it was asked about; nil: nothing yet.
	opinion *Opinion
	place   int // in the heap of its pool

	came     unit.Instant // when it was first seen
	attempts int          // placements tried
	misses   int          // of them, ended unschedulable in a row
	errors   int          // binds failed in a row
	since    unit.Instant // when it was added or last failed: the longer ago, the earlier its turn
	until    unit.Instant // end of its back-off
}

// queue holds every pending pod in exactly one pool.
type queue struct {
	cluster        *cluster
	first, longest time.Duration // back-off
	entries        map[PodID]*entry
	active         heap.Heap[*entry]
	backoff        heap.Heap[*entry]
	failed         heap.Heap[*entry] // pools failedBind and unsettled
	waiting        map[*demand]map[PodID]*entry
}

func newQueue(c *cluster, first, longest time.Duration) *queue {
	return &queue{
		cluster: c, first: first, longest: longest,
		entries: map[PodID]*entry{},
		active:  heap.New(inTurn, placeOf),
		backoff: heap.New(dueFirst, placeOf),
		failed:  heap.New(dueFirst, placeOf),
		waiting: map[*demand]map[PodID]*entry{},
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
	if was == unschedulable {
		q.move(e, absent) // waiting is kept by demand: leave before that changes
	}
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
		q.move(e, unschedulable)
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
	q.wait(e)
}

// wait puts e into the unschedulable pool, with the others of its demand.
func (q *queue) wait(e *entry) {
	e.demand.looked = e.demand.looked || e.demand.looksAround()
	q.move(e, unschedulable)
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

// hope is what there is for a waiting demand.
type hope uint8

const (
	hopeNone     hope = iota
	hopeRoom          // it fits somewhere
	hopeEviction      // somewhere it would fit without pods of lower priority
)

// wakeDemands moves the pods of every waiting demand for which there is hope out of the unschedulable pool; where it is by
// eviction, not those for which somebody is being evicted already. A pod that has become another to others since it
// began to wait is asked about as what it is now.
func (q *queue) wakeDemands(now unit.Instant, hopeOf func(*demand) hope) {
	for d, members := range q.waiting {
		q.cluster.refresh(d)
		there := hopeOf(d)
		if there == hopeNone {
			continue
		}
		for _, e := range members {
			if there == hopeEviction && q.cluster.awaitsVictims(d, e.pod.ID) {
				continue
			}
			fresh := q.cluster.demandOf(e.class, e.who, e.pod.Owner)
			if fresh == d || q.cluster.hopeFor(fresh) != hopeNone {
				q.ready(now, e)
				continue
			}
			q.move(e, absent)
			e.demand = fresh
			q.wait(e)
		}
	}
}

// wakeNamespace lets every waiting pod of a namespace try again: who means them has changed.
func (q *queue) wakeNamespace(now unit.Instant, name string) {
	for _, members := range q.waiting {
		for _, e := range members {
			if e.who.namespace == name {
				q.ready(now, e)
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

// move takes e out of its pool and puts it into to.
func (q *queue) move(e *entry, to pool) {
	if h := q.heapOf(e.pool); h != nil {
		h.Remove(e)
	}
	if e.pool == unschedulable {
		delete(q.waiting[e.demand], e.pod.ID)
		if len(q.waiting[e.demand]) == 0 {
			delete(q.waiting, e.demand)
		}
	}
	e.pool = to
	if h := q.heapOf(to); h != nil {
		h.Set(e)
	}
	if to == unschedulable {
		if q.waiting[e.demand] == nil {
			q.waiting[e.demand] = map[PodID]*entry{}
		}
		q.waiting[e.demand][e.pod.ID] = e
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
