package scheduler

import (
	"cmp"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// entry is one pending pod. The Placer changes it.
type entry struct {
	queue.Entry
	pod    Pod
	class  *class
	who    *census.Identity
	demand *demand // of its last attempt; nil before the first
	// answer is what extenders answered since they were last asked about the pod; nil: nothing yet.
	answer *ExtenderAnswer
	// evictions is what extenders left of the preemptions about which they were last asked; nil: no answer yet.
	evictions *[]Preemption
	flushed   bool // the check of long-waiting pods has made it active; see Decision.Flushed
}

// pending are the pods to be placed. The queue decides which is next. What the waiting pods among them wait for is in
// cluster.waits.
type pending struct {
	*queue.Queue[*entry]
	cluster *cluster
}

func newPending(c *cluster, o *Options) *pending {
	return &pending{Queue: queue.New(o.BackoffFirst, o.BackoffMax, c.unpark), cluster: c}
}

// find returns a pending pod; nil: there is none with this ID.
func (q *pending) find(id PodID) *entry { return q.Find(string(id)) }

func (q *pending) poolOf(id PodID) queue.Pool { return q.PoolOf(string(id)) }

// in returns a pending pod if it is in this pool, else nil.
func (q *pending) in(pool queue.Pool, id PodID) *entry {
	if e := q.find(id); e != nil && e.Pool() == pool {
		return e
	}
	return nil
}

// put adds or updates a pending pod. An update that matters to rules is a reason to try the pod again.
func (q *pending) put(now unit.Instant, pod Pod) {
	e := q.find(pod.ID)
	if e == nil {
		e = q.add(now, pod)
		q.Updated(now, e, true)
		return
	}
	q.Updated(now, e, q.describe(e, pod))
}

func (q *pending) add(now unit.Instant, pod Pod) *entry {
	e := &entry{}
	q.describe(e, pod)
	q.Add(now, e)
	return e
}

// describe sets the facts about a pod. changed reports whether rules may judge it differently.
func (q *pending) describe(e *entry, pod Pod) (changed bool) {
	k, who := q.cluster.compile(&pod), q.cluster.identify(&pod)
	changed = e.class != k || e.who != who
	q.dropRefs(e)
	e.ID = string(pod.ID)
	e.Priority = pod.Priority
	e.Gated = len(pod.Gates) > 0
	e.pod = pod
	e.class = k
	e.who = who
	return changed
}

// dropRefs drops the references of e.
func (q *pending) dropRefs(e *entry) {
	if e.class != nil {
		q.cluster.dropClass(e.class)
		q.cluster.dropIdentity(e.who)
	}
}

// remove removes a pod from the queue.
func (q *pending) remove(id PodID) {
	if e := q.find(id); e != nil {
		q.Remove(e)
		q.dropRefs(e)
	}
}

// waitFailed makes a popped pod wait, because it fits nowhere.
func (q *pending) waitFailed(now unit.Instant, e *entry) {
	q.Failed(now, e)
	q.wait(now, e)
}

// wait adds e to the waiting pods of its demand.
func (q *pending) wait(now unit.Instant, e *entry) *waiter {
	e.flushed = false
	q.Wait(e)
	return q.cluster.park(now, e)
}

// renew moves e to the waiting pods of its present demand, and marks that demand to be evaluated. It does nothing and
// returns false if e has the same demand as when it began to wait.
func (q *pending) renew(now unit.Instant, e *entry) bool {
	fresh := q.cluster.demandOf(e.class, e.who, e.pod.Owner)
	if fresh == e.demand {
		return false
	}
	q.Take(e)
	e.demand = fresh
	q.cluster.waits.markAll(q.wait(now, e))
	return true
}

// renewAll calls renew for the waiting pods of a namespace for which affected is true.
func (q *pending) renewAll(now unit.Instant, namespace string, affected func(*entry) bool) {
	byNumber := func(a, b *waiter) int { return cmp.Compare(a.number, b.number) }
	for _, w := range slices.SortedFunc(maps.Values(q.cluster.waits.of), byNumber) {
		for _, id := range slices.Sorted(maps.Keys(w.pods)) {
			if e := w.pods[id]; e.who.Namespace == namespace && affected(e) {
				q.renew(now, e)
			}
		}
	}
}

// bindFailed records a failed bind: the pod is tried again after its back-off. lost says that the bind may have
// succeeded.
func (q *pending) bindFailed(now unit.Instant, pod Pod, lost bool) {
	e := q.find(pod.ID)
	if e == nil {
		e = q.add(now, pod)
	}
	q.BindFailed(now, e, lost)
}
