package pods

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// The end of a pod: the order, and what it interrupts: the worker, hooks, and waits for exits.

// orderStop ends the pod within grace. A later order may shorten the time that is left, never stretch it, and may turn
// a pod that was to keep its containers into one that goes.
func (e *entry) orderStop(now unit.Instant, grace time.Duration, order podlife.StopOrder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mergeStop(now, grace, order)
}

// mergeStop is orderStop. Caller holds mu.
func (e *entry) mergeStop(now unit.Instant, grace time.Duration, order podlife.StopOrder) {
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
func (e *entry) interruptWorker() {
	if e.interrupt != nil {
		e.interrupt()
	}
}

// arm has a stop order, or one that leaves less time, cancel what the worker does from here on, until disarm. It arms
// nothing and returns false where such an order has come since the worker decided what to do; known is the order that
// it knew then.
func (e *entry) arm(known *podlife.StopOrder, cancel context.CancelFunc) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil && (known == nil || e.stop.Deadline < known.Deadline) {
		return false
	}
	e.interrupt = cancel
	return true
}

func (e *entry) disarm() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.interrupt = nil
}

// grace is the pod's own termination grace period. Caller holds mu.
func (e *entry) grace() time.Duration {
	if e.pod == nil {
		return e.unclaimed.grace
	}
	if e.pod.DeletionGracePeriodSeconds != nil {
		return translate.DeletionGrace(e.pod)
	}
	return translate.SpecGrace(e.pod)
}

// stopping reports whether the pod is to end.
func (e *entry) stopping() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stop != nil
}

// endUnclaimed orders the end of a pod that no source has. It does nothing and returns false while one may still have
// it: synced says that every source has shown all of its pods.
func (e *entry) endUnclaimed(now unit.Instant, synced bool) (known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == nil && e.source != sourceGone && !synced {
		return false
	}
	if e.pod == nil && e.stop == nil {
		e.mergeStop(now, e.unclaimed.grace, podlife.StopOrder{Remove: true})
	}
	return true
}

// removeStatic orders the end of a static pod, with every trace of it. It returns false for any other pod, and where
// that is ordered already.
func (e *entry) removeStatic(now unit.Instant) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == nil || e.source != sourceDirectory || e.stop != nil && e.stop.Remove {
		return false
	}
	e.mergeStop(now, e.grace(), podlife.StopOrder{Remove: true})
	return true
}

// evict orders the end of a pod for the node's sake; what it leaves on disks is removed (see evicted).
func (e *entry) evict(now unit.Instant, grace time.Duration, order podlife.StopOrder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mergeStop(now, grace, order)
	e.leftovers = true
}

// evicted reports whether the pod was evicted, by this agent or one before it. pod is the version that the worker sees.
func (e *entry) evicted(pod *corev1.Pod) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.status.Reason == eviction.Reason || pod.Status.Reason == eviction.Reason
}

// cleared says that nothing is left of an evicted pod.
func (e *entry) cleared() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.leftovers = false
}

// addHook is a postStart hook that begins. It returns false where the pod is to end already.
func (e *entry) addHook(id string, h *hookRun) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil {
		return false
	}
	e.hooks[id] = h
	return true
}

// hookEnded notes how a hook ended, and reports whether that still matters. One that was cut short did not fail.
func (e *entry) hookEnded(id string, h *hookRun, err error, cut bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.hooks[id] != h {
		return false
	}
	if err == nil || cut {
		delete(e.hooks, id)
		return true
	}
	h.state = podlife.HookFailed
	h.err = err
	return true
}

// endHook cuts a container's hook short: the container is to stop, or has ended. Caller holds mu.
func (e *entry) endHook(id string) {
	if h := e.hooks[id]; h != nil {
		h.cancel()
		delete(e.hooks, id)
	}
}

// hookFailure is a postStart hook that failed.
type hookFailure struct {
	start podlife.Action // that made the container
	err   error
}

// followHooks ends the hooks of containers that do not run any more, and returns those that failed since it was called
// last.
func (e *entry) followHooks(runs func(id string) bool) (failed []hookFailure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, h := range e.hooks {
		if !runs(id) {
			e.endHook(id)
		} else if h.err != nil {
			failed = append(failed, hookFailure{start: h.start, err: h.err})
			h.err = nil
		}
	}
	for id, run := range e.preStops {
		if !runs(id) {
			run.cancel()
			delete(e.preStops, id)
		}
	}
	return failed
}

// addPreStop notes a hook that begins. It returns false where the container's was begun already.
func (e *entry) addPreStop(id string, run *preStopRun) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.preStops[id] != nil {
		return false
	}
	e.preStops[id] = run
	return true
}

// preStop is the hook of a container that was begun before its turn; nil: none was.
func (e *entry) preStop(id string) *preStopRun {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.preStops[id]
}

// settleMax is how long a call that has the runtime make or stop something goes on when nobody needs its result any
// more. Chosen: far above what a start takes (a tenth of a second, seconds on a busy machine), and what a pod whose
// network hangs may take longer to go.
const settleMax = 10 * time.Second

// awaitExit says that a container is to end, which ends its postStart hook. Once its process is gone there is nothing
// to wait for: hook is done, and stop a little later, in which a runtime that is there has answered. Without that, a
// runtime that lost the answer would hold up the pod for the whole grace.
func (e *entry) awaitExit(ctx context.Context, id string) (stop, hook context.Context, done func()) {
	stop, endStop := context.WithCancel(ctx)
	hook, endHook := context.WithCancel(stop)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.endHook(id)
	e.exits[id] = func() {
		endHook()
		time.AfterFunc(settleMax, endStop)
	}
	return stop, hook, func() {
		e.mu.Lock()
		delete(e.exits, id)
		e.mu.Unlock()
		endHook()
		endStop()
	}
}

// exited says that the first process of a container or sandbox is gone.
func (e *entry) exited(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dirty.Exit(id)
	if gone := e.exits[id]; gone != nil {
		gone()
	}
}
