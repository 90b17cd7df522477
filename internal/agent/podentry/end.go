package podentry

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// The end of a pod: the order, and what it interrupts: the worker, hooks, and waits for exits.

// mergeStop ends the pod within grace. A later order may shorten the time that is left, never stretch it, and may turn
// a pod that was to keep its containers into one that goes. Caller holds mu.
func (e *Entry) mergeStop(now unit.Instant, grace time.Duration, order podlife.StopOrder) {
	order.Deadline = now.Add(grace)
	if e.stop == nil {
		e.stop = &order
		e.interruptWorker()
		for id := range e.hooks {
			e.endHook(id)
		}
		return
	}
	merged := *e.stop
	merged.Remove = merged.Remove || order.Remove
	if order.Deadline < merged.Deadline {
		merged.Deadline = order.Deadline
		e.interruptWorker()
	}
	e.stop = &merged
}

// interruptWorker cancels what the worker is doing, if that may be. Caller holds mu.
func (e *Entry) interruptWorker() {
	if e.interrupt != nil {
		e.interrupt()
	}
}

// Arm says that a stop order, or one that leaves less time, cancels what the worker does, from now until Disarm. known
// is the order that the worker knew when it decided what to do. If another order has come since, Arm changes nothing
// and returns false.
func (e *Entry) Arm(known *podlife.StopOrder, cancel context.CancelFunc) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil && (known == nil || e.stop.Deadline < known.Deadline) {
		return false
	}
	e.interrupt = cancel
	return true
}

// Disarm ends what Arm began: a stop order no longer cancels what the worker does.
func (e *Entry) Disarm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.interrupt = nil
}

// grace is the pod's own termination grace period. Caller holds mu.
func (e *Entry) grace() time.Duration {
	if e.pod == nil {
		return e.unclaimed.Grace
	}
	if e.pod.DeletionGracePeriodSeconds != nil {
		return translate.DeletionGrace(e.pod)
	}
	return translate.SpecGrace(e.pod)
}

// Stopping reports whether the pod is to end.
func (e *Entry) Stopping() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stop != nil
}

// EndUnclaimed orders the end of a pod that no source has. It does nothing and returns false while one may still have
// it: synced says that every source has shown all of its pods.
func (e *Entry) EndUnclaimed(now unit.Instant, synced bool) (known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == nil && e.source != sourceGone && !synced {
		return false
	}
	if e.pod == nil && e.stop == nil {
		e.mergeStop(now, e.unclaimed.Grace, podlife.StopOrder{Remove: true})
	}
	return true
}

// RemoveStatic orders the end of a static pod and the removal of everything that is left of it. It returns false for
// any other pod, and where that is ordered already.
func (e *Entry) RemoveStatic(now unit.Instant) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == nil || e.source != sourceDirectory || e.stop != nil && e.stop.Remove {
		return false
	}
	e.mergeStop(now, e.grace(), podlife.StopOrder{Remove: true})
	return true
}

// Evict orders the end of a pod for the node's sake; what it leaves on disks is removed (see evicted).
func (e *Entry) Evict(now unit.Instant, grace time.Duration, order podlife.StopOrder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mergeStop(now, grace, order)
	e.leftovers = true
}

// Preempt orders the end of a pod to make room for another: it has its own grace period.
func (e *Entry) Preempt(now unit.Instant, order podlife.StopOrder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mergeStop(now, e.grace(), order)
}

// Evicted reports whether the pod was evicted, by this agent or one before it. pod is the version that the worker sees.
func (e *Entry) Evicted(pod *corev1.Pod) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status.Reason == eviction.Reason || pod.Status.Reason == eviction.Reason
}

// Cleared records that nothing is left of an evicted pod.
func (e *Entry) Cleared() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leftovers = false
}

// ErrProcessGone is why a stop does not wait for the runtime any more: the container has ended, whatever the runtime
// answers.
var ErrProcessGone = errors.New("the container's process is gone")

// AwaitExit says that a container is to end, which ends its postStart hook. When the container's process is gone, hook
// is done at once. stop is done answerTime later, with the cause ErrProcessGone: the runtime has that long to answer.
// Without this, a runtime that lost its answer would delay the pod for the whole grace period.
func (e *Entry) AwaitExit(
	ctx context.Context, id string, answerTime time.Duration,
) (stop, hook context.Context, done func()) {
	stop, endStop := context.WithCancelCause(ctx)
	hook, endHook := context.WithCancel(stop)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endHook(id)
	e.exits[id] = func() {
		endHook()
		time.AfterFunc(answerTime, func() { endStop(ErrProcessGone) })
	}
	return stop, hook, func() {
		e.mu.Lock()
		delete(e.exits, id)
		e.mu.Unlock()
		endHook()
		endStop(nil)
	}
}

// Exited records that the first process of a container or sandbox is gone.
func (e *Entry) Exited(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dirty.Exit(id)
	if gone := e.exits[id]; gone != nil {
		gone()
	}
}
