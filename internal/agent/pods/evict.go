package pods

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Present returns the pods that have resources of this node. A pod has them from its admission until none of its
// containers runs, and an evicted pod until nothing of it is left.
func (r *Runner) Present() []podentry.Present {
	var out []podentry.Present
	for _, e := range r.entries() {
		if p, ok := e.Present(r.clock.At); ok {
			out = append(out, p)
		}
	}
	return out
}

// Evict orders a pod to end: no container of it is started again, and its phase is Failed when none runs any more. A
// pod that is ending already keeps its reason, and ends at v.KillAt at the latest. Evict only stores the order, so that
// it may be called right before a kill; Resync makes the pod's worker act on it. It returns false if there is no such
// pod.
func (r *Runner) Evict(uid types.UID, v Eviction) bool {
	e := r.entryOf(uid)
	if e == nil {
		return false
	}
	now, _ := r.now()
	e.Evict(now, max(time.Until(v.KillAt), 0), v.order())
	return true
}

// recallEviction gives a new pod the stop order of an earlier agent that evicted it. That agent may have ended before
// it carried out or reported the eviction.
func (r *Runner) recallEviction(e *podentry.Entry, pod *corev1.Pod) {
	if r.Evicted == nil || translate.PodlifeTerminal(pod) != "" {
		return
	}
	v, ok := r.Evicted(pod.UID)
	if !ok {
		return
	}
	now, _ := r.now()
	slog.Info("pod was evicted by an earlier agent",
		"pod", pod.Namespace+"/"+pod.Name, "uid", e.UID(), "message", v.Message)
	e.Evict(now, max(time.Until(v.KillAt), 0), v.order())
}
