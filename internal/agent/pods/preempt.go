package pods

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// preempt orders other pods to end so that a critical pod fits that was just rejected, and stores until when the pod
// waits for that. The caller holds Runner.admission, so that no other pod is admitted meanwhile. If the agent ends
// before those pods do, the next agent decides anew.
func (w *worker) preempt(pod *corev1.Pod, others []*corev1.Pod) {
	w.roomBy = time.Time{}
	p, ok := w.r.Admission.Preempt(pod, others, w.r.Present())
	if !ok {
		return
	}
	for _, id := range p.Victims {
		w.preemptOne(types.UID(id), pod, p.Resource)
	}
	for _, other := range w.r.Present() {
		if by := other.KillAt.Add(departure); !other.KillAt.IsZero() && by.After(w.roomBy) {
			w.roomBy = by
		}
	}
}

// preemptOne orders a pod to end within its own termination grace period, because a critical pod lacks a resource.
func (w *worker) preemptOne(uid types.UID, critical *corev1.Pod, resource string) {
	e := w.r.entryOf(uid)
	if e == nil || e.Stopping() {
		return
	}
	now, _ := w.r.now()
	e.Preempt(now, podlife.StopOrder{
		Phase:      podlife.Failed,
		Reason:     admission.ReasonPreempting,
		Message:    admission.MessagePreempting,
		Disruption: admission.MessageDisruption,
	})
	w.r.resync(e)
	w.r.Metrics.Preemptions.WithLabelValues(resource).Inc()
	if victim := e.Object(); victim != nil {
		w.r.notePreemption(victim, critical, resource)
		w.r.Recorder.Event(victim, corev1.EventTypeWarning, admission.ReasonPreempting, admission.MessagePreempting)
	}
	w.r.log(e).Warn("pod ends to make room for a critical one", "for", critical.Namespace+"/"+critical.Name, "lacks",
		resource)
}
