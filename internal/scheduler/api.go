package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// api is the requests that the scheduling loop makes to the API server.
type api interface {
	// bind binds a pod to its node and returns the outcome, as far as it is known. err is set unless it is BindDone.
	bind(ctx context.Context, d corescheduler.Decision) (corescheduler.Outcome, error)
	// patchStatus applies a strategic merge patch to the pod's status.
	patchStatus(ctx context.Context, namespace, name string, patch []byte) error
	// reserveVolume and selectNode write one part of a pod's volume plan.
	reserveVolume(ctx context.Context, b *corescheduler.VolumeBind) error
	selectNode(ctx context.Context, q *corescheduler.VolumeProvision) error
	// pod reads the whole object. The informer's cache has only a part of it.
	pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// remove deletes the pod if it still has that UID.
	remove(ctx context.Context, namespace, name string, uid types.UID) error
}

// answerMax limits how long an answer to a bind, or to any other write, may take: the 30 s of upstream's client (the
// API server's own limit is 60 s). After that, the answer counts as lost.
const answerMax = 30 * time.Second

// remote is the real API server; its client has a write throttle (kube.Throttle).
type remote struct{ client *kube.Client }

func (r remote) bind(ctx context.Context, d corescheduler.Decision) (corescheduler.Outcome, error) {
	err := r.client.Create(ctx, kube.Pods, d.Pod.Namespace, d.Pod.Name, bindingOf(d), &metav1.Status{}, "binding")
	if kube.IsWithdrawn(ctx) && errors.Is(err, context.Canceled) {
		return corescheduler.BindWithdrawn, errWithdrawn // it was still in the throttle's queue
	}
	return outcomeOf(err), err
}

func bindingOf(d corescheduler.Decision) *corev1.Binding {
	b := &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.Pod.Namespace, Name: d.Pod.Name, UID: types.UID(d.Pod.ID)},
		Target:     corev1.ObjectReference{Kind: "Node", Name: d.Node},
	}
	if d.Berth != nil {
		b.Annotations = map[string]string{translate.AnnotationBerth: translate.BerthAnnotation(d.Berth)}
	}
	return b
}

// outcomeOf distinguishes a refusal, which means that nothing was written, from an answer that is missing or does not
// say whether something was written.
func outcomeOf(err error) corescheduler.Outcome {
	if err == nil {
		return corescheduler.BindDone
	}
	if utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) || errors.Is(err, kube.ErrNotLeading) {
		return corescheduler.BindRefused // the request was not processed
	}
	switch reason := apierrors.ReasonForError(err); reason {
	case metav1.StatusReasonUnknown, metav1.StatusReasonInternalError, metav1.StatusReasonTimeout,
		metav1.StatusReasonServerTimeout, metav1.StatusReasonServiceUnavailable:
		return corescheduler.BindLost
	}
	return corescheduler.BindRefused
}

func (r remote) patchStatus(ctx context.Context, namespace, name string, patch []byte) error {
	return r.client.Patch(ctx, kube.Pods, namespace, name, types.StrategicMergePatchType, patch, nil, "status")
}

func (r remote) remove(ctx context.Context, namespace, name string, uid types.UID) error {
	still := &metav1.Preconditions{UID: &uid}
	return r.client.Delete(ctx, kube.Pods, namespace, name, metav1.DeleteOptions{Preconditions: still})
}

// failureWriters is how many status patches may be in the throttle at once. Chosen: fewer than BindsInFlightDefault,
// because binds matter more.
const failureWriters = 8

// failure is why a pod was not placed. For each pod, only the latest failure is written. So a slow API server gets
// fewer patches, and they are never out of date.
type failure struct {
	pod             *corev1.Pod // the kept part of its object; see KeptPod
	reason, message string      // of the condition PodScheduled
	nominated       string      // the node on which the pod is nominated; empty: none
}

// writeFailure updates the PodScheduled condition of an unplaced pod. It returns false if it must be tried again:
// without another try, the pod's owner might not learn the reason for hours. It writes nothing about a pod that is
// bound: the API server sets the condition then. A process that does not lead must try again, because it may lead again
// soon, if only the renewal of its Lease was late.
func (m *loop) writeFailure(ctx context.Context, f failure) (done bool) {
	pod := m.lookUp(corescheduler.Pod{ID: corescheduler.PodID(f.pod.UID), Namespace: f.pod.Namespace, Name: f.pod.Name})
	if pod == nil || pod.Spec.NodeName != "" {
		return true
	}
	if !m.o.Leads() {
		return false
	}
	body, needed, err := conditionPatch(f, m.clock.Time())
	if err == nil && needed {
		began := time.Now()
		if err = m.api.patchStatus(ctx, f.pod.Namespace, f.pod.Name, body); !kube.IsWithdrawn(ctx) {
			m.o.Metrics.call(callStatus, began, err)
		}
	}
	if err == nil || apierrors.IsNotFound(err) || ctx.Err() != nil || kube.IsWithdrawn(ctx) {
		return true
	}
	slog.Warn("write pod condition failed", "pod", f.pod.Namespace+"/"+f.pod.Name, "err", err)
	return apierrors.IsConflict(err) // the name belongs to another pod now
}

// conditionPatch returns the patch that sets PodScheduled to False and the nominated node. needed is false if the pod
// has both already. The UID in the patch protects a later pod with the same name.
func conditionPatch(f failure, now time.Time) (patch []byte, needed bool, err error) {
	condition, changed := conditionOf(f.pod, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: f.reason, Message: f.message,
	}, now)
	status := map[string]any{"conditions": []corev1.PodCondition{condition}}
	if f.pod.Status.NominatedNodeName != f.nominated {
		changed = true
		status["nominatedNodeName"] = f.nominated
		if f.nominated == "" {
			status["nominatedNodeName"] = nil // null in a patch removes the field
		}
	}
	if !changed {
		return nil, false, nil
	}
	body := map[string]any{"metadata": map[string]any{"uid": f.pod.UID}, "status": status}
	patch, err = json.Marshal(body)
	if err != nil {
		return nil, false, fmt.Errorf("write condition of pod %s/%s: %w", f.pod.Namespace, f.pod.Name, err)
	}
	return patch, true, nil
}

// conditionOf completes a condition of pod. changed is false if the pod has it already. If the status does not change,
// neither does its transition time.
func conditionOf(pod *corev1.Pod, condition corev1.PodCondition, now time.Time) (_ corev1.PodCondition, changed bool) {
	condition.ObservedGeneration, condition.LastTransitionTime = pod.Generation, metav1.NewTime(now)
	for _, c := range pod.Status.Conditions {
		if c.Type == condition.Type && c.Status == condition.Status {
			condition.LastTransitionTime = c.LastTransitionTime
			return condition, c.Reason != condition.Reason || c.Message != condition.Message
		}
	}
	return condition, true
}
