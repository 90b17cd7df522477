package pods

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/plugin"
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
		r.holdUp(e, pod, waiting{reason: reasonDevices, why: why, until: until, retry: holdRetry})
	}
	r.turns.leave(e) // those that came after it need not wait
	return false
}

// Reasons of the condition PodReadyToStartContainers, and of the Event, of a pod that waits.
const (
	reasonDevices = "WaitingForDevices"
	reasonRoom    = "WaitingForTermination"
)

// waiting is what a pod waits for, and until when.
type waiting struct {
	reason, why string
	detail      string // may change while it waits
	until       time.Time
	retry       time.Duration // how often it looks by itself whether it still has to: the back-stop to Unhold
}

// mayWait says what a pod that is not let in can wait for; until is zero where there is nothing.
func (r *Runner) mayWait(e *entry, rejected Rejection) waiting {
	if rejected.Later {
		return waiting{reason: reasonDevices, why: rejected.Message, until: e.seen.Add(plugin.Grace), retry: holdRetry}
	}
	if name, until := r.departing(); rejected.Room && name != "" {
		why := fmt.Sprintf("pod %s, which was deleted by force, still ends here", name)
		return waiting{reason: reasonRoom, why: why, detail: " (" + rejected.Message + ")", until: until, retry: roomRetry}
	}
	return waiting{}
}

// departing returns the pod that is to end last of those whose objects are gone (deleted with a grace of 0) and that hold resources
// here until they have ended, and when that is to be. Nobody else knows of them: who sent a pod in their places could not wait.
func (r *Runner) departing() (name string, until time.Time) {
	now, _ := r.now()
	last := now
	for _, e := range r.entries() {
		if e.holds() == nil {
			continue
		}
		e.mu.Lock()
		gone, stop := e.gone, e.stop
		e.mu.Unlock()
		if !gone || stop == nil {
			continue
		}
		switch end, its := stop.Deadline.Add(departure), e.name(); {
		case end > last:
			last, name = end, its
		case end == last && its < name:
			name = its
		}
	}
	return name, time.Now().Add(last.Sub(now))
}

// departure is how long after its deadline a pod may take to be killed and cleared away before others no longer wait (chosen: the
// bound that whoever waits has for what hangs).
const departure = 10 * time.Second

// holdUp has a pod wait.
func (r *Runner) holdUp(e *entry, pod *corev1.Pod, w waiting) {
	now, _ := r.now()
	message := fmt.Sprintf("%s%s; the pod waits until %s and is refused then", w.why, w.detail, w.until.UTC().Format(time.RFC3339))
	e.mu.Lock()
	e.hold = &podlife.Hold{Reason: w.reason, Message: message, Until: now.Add(min(time.Until(w.until), w.retry))}
	told := e.held == w.why
	e.held = w.why
	e.mu.Unlock()
	if !told {
		r.Recorder.Event(pod, corev1.EventTypeWarning, w.reason, message)
		r.log(e).Warn("pod waits", "reason", w.reason, "why", w.why+w.detail, "until", w.until)
	}
}

// How often pods that wait look again by themselves (chosen: often enough for as long as each wait may be).
const (
	holdRetry = 10 * time.Second
	roomRetry = time.Second
)

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
