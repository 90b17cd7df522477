package pods

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// mayStart reports whether nothing keeps a pod from starting that is worth waiting for. What keeps it is a fact of this
// moment, decided anew in each sync; ResyncHeld says that it may have changed. A pod that asks for what this agent
// cannot do has no sandbox made, not even in place of one that an agent before this one made. Devices are waited for by
// pods of which nothing ran since this agent is here: new ones, and those of a machine that rebooted.
func (w *worker) mayStart() bool {
	w.e.DropHold()
	s := w.e.Snapshot()
	if w.seen.IsZero() {
		w.seen = time.Now()
	}
	ready := w.view.ReadySandbox() != ""
	w.up = w.up || ready
	if s.Pod == nil || s.Stop != nil || translate.PodlifeTerminal(s.Pod) != "" {
		return true
	}
	fresh := s.Phase != podentry.PhaseAdmitted && len(w.view.Sandboxes) == 0
	if fresh && !w.suited(s.Pod) || !w.able(s.Pod, ready) {
		w.r.turns.Leave(w.e)
		return false
	}
	if w.up {
		return true
	}
	why, until := w.r.Admission.Wait(s.Pod, w.seen)
	switch {
	case why == "":
		return true
	case until.IsZero():
		w.reject(s.Pod, *RejectionOf(numa.NotAllocated(why)))
	default:
		w.hold(s.Pod, waiting{reason: reasonDevices, why: why, until: until, retry: holdRetry})
	}
	w.r.turns.Leave(w.e) // those that came after it need not wait
	return false
}

// Reasons of the condition PodReadyToStartContainers, and of the Event, of a pod that waits.
const (
	reasonDevices = "WaitingForDevices"
	reasonRoom    = "WaitingForTermination"
	reasonField   = "UnsupportedField"
)

// suited rejects a pod that cannot run on this system at all, and reports whether it can.
func (w *worker) suited(pod *corev1.Pod) bool {
	if w.r.Suits == nil {
		return true
	}
	rejected := w.r.Suits(pod)
	if rejected == nil {
		return true
	}
	w.holdOrReject(pod, *rejected)
	return false
}

// holdOrReject holds a pod that may be admitted later, and rejects any other.
func (w *worker) holdOrReject(pod *corev1.Pod, rejected Rejection) {
	if wait := w.mayWait(rejected); time.Now().Before(wait.until) {
		w.hold(pod, wait)
	} else {
		w.reject(pod, rejected)
	}
}

// able reports whether this agent can carry out all that a pod asks for. Else the pod is held until that changes: it
// waits without trying anything. What another agent started (ready) is left running, and has an Event only.
func (w *worker) able(pod *corev1.Pod, ready bool) bool {
	why := podfields.Text(podfields.Holds(pod, w.r.abilities()))
	if w.unmountable != "" {
		why = strings.TrimPrefix(why+"; "+w.unmountable, "; ")
	}
	if why == "" {
		return true
	}
	message := why + "; no container of the pod is started"
	if ready {
		message = why + "; what runs of the pod is left running, and is not started again when it ends"
	}
	reason := cmp.Or(w.refused, reasonField)
	hold := &podlife.Hold{Reason: reason, Message: message}
	if ready {
		hold = nil
	}
	known := w.e.SetHold(hold, message)
	if !known && !shownBefore(w.e.Image(), reason, message) {
		w.r.Recorder.Event(pod, corev1.EventTypeWarning, reason, message)
		w.log().Warn("pod asks for what this agent cannot do", "why", why, "runs", ready)
	}
	return ready
}

// shownBefore reports whether the API shows, by the pod or its mirror, that an agent before this one has recorded why
// the pod is held.
func shownBefore(image *corev1.Pod, reason, message string) bool {
	c := podstatus.Condition(image.Status, corev1.PodReadyToStartContainers)
	return c != nil && c.Reason == reason && c.Message == message
}

