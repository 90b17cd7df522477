package podentry

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// This file has a pod's progress (its phase), its hold and its resources.

// UnjudgedPod returns the pod if the node must judge it: a source has it, it was not judged yet, and it has no stop
// order. Otherwise it returns nil.
func (e *Entry) UnjudgedPod() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == nil || e.phase == PhaseAdmitted || e.stop != nil || translate.PodlifeTerminal(e.pod) != "" {
		return nil
	}
	return e.pod
}

// SetPhase changes the phase. Only the worker calls it.
func (e *Entry) SetPhase(to Phase) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enter(to)
}

// Admit admits the pod. Its allocated resources are those that the version as requests, or those that an earlier agent
// allocated (note: see allocation.Recovered). If the pod requests others by now, that is judged as a resize.
func (e *Entry) Admit(as *corev1.Pod, note string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enter(PhaseAdmitted)
	if e.source != sourceDirectory { // static pods are not resized
		e.recoverResources(as, note)
	}
}

// Reject rejects a pod of which nothing runs. If it has a stop order already, it keeps that one. If it was admitted, it
// stays admitted, and has its resources until its status says that it has failed.
func (e *Entry) Reject(now unit.Instant, order podlife.StopOrder) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop == nil && e.phase != PhaseAdmitted {
		e.enter(PhaseRejected)
	}
	e.mergeStop(now, 0, order)
}

// DropHold begins a decision on whether the pod may start.
func (e *Entry) DropHold() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.hold = nil
}

// SetHold holds the pod for a reason. If h is nil, the pod is not held, and only the reason is stored. known reports
// whether reason is the same as before, so that its Event was recorded already.
func (e *Entry) SetHold(h *podlife.Hold, reason string) (known bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if h != nil {
		e.hold = h
	}
	known = e.held == reason
	e.held = reason
	return known
}

// IsHeld reports whether the pod is held.
func (e *Entry) IsHeld() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hold != nil
}

// Counted returns the pod if it has resources of the node: it was judged to fit, or the runtime has something of it,
// and it has not ended. Otherwise it returns nil.
func (e *Entry) Counted() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.counts() {
		return nil
	}
	return e.asAllocated()
}

// counts reports whether the pod has resources of the node. The caller holds mu.
func (e *Entry) counts() bool {
	switch {
	case e.pod == nil || translate.PodlifeTerminal(e.pod) != "" || ended(&e.status):
		return false
	case e.phase == PhasePreparing || e.phase == PhaseAdmitted:
		return true
	}
	return len(e.summary) > 0
}

func ended(s *corev1.PodStatus) bool {
	return s.Phase == corev1.PodFailed || s.Phase == corev1.PodSucceeded
}

// asAllocated returns the pod with its allocated resources, and with a status that has the actual resources of its
// cgroups. The status does not say that a resize is pending, because some readers count only the status of such a pod.
// Every admission calls this for every pod, so the result is kept until the pod or its status changes. The caller holds
// mu.
func (e *Entry) asAllocated() *corev1.Pod {
	if e.holding.of != e.pod {
		pod := *e.pod
		if e.status.Phase != "" {
			pod.Status = e.status
		}
		pod.Status.Conditions = nil
		e.holding = holding{of: e.pod, as: &pod}
	}
	return e.holding.as
}

// Present is a pod that has resources of the node or uses its disks.
type Present struct {
	Pod    *corev1.Pod // with its allocated resources and the latest status; read only
	Static bool        // from the directory of manifests
	KillAt time.Time   // when containers that still run are killed; zero: it is not ending
	Ended  bool        // it was evicted and nothing of it runs; its files are being removed
}

// Present returns the pod for node-pressure eviction. at converts an Instant to a time. ok is false for a pod that has
// nothing on this node.
func (e *Entry) Present(at func(unit.Instant) time.Time) (p Present, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.counts():
		p.Pod = e.asAllocated()
	case e.leftovers && e.pod != nil:
		p.Pod = e.pod
		p.Ended = true
	default:
		return Present{}, false
	}
	p.Static = e.source == sourceDirectory
	if e.stop != nil {
		p.KillAt = at(e.stop.Deadline)
	}
	return p, true
}

// Unjudged reports whether the pod is known, and its worker has neither judged nor held it yet, nor asked plugins about
// it.
func (e *Entry) Unjudged() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == nil || e.source == sourceDirectory || e.source == sourceGone || translate.PodlifeTerminal(e.pod) != "" {
		return false
	}
	return e.phase == PhaseNew && e.hold == nil && e.stop == nil
}

// Asks returns the pod's requested resize, if it requests other resources than are allocated to it.
func (e *Entry) Asks() (allocation.Request, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == e.desired { // allocation.In: it has what it requests, or nothing was allocated yet
		return allocation.Request{}, false
	}
	if e.allocated == nil || e.stop != nil || e.source == sourceGone || translate.PodlifeTerminal(e.pod) != "" {
		return allocation.Request{}, false
	}
	return allocation.Request{Desired: e.desired, Allocated: e.asAllocated(), Since: e.pendingSince}, true
}

// Rule applies the verdict on a resize, and returns why the resize was pending before and is now. ok is false if the
// pod requests something else by now; its worker was woken for that already.
func (e *Entry) Rule(
	asked allocation.Request, v allocation.Verdict, now unit.Wall,
) (before, after *podlife.PendingResize, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.desired != asked.Desired || e.stop != nil {
		return nil, nil, false
	}
	before = e.pending
	if v.Allocated {
		e.allocated = allocation.Of(asked.Desired)
		e.pod = asked.Desired
		e.pending = nil
		e.pendingSince = 0
		e.resizing = asked.Desired.Generation
		return before, nil, true
	}
	e.pending = &podlife.PendingResize{Reason: v.Reason, Message: v.Message, Generation: asked.Desired.Generation}
	if before == nil || before.Reason != v.Reason {
		e.pendingSince = now
	}
	return before, e.pending, true
}

// Resizes returns why the pod's resize is pending (nil: none is), and whether a resize is being carried out.
func (e *Entry) Resizes() (pending *podlife.PendingResize, underWay bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pending, e.resizing != 0
}

// RecoverEnding recovers the allocated resources of a pod that has a stop order and that an earlier agent started.
func (e *Entry) RecoverEnding(note string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil && e.allocated == nil && e.source != sourceDirectory && e.pod != nil {
		e.recoverResources(e.desired, note)
	}
}

// recoverResources recovers the allocated resources of a pod. as is the version of the pod that was admitted; the pod
// may request others by now. The caller holds mu.
func (e *Entry) recoverResources(as *corev1.Pod, note string) {
	e.allocated = allocation.Recovered(as, note)
	e.pod = e.allocated.In(e.desired)
	for _, c := range e.desired.Status.Conditions {
		switch {
		case c.Type == corev1.PodResizeInProgress && c.Status == corev1.ConditionTrue:
			e.resizing = c.ObservedGeneration
		case c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue && !e.allocated.Meets(e.desired):
			e.pending = &podlife.PendingResize{Reason: c.Reason, Message: c.Message, Generation: c.ObservedGeneration}
			e.pendingSince = unit.WallOf(c.LastTransitionTime.Time)
		}
	}
}

// Departure returns when a pod that was deleted with a grace period of 0 must have ended. Until then it has resources
// of the node. ok is false for any other pod.
func (e *Entry) Departure() (deadline unit.Instant, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.source != sourceGone || e.stop == nil || !e.counts() {
		return 0, false
	}
	return e.stop.Deadline, true
}
