package pods

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// This file decides a pod's phase: it asks for the node's verdict, and device plugins for their preferences and
// allocations.

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
			w.r.Assignments.Finish(string(w.e.UID())) // an earlier agent started it
		}
	}
	if w.judged.Basis != nil { // else an earlier agent admitted it
		w.noteVerdict(pod, journal.Admits, "", "")
	}
	w.e.Admit(pod, w.view.Note)
}

// askAdmission asks for the verdict on a pod that has nothing on this node, or that lost its assignment. Pods are
// admitted one at a time, in the order in which they came, so that each verdict counts the pods admitted before. Only
// this pod waits for the answers of device plugins. While they are asked for a preference, nothing is assigned to it;
// afterwards it is judged against the pods that are on the node by then.
func (w *worker) askAdmission(ctx context.Context, pod *corev1.Pod) *Rejection {
	asked := allocation.Recovered(pod, w.view.Note).In(pod)
	for range consultationsMax {
		rejected, anew := w.judge(asked)
		switch {
		case !anew:
			return nil
		case rejected == nil:
			return w.waitFor(ctx, asked, w.r.Admission.Allocate)
		case !rejected.Asks:
			return rejected
		}
		if rejected := w.waitFor(ctx, asked, w.r.Admission.Consult); rejected != nil || w.e.Stopping() {
			return rejected
		}
	}
	w.e.SetPhase(podentry.PhaseNew)
	rejection := numa.Unexpected(fmt.Sprintf("device plugins were asked %d times without a result", consultationsMax))
	rejection.Waiting = true
	return RejectionOf(rejection)
}

// consultationsMax bounds how often plugins are asked before a pod is admitted. They are asked once for each resource
// of each container, and again when the free resources have changed. Chosen: more than any pod has resources and
// containers.
const consultationsMax = 1000

// judge asks for the node's verdict on a pod, given the pods that are on the node. If an earlier agent admitted the
// pod, judge does not ask and returns anew as false.
func (w *worker) judge(asked *corev1.Pod) (rejected *Rejection, anew bool) {
	w.r.admission.Lock()
	defer w.r.admission.Unlock()
	if len(w.view.Sandboxes) > 0 && !w.r.Assignments.MustReadmit(string(w.e.UID())) {
		return nil, false
	}
	others := w.r.counted(w.e)
	rejected = w.r.Admission.Admit(asked, others)
	if w.r.Judged != nil {
		w.judged = w.r.Judged()
	}
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

// waitFor makes a call to device plugins about a pod, and cancels it when the pod must stop. If the call rejects the
// pod, nothing is assigned to it.
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
		return nil // the pod must stop, so the plugin's answer does not matter
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
