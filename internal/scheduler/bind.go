package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// send begins to carry out a placement.
func (m *loop) send(ctx context.Context, p placed) {
	if p.Volumes != nil {
		go m.writeVolumes(ctx, p)
	} else if m.lines.enter(p) {
		go m.bind(ctx, p)
	}
}

// bind runs in its own goroutine; the outcome returns to the loop as a fact.
func (m *loop) bind(ctx context.Context, p placed) {
	ctx = kube.Withdrawable(ctx, p.withdrawn)
	if !p.awaitPatch(ctx) {
		return
	}
	outcome, err := corescheduler.BindRefused, kube.ErrNotLeading
	switch {
	case kube.IsWithdrawn(ctx):
		outcome, err = corescheduler.BindWithdrawn, errWithdrawn
	case m.o.Leads():
		began := time.Now()
		if e := m.binder(p.Pod); e != nil {
			outcome, err = e.bind(ctx, p.Decision)
		} else {
			outcome, err = m.api.bind(ctx, p.Decision)
		}
		if outcome != corescheduler.BindWithdrawn {
			m.o.Metrics.call(callBind, began, err)
			m.o.Metrics.point("Bind", p.Pod.Profile, began, err)
		}
	}
	m.submit(ctx, func(now unit.Instant) {
		m.answered = now
		m.bindEnded(now, p, outcome)
		m.reportBind(p.Decision, outcome, err)
		next, withdrawn := m.lines.leave(p, outcome)
		for _, n := range next {
			go m.bind(ctx, n)
		}
		for _, w := range withdrawn {
			slog.Debug("bind withdrawn: an earlier bind to the node failed",
				"pod", w.Pod.Namespace+"/"+w.Pod.Name, "node", w.Node)
			m.bindEnded(now, w, corescheduler.BindRefused)
		}
	})
}

// Forgotten is the log message for a pod that no event made active although it fits, which is an error in this program.
// Tests and benchmarks look for it.
const Forgotten = "a pod waited although it fit: no event made it active, please report this"

// bindEnded records the outcome of a bind.
func (m *loop) bindEnded(now unit.Instant, p placed, outcome corescheduler.Outcome) {
	m.binding--
	m.endFlight(p)
	switch outcome {
	case corescheduler.BindDone:
		m.o.Metrics.attempt(resultScheduled, p.Pod.Profile, now.Sub(p.began))
		delete(m.unknownBinds, p.Pod.ID)
		m.recordBound(now, p)
	case corescheduler.BindWithdrawn:
		m.o.Metrics.attempt(resultUnschedulable, p.Pod.Profile, now.Sub(p.began))
		if pod := m.lookUp(p.Pod); pod != nil {
			m.recorderFor(p.by).Eventf(pod, corev1.EventTypeNormal, "Preempted",
				"Preempted by pod %v on node %v (in kube-scheduler memory).", p.by.ID, p.Node)
		}
	default:
		m.o.Metrics.attempt(resultError, p.Pod.Profile, now.Sub(p.began))
		if outcome == corescheduler.BindLost {
			m.outcomeUnknown(now, p)
		}
	}
	m.placer.Bound(now, p.Pod, outcome)
}

// recordBound records that a pod is bound as decided, in metrics and in an Event.
func (m *loop) recordBound(now unit.Instant, p placed) {
	name := p.Pod.Namespace + "/" + p.Pod.Name
	m.o.Metrics.bound(p.Attempt, now.Sub(p.Came))
	if p.Flushed {
		m.o.Metrics.flushed.Inc()
		slog.Warn(Forgotten, "pod", name, "node", p.Node, "waited", now.Sub(p.Came))
	}
	if pod := m.lookUp(p.Pod); pod != nil {
		m.recorderFor(p.Pod).Eventf(pod, corev1.EventTypeNormal, "Scheduled", "Successfully assigned %s to %s", name, p.Node)
	}
}

// outcomeUnknown remembers a bind that may have succeeded, so that the Event is sent once it is known to have
// succeeded. The watch may have shown that already.
func (m *loop) outcomeUnknown(now unit.Instant, p placed) {
	switch pod := m.lookUp(p.Pod); {
	case pod == nil:
	case pod.Spec.NodeName == "":
		m.unknownBinds[p.Pod.ID] = p
	default:
		p.Node = pod.Spec.NodeName
		m.recordBound(now, p)
	}
}

// shownOn records that the watch shows the pod on a node. Binds to several nodes may have been tried.
func (m *loop) shownOn(now unit.Instant, id corescheduler.PodID, node string) {
	if p, unsure := m.unknownBinds[id]; unsure {
		delete(m.unknownBinds, id)
		p.Node = node
		m.recordBound(now, p)
	}
}

// reportBind reports why a bind failed.
func (m *loop) reportBind(d corescheduler.Decision, outcome corescheduler.Outcome, err error) {
	name := d.Pod.Namespace + "/" + d.Pod.Name
	if outcome == corescheduler.BindDone {
		return
	}
	if errors.Is(err, kube.ErrNotLeading) || outcome == corescheduler.BindWithdrawn {
		// This process may end soon, and its data may be old. A withdrawal was reported where it was made.
		return
	}
	m.noteFailed(&d.Pod, "bind", d.Node, err)
	slog.Warn("bind failed", "pod", name, "node", d.Node, "lost", outcome == corescheduler.BindLost, "err", err)
	if pod := m.lookUp(d.Pod); pod != nil && pod.Spec.NodeName == "" {
		m.reportFailure(d.Pod, corev1.PodReasonSchedulerError, fmt.Sprintf("binding to node %s: %v", d.Node, err), "")
	}
}
