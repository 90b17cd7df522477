package pods

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// mayStart reports whether nothing keeps a pod from starting that is worth waiting for. What keeps it is a fact of this moment,
// looked at again in every pass; Unhold says that it may have changed. A pod that asks for what this agent cannot do has no
// sandbox made, not even in place of one that an agent before this one made. Devices are waited for by pods of which nothing
// ran since this agent is here: new ones, and those of a machine that rebooted.
func (r *Runner) mayStart(e *entry) bool {
	e.mu.Lock()
	pod, ending, admitted := e.pod, e.stop != nil, e.admitted
	e.hold = nil
	e.mu.Unlock()
	if e.seen.IsZero() {
		e.seen = time.Now()
	}
	ready := false
	for _, s := range e.view.sandboxes {
		ready = ready || s.State == podlife.SandboxReady
	}
	e.up = e.up || ready
	if pod == nil || ending || translate.PodlifeTerminal(pod) != "" {
		return true
	}
	if !admitted && len(e.view.sandboxes) == 0 && !r.suited(e, pod) || !r.able(e, pod, ready) {
		r.turns.leave(e)
		return false
	}
	if e.up {
		return true
	}
	why, until := r.Admission.Wait(pod, e.seen)
	switch {
	case why == "":
		return true
	case until.IsZero():
		r.refuse(e, pod, Rejection{Reason: numa.UnexpectedAdmission, Message: numa.AllocateFailed(why)})
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
	reasonField   = "UnsupportedField"
)

// suited rejects a pod that cannot run on this system at all, and reports whether it can.
func (r *Runner) suited(e *entry, pod *corev1.Pod) bool {
	if r.Suits == nil {
		return true
	}
	rejected := r.Suits(pod)
	if rejected == nil {
		return true
	}
	if w := r.mayWait(e, *rejected); time.Now().Before(w.until) {
		r.holdUp(e, pod, w)
	} else {
		r.refuse(e, pod, *rejected)
	}
	return false
}

// able reports whether this agent can carry out all that a pod asks for. Else the pod is held until that changes: it waits
// without trying anything. What another agent started (ready) is left running, and is told of only.
func (r *Runner) able(e *entry, pod *corev1.Pod, ready bool) bool {
	why := podfields.Text(podfields.Refused(pod))
	if e.unmountable != "" {
		why = strings.TrimPrefix(why+"; "+e.unmountable, "; ")
	}
	if why == "" {
		return true
	}
	message := why + "; no container of the pod is started"
	if ready {
		message = why + "; what runs of the pod is left running, and is not started again when it ends"
	}
	e.mu.Lock()
	if !ready {
		e.hold = &podlife.Hold{Reason: reasonField, Message: message}
	}
	told := e.held == message || toldBefore(pod, e.mirror, message)
	e.held = message
	e.mu.Unlock()
	if !told {
		r.Recorder.Event(pod, corev1.EventTypeWarning, reasonField, message)
		r.log(e).Warn("pod asks for what this agent cannot do", "why", why, "runs", ready)
	}
	return ready
}

// toldBefore reports whether the API shows, by the pod or its mirror, that an agent before this one has told users why the pod is
// held.
func toldBefore(pod, mirror *corev1.Pod, message string) bool {
	if mirror != nil {
		pod = mirror
	}
	c := podstatus.Condition(pod.Status, corev1.PodReadyToStartContainers)
	return c != nil && c.Reason == reasonField && c.Message == message
}

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
		return waiting{reason: reasonDevices, why: rejected.Message, until: e.seen.Add(devicemanager.Grace), retry: holdRetry}
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
	e.orderStop(now, 0, podlife.StopOrder{Phase: podlife.Failed, Refused: true, Reason: rejected.Reason, Message: "Pod was rejected: " + rejected.Message})
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
