package pods

import (
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Present returns the pods that have resources here: from their admission until nothing of them runs, those that were
// evicted until nothing of them is left.
func (r *Runner) Present() []podentry.Present {
	var out []podentry.Present
	for _, e := range r.entries() {
		if p, ok := e.Present(r.clock.At); ok {
			out = append(out, p)
		}
	}
	return out
}

// Evict orders a pod's end: Failed once nothing of it runs, and never started here again. A pod that is ending already
// keeps the reason it has, and ends no later than at v.KillAt. It only notes the order and returns, so that it may be
// called on the way to a kill; Resync lets the pod's worker act on it. False means that there is no such pod.
func (r *Runner) Evict(uid types.UID, v Eviction) bool {
	e := r.entryOf(uid)
	if e == nil {
		return false
	}
	now, _ := r.now()
	e.Evict(now, max(time.Until(v.KillAt), 0), v.order())
	return true
}

// recallEviction gives a pod that this process sees for the first time the order that the process before it decided on,
// and may not have lived to carry out or to report.
func (r *Runner) recallEviction(e *podentry.Entry, pod *corev1.Pod) {
	if r.Evicted == nil || translate.PodlifeTerminal(pod) != "" {
		return
	}
	v, ok := r.Evicted(pod.UID)
	if !ok {
		return
	}
	now, _ := r.now()
	slog.Info("pod was evicted by an agent before this one", "pod", pod.Namespace+"/"+pod.Name, "uid", e.UID(), "message", v.Message)
	e.Evict(now, max(time.Until(v.KillAt), 0), v.order())
}
