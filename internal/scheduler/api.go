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

// api is what the mind asks of the API server.
type api interface {
	// bind sends a pod to its node and says what is known of the outcome; err is set unless it is BindDone.
	bind(ctx context.Context, d corescheduler.Decision) (corescheduler.Outcome, error)
	// patchStatus applies a strategic merge patch to the pod's status.
	patchStatus(ctx context.Context, namespace, name string, patch []byte) error
	// keepVolume and askForVolume write one part of a plan for a pod's volumes.
	keepVolume(ctx context.Context, b *corescheduler.VolumeBind) error
	askForVolume(ctx context.Context, q *corescheduler.VolumeProvision) error
	// pod returns the whole object, of which the cache keeps a part.
	pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// remove deletes the pod if it is still the one with that UID.
	remove(ctx context.Context, namespace, name string, uid types.UID) error
}

// answerMax bounds the answer to one bind, and to any other write. Upstream's client gives a request 30 s (the API
// server's own limit is 60 s); after that it counts as lost.
const answerMax = 30 * time.Second

// remote is the real API server, behind a Gate.
type remote struct{ client *kube.Client }

func (r remote) bind(ctx context.Context, d corescheduler.Decision) (corescheduler.Outcome, error) {
	err := r.client.Create(ctx, kube.Pods, d.Pod.Namespace, d.Pod.Name, bindingOf(d), &metav1.Status{}, "binding")
	if kube.IsWithdrawn(ctx) && errors.Is(err, context.Canceled) {
		return corescheduler.BindWithdrawn, errWithdrawn // it waited before the Gate
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

// outcomeOf tells a refusal, after which nothing happened, from an answer that is missing or says nothing about what
// happened.
func outcomeOf(err error) corescheduler.Outcome {
	if err == nil {
		return corescheduler.BindDone
	}
	if utilnet.IsConnectionRefused(err) || apierrors.IsTooManyRequests(err) || errors.Is(err, kube.ErrNotLeading) {
		return corescheduler.BindRefused // it was not even tried
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

// failureWriters bounds status patches before the Gate. Chosen: below BindsInFlightDefault, as binds matter more.
const failureWriters = 8

// failure is why a pod was not placed. Per pod only the latest is written, so that a slow API server is asked less, not
// later.
type failure struct {
	pod             *corev1.Pod
	reason, message string
	nominated       string
}

// writeFailure keeps the PodScheduled condition of an unplaced pod up to date, and says whether it need not be tried
// again: nothing else may happen to a pod for hours, and its owner is to know why. A pod that is placed by now has its
// condition from the API server. Who may lead no more may again, when a renewal of its Lease was late.
func (m *mind) writeFailure(ctx context.Context, f failure) (done bool) {
	pod := m.lookUp(corescheduler.Pod{ID: corescheduler.PodID(f.pod.UID), Namespace: f.pod.Namespace, Name: f.pod.Name})
	if pod == nil || pod.Spec.NodeName != "" {
		return true
	}
	if !m.o.Leads() {
		return false
	}
	body, needed, err := conditionPatch(f, m.clock())
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
	return apierrors.IsConflict(err) // it is another pod by now
}

// conditionPatch is the patch that sets PodScheduled to False and names the nominated node; needed is false if the pod
// already says so. The UID keeps it off a later pod of the same name.
func conditionPatch(f failure, now time.Time) (patch []byte, needed bool, err error) {
	condition, changed := conditionOf(f.pod, corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: f.reason, Message: f.message,
	}, now)
	status := map[string]any{"conditions": []corev1.PodCondition{condition}}
	if f.pod.Status.NominatedNodeName != f.nominated {
		changed = true
		status["nominatedNodeName"] = f.nominated
		if f.nominated == "" {
			status["nominatedNodeName"] = nil // a patch takes away what is null
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

// conditionOf completes a condition of pod. changed is false if the pod has it already; an unchanged status keeps its
// time.
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
