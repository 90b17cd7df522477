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
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// mayStart reports whether a pod may start now, and holds it otherwise. This is decided anew in each sync; ResyncHeld
// says that the answer may have changed. If a pod requires something that this agent does not support, no sandbox is
// created for it, not even to replace one that an earlier agent created. A pod waits for devices only if no sandbox of
// it was ready since this agent started: it is new, or the machine was rebooted.
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
	w.r.turns.Leave(w.e) // pods that came after it need not wait for it
	return false
}

// Reasons of the condition PodReadyToStartContainers, and of the Event, of a held pod.
const (
	reasonDevices = "WaitingForDevices"
	reasonRoom    = "WaitingForTermination"
	reasonField   = "UnsupportedField"
)

// suited reports whether a pod can run on this system at all, and rejects it otherwise.
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

// able reports whether this agent supports everything that a pod requires. Otherwise the pod is held until that
// changes, and nothing is tried for it. If another agent started the pod (ready), it is left running and only an Event
// is recorded.
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
		w.noteVerdict(pod, journal.Holds, reason, message)
		w.log().Warn("pod asks for what this agent cannot do", "why", why, "runs", ready)
	}
	return ready
}

// shownBefore reports whether the status of the pod or its mirror shows that an earlier agent recorded why the pod is
// held.
func shownBefore(image *corev1.Pod, reason, message string) bool {
	c := podstatus.Condition(image.Status, corev1.PodReadyToStartContainers)
	return c != nil && c.Reason == reason && c.Message == message
}

// waiting is what a held pod waits for, and until when.
type waiting struct {
	reason string        // of the condition and the Event
	why    string        // what it waits for; another why is another Event
	detail string        // added to why in texts; may change while the pod waits
	until  time.Time     // when the pod is rejected
	retry  time.Duration // interval of its own syncs, in case a ResyncHeld is missing
}

// mayWait returns what a pod that was not admitted can wait for. until is zero if there is nothing.
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

// departing returns, among the pods whose objects are gone and that have not ended yet, the one that ends last, and
// when it must have ended at the latest. Such pods were deleted with a grace period of 0. They keep their resources
// until they have ended, and schedulers do not know of them, so a scheduler may place a pod that does not fit yet.
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

// departure is how long other pods wait for a pod after its deadline, while it is killed and removed. Chosen: the same
// as overtimeMax and removalTime.
const departure = 10 * time.Second

// hold holds a pod, and records an Event if it was not held for this reason before.
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
		w.noteVerdict(pod, journal.Holds, wait.reason, message)
		w.log().Warn("pod waits", "reason", wait.reason, "why", wait.why+wait.detail, "until", wait.until)
	}
}

// Intervals of a held pod's own syncs, in case a ResyncHeld is missing. Chosen: short against the bound of each wait.
const (
	holdRetry = 10 * time.Second
	roomRetry = time.Second
)

// reject rejects a pod of which nothing runs: its phase is Failed.
func (w *worker) reject(pod *corev1.Pod, rejected Rejection) {
	now, _ := w.r.now()
	w.e.Reject(now, podlife.StopOrder{
		Phase:    podlife.Failed,
		Rejected: true,
		Reason:   rejected.Reason,
		Message:  "Pod was rejected: " + rejected.Message, // as in the kubelet, only the status has the prefix
	})
	w.r.Recorder.Event(pod, corev1.EventTypeWarning, rejected.Reason, rejected.Message)
	w.noteVerdict(pod, journal.Rejects, rejected.Reason, rejected.Message)
	w.r.Metrics.AdmissionRejections.WithLabelValues(rejected.Reason).Inc()
	w.log().Warn("pod rejected", "reason", rejected.Reason, "message", rejected.Message)
}

// ResyncHeld resyncs the held pods, because something that they wait for may have become available.
func (r *Runner) ResyncHeld() {
	for _, e := range r.entries() {
		if e.IsHeld() {
			r.resync(e)
		}
	}
}
