package scheduler

import (
	"cmp"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// entry is one pending pod.
type entry struct {
	queue.Entry
	pod    Pod
	class  *class
	who    *census.Identity
	demand *demand // as of its last attempt; nil before the first
	// opinion is what others said about it since it was asked about; nil: nothing yet.
	opinion *Opinion
	// evictions is what others left of those they were asked about; nil: nothing was heard yet.
	evictions *[]Preemption
	flushed   bool // a check has found that it had been forgotten
}

// pending are the pods that are to be placed: the queue says which is next, and the cluster what those wait for that
// fit nowhere.
type pending struct {
	*queue.Queue[*entry]
	cluster *cluster
}

func newPending(c *cluster, o *Options) *pending {
	return &pending{Queue: queue.New(o.BackoffFirst, o.BackoffMax, c.unpark), cluster: c}
}

// find returns a pending pod; nil: it is none.
func (q *pending) find(id PodID) *entry { return q.Find(string(id)) }

func (q *pending) poolOf(id PodID) queue.Pool { return q.PoolOf(string(id)) }

// in is find, but nil where the pod is in another pool.
func (q *pending) in(pool queue.Pool, id PodID) *entry {
	if e := q.find(id); e != nil && e.Pool() == pool {
		return e
	}
	return nil
}

// put adds a pending pod or replaces what is known of it. A change that matters to the rules is an event that may help
// the pod itself.
func (q *pending) put(now unit.Instant, pod Pod) {
	e := q.find(pod.ID)
	if e == nil {
		e = q.add(now, pod)
		q.Seen(now, e, true)
		return
	}
	q.Seen(now, e, q.describe(e, pod))
}

func (q *pending) add(now unit.Instant, pod Pod) *entry {
	e := &entry{}
	q.describe(e, pod)
	q.Add(now, e)
	return e
}

// describe writes down what is known of a pod now. changed: it matters to the rules.
func (q *pending) describe(e *entry, pod Pod) (changed bool) {
	k, who := q.cluster.compile(&pod), q.cluster.identify(&pod)
	changed = e.class != k || e.who != who
	q.release(e)
	e.ID, e.Priority, e.Gated = string(pod.ID), pod.Priority, len(pod.Gates) > 0
	e.pod, e.class, e.who = pod, k, who
	return changed
}

// release lets go of what e holds.
func (q *pending) release(e *entry) {
	if e.class != nil {
		q.cluster.releaseClass(e.class)
		q.cluster.releaseIdentity(e.who)
	}
}

// remove drops a pod for good.
func (q *pending) remove(id PodID) {
	if e := q.find(id); e != nil {
		q.Remove(e)
		q.release(e)
	}
}

// miss keeps a popped pod that fits nowhere.
func (q *pending) miss(now unit.Instant, e *entry) {
	q.Miss(now, e)
	q.wait(now, e)
}

// wait keeps e with the others of its demand until something happens that may help them.
func (q *pending) wait(now unit.Instant, e *entry) *waiter {
	e.flushed = false
	q.Wait(e)
	return q.cluster.park(now, e)
}

// renew lets e wait as what it is now, if it has become another to others since it began to wait, and be asked about.
func (q *pending) renew(now unit.Instant, e *entry) bool {
	fresh := q.cluster.demandOf(e.class, e.who, e.pod.Owner)
	if fresh == e.demand {
		return false
	}
	q.Take(e)
	e.demand = fresh
	q.cluster.waits.concernAll(q.wait(now, e))
	return true
}

// renewAll does so for the waiting pods of a namespace that are meant otherwise now.
func (q *pending) renewAll(now unit.Instant, namespace string, meant func(*entry) bool) {
	for _, w := range slices.SortedFunc(maps.Values(q.cluster.waits.of), func(a, b *waiter) int { return cmp.Compare(a.number, b.number) }) {
		for _, id := range slices.Sorted(maps.Keys(w.pods)) {
			if e := w.pods[id]; e.who.Namespace == namespace && meant(e) {
				q.renew(now, e)
			}
		}
	}
}

// bindFailed lets a pod try again after its back-off. lost: the bind may have happened.
func (q *pending) bindFailed(now unit.Instant, pod Pod, lost bool) {
	e := q.find(pod.ID)
	if e == nil {
		e = q.add(now, pod)
	}
	q.BindFailed(now, e, lost)
}
