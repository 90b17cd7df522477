package pods

import (
	"cmp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/core/oom"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// This file records decisions in the journal. Nothing here waits.

// textMax bounds the texts of others that are recorded, in bytes: what a runtime or a probe says. Chosen: a screen.
// A runtime's error may repeat a command of 100 KiB.
const textMax = 2 << 10

// JournalPod returns a pod as the journal has it.
func JournalPod(pod *corev1.Pod) []journal.Pod {
	return []journal.Pod{{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}}
}

func (r *Runner) note(pod *corev1.Pod, kind journal.Kind, detail journal.Detail) {
	if r.Journal == nil || pod == nil {
		return
	}
	r.Journal.Note(journal.Note{Time: time.Now(), Kind: kind, Pods: JournalPod(pod), Detail: detail})
}

// noteVerdict records what was decided about a pod that came here.
func (w *worker) noteVerdict(pod *corev1.Pod, v journal.Verdict, reason, message string) {
	w.r.note(pod, journal.Admitted, &journal.Admission{
		Verdict: v,
		Reason:  reason,
		Message: Cut(message),
		Judged:  w.judged,
	})
	w.judged = journal.Judged{}
}

// noteStops records that containers are ordered to end, each once for the same reason.
func (w *worker) noteStops(pod *corev1.Pod, group []podlife.Action) {
	if w.r.Journal == nil {
		return
	}
	for _, a := range group {
		key := a.ID + a.Why
		if a.Kind != podlife.StopContainer || w.stops[key] {
			continue
		}
		if w.stops == nil {
			w.stops = map[string]bool{}
		}
		w.stops[key] = true
		w.r.note(pod, journal.Stopped, &journal.Stop{
			Container: a.Container,
			ID:        a.ID,
			Why:       Cut(cmp.Or(a.Event, a.Why)),
			Grace:     a.Grace,
		})
	}
}

// noteFailure records that an action failed, unless the same was recorded last. Attempts to pull have records of their
// own.
func (w *worker) noteFailure(pod *corev1.Pod, a podlife.Action, reason string, err error) {
	what := a.Kind.String()
	if a.Container != "" {
		what += " " + a.Container
	}
	text := Cut(reason + ": " + err.Error())
	if w.r.Journal == nil || reason == podlife.ReasonErrImagePull || w.failure == what+text {
		return
	}
	w.failure = what + text
	w.r.note(pod, journal.Failed, &journal.Failure{What: what, Error: text})
}

// noteEnd records that a container has ended.
func (w *worker) noteEnd(pod *corev1.Pod, e *podstatus.End) {
	if w.r.Journal == nil {
		return
	}
	out := &journal.End{
		Container: e.Of.Name,
		Run:       e.Run,
		ID:        e.State.ContainerID,
		Code:      e.Code,
		Signal:    e.State.Signal,
		Reason:    e.Reason,
		Message:   Cut(e.State.Message),
	}
	began, ended := unit.WallOf(e.State.StartedAt.Time), unit.WallOf(e.State.FinishedAt.Time)
	if c, known := w.view.Containers[translate.ContainerID(out.ID)]; known { // with parts of a second
		began, ended = c.StartedAt, c.FinishedAt
	}
	if began > 0 && ended > began {
		out.Ran = ended.Sub(began)
	}
	if wait := e.Of.State.Waiting; wait != nil {
		out.Waits = strings.TrimSuffix(Cut(wait.Reason+": "+wait.Message), ": ")
	}
	w.r.note(pod, journal.Ended, out)
}

// notePreemption records that a pod ends so that a critical one fits.
func (r *Runner) notePreemption(victim, critical *corev1.Pod, resource string) {
	if r.Journal == nil {
		return
	}
	r.Journal.Note(journal.Note{
		Time:   time.Now(),
		Kind:   journal.Preempted,
		Pods:   append(JournalPod(victim), JournalPod(critical)...),
		Detail: &journal.Preemption{For: critical.Namespace + "/" + critical.Name, Resource: resource},
	})
}

// noteKill records that the kernel killed a process because memory ran out.
func (r *Runner) noteKill(pod *corev1.Pod, v oom.Verdict) {
	r.note(pod, journal.OutOfMemory, &journal.OOMKill{
		Container: v.Container.Name,
		PID:       v.PID,
		Command:   v.Command,
		RSS:       v.RSS(),
		First:     v.First,
		What:      v.Text(),
	})
}

// Cut returns a text of others as the journal has it.
func Cut(text string) string {
	if len(text) > textMax {
		text = text[:textMax] + "..."
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}
