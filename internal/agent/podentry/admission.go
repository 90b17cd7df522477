package podentry

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// How far a pod has come (phase), what keeps it from starting, and the resources that it has.

// UnjudgedPod is the pod if the node is to judge it: a source has it, it was not judged yet, and it is not to end. Else
// nil.
func (e *Entry) UnjudgedPod() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == nil || e.phase == PhaseAdmitted || e.stop != nil || translate.PodlifeTerminal(e.pod) != "" {
		return nil
	}
	return e.pod
}

// SetPhase is enter, for the worker.
func (e *Entry) SetPhase(to Phase) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enter(to)
}

// Admit lets the pod start with the resources that version as asks for, or that an agent before this one allocated to
// it (note: see allocation.Recovered). What the pod asks for by now is judged as a resize.
func (e *Entry) Admit(as *corev1.Pod, note string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.enter(PhaseAdmitted)
	if e.source != sourceDirectory { // static pods are not resized
		e.recoverResources(as, note)
	}
}

// Reject ends a pod before anything of it runs. A pod that is to end already keeps the order that it has; one that was
// admitted stays so, and has its resources until its status says that it has failed.
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

// SetHold makes the pod wait; with nil it does not wait, and only reason is noted. known reports whether users have an
// Event of reason.
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

// IsHeld reports whether something keeps the pod from starting.
func (e *Entry) IsHeld() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.hold != nil
}

// Counted returns the pod if it has resources of the node: it was judged to fit, or the runtime has something of it,
// and it has not ended.
func (e *Entry) Counted() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.counts() {
		return nil
	}
	return e.asAllocated()
}

// counts reports whether the pod has resources of the node. Caller holds mu.
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

// asAllocated is the pod with its allocated resources, and a status that says what its cgroups have. The status does
// not say that a resize is pending: for such a pod, some readers count the status alone. Every admission asks for this
// of every pod, so it is made again only for another version of the pod or of its status. Caller holds mu.
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

// Present is a pod that has resources of the node, or disk space.
type Present struct {
	Pod    *corev1.Pod // with its allocated resources, and its status as computed here; not to be written to
	Static bool        // from the directory of manifests
	KillAt time.Time   // when what still runs of it is killed; zero: it is not ending
	Ended  bool        // it was evicted and nothing of it runs; what it has on disks is being removed
}

// Present returns the pod as the node's evictions see it. at converts an Instant to a time. ok is false for a pod that
// has nothing here.
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

// Asks returns what the pod asks for, if that is not what is allocated to it.
func (e *Entry) Asks() (allocation.Request, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == e.desired { // allocation.In: it has what it asks for, or nothing was allocated yet
		return allocation.Request{}, false
	}
	if e.allocated == nil || e.stop != nil || e.source == sourceGone || translate.PodlifeTerminal(e.pod) != "" {
		return allocation.Request{}, false
	}
	return allocation.Request{Desired: e.desired, Allocated: e.asAllocated(), Since: e.pendingSince}, true
}

// Rule applies the verdict on what the pod asked for, and returns why it waited before and waits now. ok is false if
// the pod asks for something else by now; its worker knows that already.
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

// Resizes says why what the pod asks for is not allocated (nil: it is), and whether a resize is being carried out.
func (e *Entry) Resizes() (pending *podlife.PendingResize, underWay bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pending, e.resizing != 0
}

// RecoverEnding is for a pod that is to end and was started by an agent before this one: until then it has what that
// one allocated to it.
func (e *Entry) RecoverEnding(note string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stop != nil && e.allocated == nil && e.source != sourceDirectory && e.pod != nil {
		e.recoverResources(e.desired, note)
	}
}

// recoverResources takes up what is known of a pod's resources; as is the version of it that was admitted, since which
// it may have asked for more. Caller holds mu.
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

// Departure returns when a pod that was deleted by force must have ended. Until then it has resources of the node. ok
// is false for any other pod.
func (e *Entry) Departure() (deadline unit.Instant, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.source != sourceGone || e.stop == nil || !e.counts() {
		return 0, false
	}
	return e.stop.Deadline, true
}
