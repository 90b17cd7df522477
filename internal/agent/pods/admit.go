package pods

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// How a pod comes to its phase: the node's verdict, next to the pods that are here, and what device plugins say and do.

// admit asks for the node's verdict, once, unless the pod is ending or already runs here.
func (w *worker) admit(ctx context.Context) {
	defer w.r.turns.Leave(w.e)
	if len(w.view.Sandboxes) > 0 {
		w.e.RecoverEnding(w.view.Note)
	}
	pod := w.e.UnjudgedPod()
	if pod == nil {
		return
	}
	if len(w.view.Sandboxes) == 0 {
		w.r.turns.Await(w.e)
	}
	if rejected := w.askAdmission(ctx, pod); rejected != nil {
		w.holdOrReject(pod, *rejected)
		return
	}
	for _, c := range w.view.Containers {
		if translate.ContainerNamed(pod, c.Name) != nil && !isInit(pod, c.Name) {
			w.r.Assignments.Finish(string(w.e.UID())) // an agent before us started it
		}
	}
	w.e.Admit(pod, w.view.Note)
}

// askAdmission has a pod judged of which nothing is here, or one that has lost what it had. Admissions go one at a
// time, as pods came: each sees the pods that were admitted before. What device plugins answer and do about a pod is
// waited for by this pod alone: it has nothing while one is asked, and is judged next to the pods that are here by
// then.
func (w *worker) askAdmission(ctx context.Context, pod *corev1.Pod) *Rejection {
	asked := allocation.Recovered(pod, w.view.Note).In(pod)
	for range consultationsMax {
		rejected, anew := w.judge(asked)
		switch {
		case !anew:
			return nil
		case rejected == nil:
			return w.waitFor(ctx, asked, w.r.Admission.Give)
		case !rejected.Asks:
			return rejected
		}
		if rejected := w.waitFor(ctx, asked, w.r.Admission.Consult); rejected != nil || w.e.Stopping() {
			return rejected
		}
	}
	w.e.SetPhase(podentry.PhaseNew)
	rejection := numa.Unexpected(fmt.Sprintf("device plugins were asked %d times without an end", consultationsMax))
	rejection.Waiting = true
	return RejectionOf(rejection)
}

// consultationsMax bounds how often plugins are asked before a pod is admitted: once for each resource of each
// container, while what is free changes (chosen: more than any pod has of both).
const consultationsMax = 1000

// judge asks for the node's verdict on a pod, next to those that are here. anew is false for one that was admitted by
// an agent before this: nothing is asked.
func (w *worker) judge(asked *corev1.Pod) (rejected *Rejection, anew bool) {
	w.r.admission.Lock()
	defer w.r.admission.Unlock()
	if len(w.view.Sandboxes) > 0 && !w.r.Assignments.Anew(string(w.e.UID())) {
		return nil, false
	}
	others := w.r.counted(w.e)
	rejected = w.r.Admission.Admit(asked, others)
	if rejected != nil && rejected.Preempts {
		w.preempt(asked, others)
	}
	switch {
	case rejected == nil:
		w.e.SetPhase(podentry.PhasePreparing)
	case rejected.Asks:
		w.e.SetPhase(podentry.PhaseConsulting)
	default:
		w.e.SetPhase(podentry.PhaseNew)
	}
	return rejected, true
}

// waitFor has device plugins do something about a pod, as long as it is not to stop. A pod that is rejected has
// nothing.
func (w *worker) waitFor(
	ctx context.Context, asked *corev1.Pod, do func(context.Context, *corev1.Pod) *Rejection,
) *Rejection {
	w.r.turns.Leave(w.e)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !w.e.Arm(nil, cancel) { // a stop order must not wait for a plugin
		w.e.SetPhase(podentry.PhaseNew)
		return nil
	}
	rejected := do(ctx, asked)
	w.e.Disarm()
	if rejected == nil {
		return nil
	}
	w.e.SetPhase(podentry.PhaseNew)
	if w.e.Stopping() {
		return nil // whatever the plugin said, it is over
	}
	return rejected
}

// counted returns the pods that have resources of the node, except e's.
func (r *Runner) counted(e *podentry.Entry) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, o := range r.entries() {
		if o == e {
			continue
		}
		if pod := o.Counted(); pod != nil {
			pods = append(pods, pod)
		}
	}
	return pods
}

// Holders returns the pods that have resources of the node.
func (r *Runner) Holders() []*corev1.Pod { return r.counted(nil) }

func isInit(pod *corev1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name })
}