// waiting is what a pod waits for, and until when.
type waiting struct {
	reason, why string
	detail      string // may change while it waits
	until       time.Time
	retry       time.Duration // how often it looks by itself whether it still has to, should a ResyncHeld be missing
}

// mayWait says what a pod that is not admitted can wait for; until is zero where there is nothing.
func (w *worker) mayWait(rejected Rejection) waiting {
	if rejected.Later {
		until := w.seen.Add(devicemanager.Grace)
		return waiting{reason: reasonDevices, why: rejected.Message, until: until, retry: holdRetry}
	}
	if rejected.Preempts && time.Now().Before(w.roomBy) {
		return waiting{
			reason: reasonRoom,
			why:    "pods end to make room for it",
			detail: " (" + rejected.Message + ")",
			until:  w.roomBy,
			retry:  roomRetry,
		}
	}
	if name, until := w.r.departing(); rejected.Room && name != "" {
		return waiting{
			reason: reasonRoom,
			why:    fmt.Sprintf("pod %s, which was deleted by force, still ends here", name),
			detail: " (" + rejected.Message + ")",
			until:  until,
			retry:  roomRetry,
		}
	}
	return waiting{}
}

// departing returns the pod that is to end last of those whose objects are gone (deleted with a grace period of 0) and
// that have resources here until they have ended, and when that is to be. No scheduler knows of them: one that sent a
// pod in their places could not wait.
func (r *Runner) departing() (name string, until time.Time) {
	now, _ := r.now()
	last := now
	for _, e := range r.entries() {
		deadline, departs := e.Departure()
		if !departs {
			continue
		}
		switch end, its := deadline.Add(departure), e.Name(); {
		case end > last:
			last = end
			name = its
		case end == last && its < name:
			name = its
		}
	}
	return name, time.Now().Add(last.Sub(now))
}

// departure is how long after its deadline a pod may take to be killed and cleared away before others no longer wait
// (chosen: the bound that the agent has elsewhere for what hangs).
const departure = 10 * time.Second

// hold has a pod wait.
func (w *worker) hold(pod *corev1.Pod, wait waiting) {
	now, _ := w.r.now()
	until := wait.until.UTC().Format(time.RFC3339)
	message := fmt.Sprintf("%s%s; the pod waits until %s and is rejected then", wait.why, wait.detail, until)
	known := w.e.SetHold(&podlife.Hold{
		Reason:  wait.reason,
		Message: message,
		Until:   now.Add(min(time.Until(wait.until), wait.retry)),
	}, wait.why)
	if !known {
		w.r.Recorder.Event(pod, corev1.EventTypeWarning, wait.reason, message)
		w.log().Warn("pod waits", "reason", wait.reason, "why", wait.why+wait.detail, "until", wait.until)
	}
}

// How often pods that wait look again by themselves (chosen: often enough for as long as each wait may be).
const (
	holdRetry = 10 * time.Second
	roomRetry = time.Second
)

// reject ends a pod before anything of it runs.
func (w *worker) reject(pod *corev1.Pod, rejected Rejection) {
	now, _ := w.r.now()
	w.e.Reject(now, podlife.StopOrder{
		Phase:    podlife.Failed,
		Rejected: true,
		Reason:   rejected.Reason,
		Message:  "Pod was rejected: " + rejected.Message, // upstream's status has the prefix, its Event has not
	})
	w.r.Recorder.Event(pod, corev1.EventTypeWarning, rejected.Reason, rejected.Message)
	w.r.Metrics.AdmissionRejections.WithLabelValues(rejected.Reason).Inc()
	w.log().Warn("pod rejected", "reason", rejected.Reason, "message", rejected.Message)
}

// ResyncHeld makes the pods that wait look again, because what they wait for may be there.
func (r *Runner) ResyncHeld() {
	for _, e := range r.entries() {
		if e.IsHeld() {
			r.resync(e)
		}
	}
}
