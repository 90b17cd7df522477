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
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// evictors is for how many pods room is made at once. Chosen: besideBinds, beyond which evictions would only wait
// before the Gate.
const evictors = besideBinds

// errNotLeading is why a process that leads no more writes nothing.
var errNotLeading = errors.New("another scheduler leads, or may")

// eviction is what was decided to make room for one pod.
type eviction struct {
	preemptor placement.Pod
	*placement.Preemption
}

// evictAll evicts the victims of a preemption, one after another, beside the mind. When one could not be evicted, the
// pod for which room was to be made tries again after a back-off. Nobody is evicted for a pod that is gone or placed
// meanwhile.
func (m *mind) evictAll(ctx context.Context, e eviction) {
	ctx = kube.As(ctx, throttle.Evict)
	began := time.Now()
	for _, v := range e.Victims {
		if pod := m.lookUp(e.preemptor); pod == nil || pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" {
			return
		}
		if err := m.evict(ctx, e.preemptor, v, e.Node); err != nil && ctx.Err() == nil && !kube.IsWithdrawn(ctx) {
			slog.Warn("eviction failed", "pod", v.Namespace+"/"+v.Name, "node", e.Node,
				"for", e.preemptor.Namespace+"/"+e.preemptor.Name, "err", err)
			m.o.Metrics.evicted(began, err)
			m.tell(ctx, func(now unit.Instant) { m.placer.EvictionFailed(now, e.preemptor.ID) })
			return
		}
	}
	m.o.Metrics.evicted(began, nil)
}

// evict marks a victim as disrupted by the scheduler, for those who ask why it ended, and deletes it. A victim that is
// gone or going already is no failure. Whoever leads no more evicts nobody: it may know the cluster of yesterday.
func (m *mind) evict(ctx context.Context, preemptor placement.Pod, v placement.Victim, node string) error {
	victim := m.lookUp(placement.Pod{ID: v.ID, Namespace: v.Namespace, Name: v.Name})
	if victim == nil || victim.DeletionTimestamp != nil {
		return nil
	}
	if !m.o.Leads() {
		return errNotLeading
	}
	condition, changed := conditionOf(victim, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		Message: m.nameFor(preemptor) + ": preempting to accommodate a higher priority pod",
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
		if !m.o.Leads() { // the mark may have waited long
			return errNotLeading
		}
	}
	if err := m.api.remove(ctx, v.Namespace, v.Name, types.UID(v.ID)); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete victim %s/%s: %w", v.Namespace, v.Name, err)
	}
	m.recorderFor(preemptor).Eventf(victim, corev1.EventTypeNormal, "Preempted", "Preempted by pod %v on node %v", preemptor.ID, node)
	return nil
}
