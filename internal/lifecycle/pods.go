package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// markPod sets a pod on a silent node to not Ready.
func (c *controller) markPod(ctx context.Context, a corelifecycle.Action, pod *corev1.Pod) error {
	notReady := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	version, err := c.patchPod(ctx, *a.Pod, "", notReady)
	if err != nil {
		gone := apierrors.IsNotFound(err) || apierrors.IsConflict(err) // a conflict: another pod has its name
		if ctx.Err() == nil && !gone {
			slog.Warn("mark pod not ready failed", "pod", a.Pod.Namespace+"/"+a.Pod.Name, "node", a.Node, "err", err)
		}
		return err
	}
	if pod != nil {
		c.nodes.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	c.send(ctx, func(now unit.Instant) {
		latest := c.pods[a.Pod.ID]
		if latest == nil || latest.ResourceVersion == version || older(version, latest.ResourceVersion) {
			return // the watch was faster: it has brought this write, and perhaps later changes
		}
		p := translate.LifecyclePod(latest)
		p.Ready = false
		c.monitor.PodSeen(now, p)
	})
	return nil
}

// endPod deletes a pod: with its termination grace period if the reason is a taint, at once if its node is gone or out
// of service.
func (c *controller) endPod(ctx context.Context, a corelifecycle.Action, pod *corev1.Pod) error {
	var err error
	switch a.Do {
	case corelifecycle.Evict:
		err = c.evict(ctx, *a.Pod, pod)
	case corelifecycle.CollectOrphan:
		if err = c.confirmGone(ctx, a.Node); err == nil {
			err = c.remove(ctx, *a.Pod, "orphaned", &corev1.PodCondition{
				Type:    corev1.DisruptionTarget,
				Status:  corev1.ConditionTrue,
				Reason:  "DeletionByPodGC",
				Message: "PodGC: node no longer exists",
			})
		}
	case corelifecycle.CollectOutOfService:
		err = c.remove(ctx, *a.Pod, "out-of-service", nil)
	}
	name := a.Pod.Namespace + "/" + a.Pod.Name
	switch {
	case err == nil:
		slog.Info("pod deleted", "pod", name, "node", a.Node, "why", reasonOf(a.Do))
		if a.Do == corelifecycle.Evict {
			c.metrics.podDeletions.Inc()
			c.metrics.podDeletionTime.Observe(c.clock.Now().Sub(a.Due).Seconds())
		}
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err): // most often another pod has this name, and the watch will bring it
		slog.Debug("pod changed meanwhile", "pod", name, "err", err)
	case apierrors.IsTooManyRequests(err):
		slog.Info("pod stays: its eviction was refused", "pod", name, "node", a.Node, "err", err)
	case errors.Is(err, errNodeExists):
		slog.Info("pod stays: its node exists", "pod", name, "node", a.Node)
	case ctx.Err() == nil:
		slog.Warn("delete pod failed; will retry", "pod", name, "node", a.Node, "why", reasonOf(a.Do), "err", err)
	}
	return err
}

func reasonOf(v corelifecycle.Verb) string {
	return map[corelifecycle.Verb]string{
		corelifecycle.Evict:               "taint",
		corelifecycle.CollectOrphan:       "node is gone",
		corelifecycle.CollectOutOfService: "node is out of service",
	}[v]
}

// evict deletes a pod as upstream's taint eviction does, or through the Eviction API.
func (c *controller) evict(ctx context.Context, p corelifecycle.Pod, pod *corev1.Pod) error {
	uid := types.UID(p.ID)
	preconditions := metav1.Preconditions{UID: &uid}
	if c.o.RespectBudgets { // the API server writes the condition itself
		return c.api.evictPod(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: &preconditions},
		})
	}
	condition := corev1.PodCondition{
		Type:    corev1.DisruptionTarget,
		Status:  corev1.ConditionTrue,
		Reason:  "DeletionByTaintManager",
		Message: "Taint manager: deleting due to NoExecute taint",
	}
	if pod != nil {
		condition.ObservedGeneration = pod.Generation
	}
	if _, err := c.patchPod(ctx, p, "", condition); err != nil {
		return err
	}
	return c.api.deletePod(ctx, p.Namespace, p.Name, metav1.DeleteOptions{Preconditions: &preconditions})
}

// errNodeExists is the error if a node exists that the watch reported as gone.
var errNodeExists = errors.New("node exists")

// confirmGone returns nil if the API server confirms that a node does not exist.
func (c *controller) confirmGone(ctx context.Context, node string) error {
	switch err := c.api.getNode(ctx, node); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("read node %s: %w", node, err)
	}
	return errNodeExists
}

// remove deletes a pod that no node runs any more, without a grace period. Before that, it sets the pod's phase to
// Failed unless the pod has ended.
func (c *controller) remove(ctx context.Context, p corelifecycle.Pod, reason string, why *corev1.PodCondition) error {
	if !p.Ended {
		var conditions []corev1.PodCondition
		if why != nil {
			conditions = append(conditions, *why)
		}
		if _, err := c.patchPod(ctx, p, corev1.PodFailed, conditions...); err != nil {
			return err
		}
	}
	uid, now := types.UID(p.ID), int64(0)
	o := metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &uid}}
	if err := c.api.deletePod(ctx, p.Namespace, p.Name, o); err != nil {
		return err
	}
	c.metrics.podsCollected.WithLabelValues(p.Namespace, reason).Inc()
	return nil
}

// patchPod writes a phase, unless it is empty, and conditions into a pod's status. It returns the resulting version.
func (c *controller) patchPod(
	ctx context.Context, p corelifecycle.Pod, phase corev1.PodPhase, conditions ...corev1.PodCondition,
) (version string, err error) {
	status := map[string]any{}
	if phase != "" {
		status["phase"] = phase
	}
	var list []map[string]any
	for _, condition := range conditions {
		one := map[string]any{
			"type":               condition.Type,
			"status":             condition.Status,
			"lastTransitionTime": metav1.NewTime(time.Now()),
		}
		if condition.Reason != "" {
			one["reason"], one["message"] = condition.Reason, condition.Message
		}
		if condition.ObservedGeneration > 0 {
			one["observedGeneration"] = condition.ObservedGeneration
		}
		list = append(list, one)
	}
	if len(list) > 0 {
		status["conditions"] = list
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.ID}, "status": status})
	if err != nil {
		return "", fmt.Errorf("write status of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return c.api.patchPodStatus(ctx, p.Namespace, p.Name, body)
}
