package pods

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// mayStart reports whether nothing keeps a pod from starting that is worth waiting for. It is asked of pods of which nothing
// ran since this agent is here: new ones, and those of a machine that rebooted. What keeps them is a fact of this moment,
// looked at again in every pass; Unhold says that it may have changed.
func (r *Runner) mayStart(e *entry) bool {
	e.mu.Lock()
	pod, ending := e.pod, e.stop != nil
	e.hold = nil
	e.mu.Unlock()
	if e.seen.IsZero() {
		e.seen = time.Now()
	}
	for _, s := range e.view.sandboxes {
		e.up = e.up || s.State == podlife.SandboxReady
	}
	if e.up || pod == nil || ending || terminal(pod) != "" {
		return true
	}
	why, until := r.Admission.Wait(pod, e.seen)
	switch {
	case why == "":
		return true
	case until.IsZero():
		r.refuse(e, pod, Rejection{Reason: "UnexpectedAdmissionError", Message: fmt.Sprintf("Allocate failed due to %s, which is unexpected", why)})
	default:
		r.holdUp(e, pod, why, until)
	}
	r.turns.leave(e) // those that came after it need not wait
	return false
}

// reasonWaiting is the reason of the condition PodReadyToStartContainers, and of the Event, of a pod that waits for devices.
const reasonWaiting = "WaitingForDevices"

// holdUp has a pod wait.
func (r *Runner) holdUp(e *entry, pod *corev1.Pod, why string, until time.Time) {
	now, _ := r.now()
	message := fmt.Sprintf("%s; the pod waits until %s and is refused then", why, until.UTC().Format(time.RFC3339))
	e.mu.Lock()
	e.hold = &podlife.Hold{Reason: reasonWaiting, Message: message, Until: now.Add(min(time.Until(until), holdRetry))}
	told := e.held == message
	e.held = message
	e.mu.Unlock()
	if !told {
		r.Recorder.Event(pod, corev1.EventTypeWarning, reasonWaiting, message)
		r.log(e).Warn("pod waits", "why", why, "until", until)
	}
}

// holdRetry is how often a pod that waits looks by itself whether it still has to: the back-stop to Unhold (chosen).
const holdRetry = 10 * time.Second

// refuse ends a pod before anything of it runs.
func (r *Runner) refuse(e *entry, pod *corev1.Pod, rejected Rejection) {
	now, _ := r.now()
	e.mu.Lock()
	// Upstream's status has the prefix, its event has not.
	e.orderStop(now, 0, podlife.StopOrder{Phase: podlife.Failed, Reason: rejected.Reason, Message: "Pod was rejected: " + rejected.Message})
	e.mu.Unlock()
	r.Recorder.Event(pod, corev1.EventTypeWarning, rejected.Reason, rejected.Message)
	r.Metrics.AdmissionRejections.WithLabelValues(rejected.Reason).Inc()
	r.log(e).Warn("pod refused", "reason", rejected.Reason, "message", rejected.Message)
}

// Unhold makes the pods that wait look again, because what they wait for may be there.
func (r *Runner) Unhold() {
	for _, e := range r.entries() {
		e.mu.Lock()
		waits := e.hold != nil
		e.mu.Unlock()
		if waits {
			r.kick(e)
		}
	}
}
