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

// This file has the end of a pod: the stop order, and what it interrupts (the worker, hooks, waits for exits).

// mergeStop gives the pod a stop order with a deadline after grace. A later order may make the deadline earlier, never
// later. It may also order the removal of a pod whose containers would otherwise be kept. The caller holds mu.
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

// interruptWorker cancels what the worker is doing, if that may be cancelled (Arm). The caller holds mu.
func (e *Entry) interruptWorker() {
	if e.interrupt != nil {
		e.interrupt()
	}
}

// Arm makes a new stop order cancel what the worker does, from now until Disarm; so does an order that leaves less
// time. known is the order that the worker knew when it decided what to do. If a first order or one that leaves less
// time has come since, Arm changes nothing and returns false.
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

// grace returns the pod's own termination grace period. The caller holds mu.
func (e *Entry) grace() time.Duration {
	if e.pod == nil {
		return e.unclaimed.Grace
	}
	if e.pod.DeletionGracePeriodSeconds != nil {
		return translate.DeletionGrace(e.pod)
	}
	return translate.SpecGrace(e.pod)
}

// Stopping reports whether the pod has a stop order.
func (e *Entry) Stopping() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stop != nil
}

// EndUnclaimed orders the end of a pod that no source has. synced says that every source has delivered all of its pods.
// If it is false, a source may still deliver the pod: EndUnclaimed does nothing and returns false.
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
// any other pod, and if that was ordered already.
func (e *Entry) RemoveStatic(now unit.Instant) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == nil || e.source != sourceDirectory || e.stop != nil && e.stop.Remove {
		return false
	}
	e.mergeStop(now, e.grace(), podlife.StopOrder{Remove: true})
	return true
}

// Evict orders the end of a pod for node-pressure eviction. Its files are removed too (see Evicted).
func (e *Entry) Evict(now unit.Instant, grace time.Duration, order podlife.StopOrder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mergeStop(now, grace, order)
	e.leftovers = true
}

// Preempt orders the end of a pod, within its own termination grace period, to make room for another.
func (e *Entry) Preempt(now unit.Instant, order podlife.StopOrder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mergeStop(now, e.grace(), order)
}

// EndWithin orders the end of a pod for the node's sake; what it leaves on disks stays.
func (e *Entry) EndWithin(now unit.Instant, grace time.Duration, order podlife.StopOrder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mergeStop(now, grace, order)
}

// Released records that nothing of the pod runs, and what it no longer needs is taken down.
func (e *Entry) Released() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.released = true
}

// Over reports whether nothing of the pod runs here and its volumes are taken down.
func (e *Entry) Over() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.released || !e.counts() && len(e.summary) == 0
}

// Evicted reports whether this agent or an earlier one evicted the pod. pod is the version that the worker sees.
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

// ErrProcessGone is the cause with which a wait for the runtime's stop ends if the container's process is gone. The
// container has ended then, whatever the runtime answers.
var ErrProcessGone = errors.New("the container's process is gone")

// AwaitExit is called before a container is stopped. It ends the container's postStart hook, and returns two contexts.
// When the container's process is gone, hook is done at once, and stop is done answerTime later, with the cause
// ErrProcessGone: the runtime has that long to answer. Without this, a runtime that lost its answer would delay the pod
// for the whole grace period.
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
