package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// evictors is the number of preemptors for which victims are evicted at once, each with one write at a time. Chosen: as
// many as binds. A busy API server spends its time on each kind of request in proportion to the number of such
// requests, and the throttle can only order what is in its own queue. With 8 (bench/perf, PreemptionBasic, on a machine
// with other load), the six writes for three victims took a second or more, behind Events and requests of others, and
// 12 to 30 pods per second were placed; with 64, 36 to 57. The more evictors, the more victims are marked although they
// turn out not to be needed.
const evictors = BindsInFlightDefault

// eviction is the victims to be evicted for one pod.
type eviction struct {
	preemptor corescheduler.Pod
	*corescheduler.Preemption
}

// errWithdrawn is the error of a victim's bind that was not sent.
var errWithdrawn = errors.New("withdrawn: preempted by a pod of higher priority")

// startFlight records that the decision about a pod is being carried out.
func (m *loop) startFlight(id corescheduler.PodID) *flight {
	f := &flight{withdrawn: make(chan struct{})}
	m.flights[id] = f
	return f
}

// endFlight records that the decision about a pod was carried out, or has failed.
func (m *loop) endFlight(p placed) {
	if m.flights[p.Pod.ID] == p.flight {
		delete(m.flights, p.Pod.ID)
	}
}

// makeRoom carries out a preemption: bound victims are evicted, the binds of assumed victims are withdrawn.
func (m *loop) makeRoom(d corescheduler.Decision) {
	e := eviction{d.Pod, &corescheduler.Preemption{Node: d.Preemption.Node, Violations: d.Preemption.Violations}}
	for _, v := range d.Preemption.Victims {
		if v.Assumed {
			m.withdraw(d.Pod, v)
		} else {
			e.Victims = append(e.Victims, v)
		}
	}
	if len(e.Victims) > 0 {
		m.evictions.put(d.Pod.ID, e)
	}
}

// withdraw withdraws the bind of a victim, if it was not sent yet. If the victim has no flight, the Placer has
// forgotten it already, or the outcome of its bind is not known and will be reported.
func (m *loop) withdraw(preemptor corescheduler.Pod, v corescheduler.Victim) {
	f := m.flights[v.ID]
	if f == nil {
		return
	}
	f.by = preemptor
	close(f.withdrawn)
	delete(m.flights, v.ID)
	if i := slices.IndexFunc(m.ahead, func(p placed) bool { return p.Pod.ID == v.ID }); i >= 0 {
		p := m.ahead[i]
		m.ahead = slices.Delete(m.ahead, i, i+1)
		m.bindEnded(m.clock.Now(), p, corescheduler.BindWithdrawn)
	}
}

// evictAll evicts the victims of a preemption one after another, in another goroutine than the scheduling loop. If an
// eviction fails, the preemptor is tried again after a back-off. It stops when the preemptor is gone or placed; such an
// eviction is withdrawn and is not counted in the metrics.
func (m *loop) evictAll(ctx context.Context, e eviction) (done bool) {
	ctx = kube.As(ctx, throttle.Evict)
	began := time.Now()
	for _, v := range e.Victims {
		if pod := m.lookUp(e.preemptor); pod == nil || pod.DeletionTimestamp != nil || pod.Spec.NodeName != "" {
			return true
		}
		if err := m.evict(ctx, e.preemptor, v, e.Node); err != nil {
			if ctx.Err() != nil || kube.IsWithdrawn(ctx) {
				return true // not carried out: neither a success nor a failure
			}
			slog.Warn("eviction failed", "pod", v.Namespace+"/"+v.Name, "node", e.Node,
				"for", e.preemptor.Namespace+"/"+e.preemptor.Name, "err", err)
			m.noteFailed(&e.preemptor, "preempt "+v.Namespace+"/"+v.Name, e.Node, err)
			m.o.Metrics.evicted(began, err)
			m.submit(ctx, func(now unit.Instant) { m.placer.EvictionFailed(now, e.preemptor.ID) })
			return true // the scheduling loop decides again
		}
	}
	m.o.Metrics.evicted(began, nil)
	return true
}

// evict sets the condition DisruptionTarget of a victim, which records why it ended, and deletes it. A victim that is
// gone or being deleted is not an error. A process that does not lead any more evicts nothing: its data may be old.
func (m *loop) evict(ctx context.Context, preemptor corescheduler.Pod, v corescheduler.Victim, node string) error {
	victim := m.lookUp(corescheduler.Pod{ID: v.ID, Namespace: v.Namespace, Name: v.Name})
	if victim == nil || victim.DeletionTimestamp != nil {
		return nil
	}
	if !m.o.Leads() {
		return kube.ErrNotLeading
	}
	condition, changed := conditionOf(victim, corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		Message: m.nameFor(preemptor) + ": preempting to accommodate a higher priority pod",
	}, m.clock.Time())
	if changed {
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": victim.UID},
			"status":   map[string]any{"conditions": []corev1.PodCondition{condition}},
		})
		if err != nil {
			return fmt.Errorf("mark victim %s/%s: %w", v.Namespace, v.Name, err)
		}
		if err := m.api.patchStatus(ctx, v.Namespace, v.Name, patch); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("mark victim %s/%s: %w", v.Namespace, v.Name, err)
		}
		if !m.o.Leads() { // the patch may have been in the throttle's queue for long
			return kube.ErrNotLeading
		}
	}
	err := m.api.remove(ctx, v.Namespace, v.Name, types.UID(v.ID))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !m.removed(ctx, v, err) {
		return fmt.Errorf("delete victim %s/%s: %w", v.Namespace, v.Name, err)
	}
	m.recorderFor(preemptor).Eventf(victim, corev1.EventTypeNormal, "Preempted",
		"Preempted by pod %v on node %v", preemptor.ID, node)
	return nil
}

// removed reports whether a deletion that failed with err has happened nevertheless. If the answer was lost, it reads
// the pod.
func (m *loop) removed(ctx context.Context, v corescheduler.Victim, err error) bool {
	if outcomeOf(err) != corescheduler.BindLost {
		return false
	}
	// The request must not be withdrawn: if the pod was deleted, the preemptor may be placed by now.
	pod, err := m.wholePod(kube.Withdrawable(ctx, nil), v.Namespace, v.Name, v.ID)
	return apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil
}
