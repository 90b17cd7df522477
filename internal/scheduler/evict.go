package scheduler

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// evictAll evicts the victims of a preemption, one after another, beside the mind. When one could not be evicted, the pod for
// which room was to be made tries again after a back-off. How many go out at once the Gate says.
func (m *mind) evictAll(ctx context.Context, d placement.Decision) {
	for _, v := range d.Preemption.Victims {
		if err := m.evict(ctx, d.Pod, v, d.Preemption.Node); err != nil && ctx.Err() == nil {
			slog.Warn("eviction failed", "pod", v.Namespace+"/"+v.Name, "node", d.Preemption.Node, "for", d.Pod.Namespace+"/"+d.Pod.Name, "err", err)
			m.tell(ctx, func(now unit.Instant) { m.placer.EvictionFailed(now, d.Pod.ID) })
			return
		}
	}
}

// evict marks a victim as disrupted by the scheduler, for those who ask why it ended, and deletes it. A victim that is gone
// or going already is no failure.
func (m *mind) evict(ctx context.Context, preemptor placement.Pod, v placement.Victim, node string) error {
	victim := m.lookUp(placement.Pod{ID: v.ID, Namespace: v.Namespace, Name: v.Name})
	if victim == nil || victim.DeletionTimestamp != nil {
		return nil
	}
	ctx = kube.As(ctx, throttle.Evict)
	condition, changed := conditionOf(victim, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		Message: m.o.Name + ": preempting to accommodate a higher priority pod",
	}, time.Now())
	if changed {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": victim.UID}, "status": map[string]any{"conditions": []corev1.PodCondition{condition}},
		})
		if err != nil {
			return fmt.Errorf("mark victim %s/%s: %w", v.Namespace, v.Name, err)
		}
		if err := m.api.patchStatus(ctx, v.Namespace, v.Name, patch); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("mark victim %s/%s: %w", v.Namespace, v.Name, err)
		}
	}
	if err := m.api.remove(ctx, v.Namespace, v.Name, types.UID(v.ID)); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete victim %s/%s: %w", v.Namespace, v.Name, err)
	}
	m.recorder.Eventf(victim, corev1.EventTypeNormal, "Preempted", "Preempted by pod %v on node %v", preemptor.ID, node)
	return nil
}
