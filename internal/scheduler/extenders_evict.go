package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// evictionsLeft asks each extender that the pod concerns which of the preemptions it accepts, of those that the
// extenders before it left.
func (m *loop) evictionsLeft(
	ctx context.Context, pod *corev1.Pod, q extenderRequest,
) ([]corescheduler.Preemption, error) {
	left := q.candidates
	for _, e := range m.extenders {
		if e.Preempt == "" || !e.concerns(q.pod) || len(left) == 0 {
			continue
		}
		answered, err := m.preempt(ctx, e, pod, left)
		switch {
		case err == nil:
			left = answered
		case e.Ignorable && ctx.Err() == nil:
			slog.Warn("extender failed, and is ignored",
				"extender", e.URL, "pod", q.pod.Namespace+"/"+q.pod.Name, "err", err)
		default:
			return nil, fmt.Errorf("extender %s: %s: %w", e.URL, e.Preempt, err)
		}
	}
	return left, nil
}

// preempt asks one extender about preemptions. The extender may remove nodes, and change the victims on a node. It
// cannot add nodes.
func (m *loop) preempt(
	ctx context.Context, e *extender, pod *corev1.Pod, offers []corescheduler.Preemption,
) ([]corescheduler.Preemption, error) {
	args := &extenderv1.ExtenderPreemptionArgs{Pod: pod}
	if e.NamesOnly {
		args.NodeNameToMetaVictims = metaVictims(offers)
	} else {
		var err error
		if args.NodeNameToVictims, err = m.wholeVictims(ctx, offers); err != nil {
			return nil, err
		}
	}
	var r extenderv1.ExtenderPreemptionResult
	if err := e.send(ctx, e.Preempt, args, &r); err != nil {
		return nil, err
	}
	left := []corescheduler.Preemption{}
	for node, victims := range r.NodeNameToMetaVictims {
		if !slices.ContainsFunc(offers, func(o corescheduler.Preemption) bool { return o.Node == node }) {
			return nil, fmt.Errorf("answer names node %.200q, which was not in the request", node)
		}
		if victims == nil || len(victims.Pods) == 0 {
			if e.Ignorable {
				continue
			}
			return nil, fmt.Errorf("expected at least one victim pod on node %q", node)
		}
		made := corescheduler.Preemption{Node: node, Violations: int(victims.NumPDBViolations)}
		for _, v := range victims.Pods {
			if v == nil {
				return nil, fmt.Errorf("answer names a victim on node %q without its UID", node)
			}
			made.Victims = append(made.Victims, corescheduler.Victim{ID: corescheduler.PodID(v.UID)})
		}
		left = append(left, made)
	}
	slices.SortFunc(left, func(a, b corescheduler.Preemption) int { return cmp.Compare(a.Node, b.Node) })
	return left, m.nameVictims(ctx, corescheduler.PodID(pod.UID), left)
}

// nameVictims adds the names of the victims, which only the scheduling loop has.
func (m *loop) nameVictims(ctx context.Context, pod corescheduler.PodID, wanted []corescheduler.Preemption) error {
	answer := make(chan error, 1)
	m.submit(ctx, func(unit.Instant) { answer <- m.placer.NameVictims(pod, wanted) })
	select {
	case err := <-answer:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// metaVictims returns the arguments for an extender that has its own cache of pods (nodeCacheCapable).
func metaVictims(offers []corescheduler.Preemption) map[string]*extenderv1.MetaVictims {
	out := map[string]*extenderv1.MetaVictims{}
	for _, o := range offers {
		victims := &extenderv1.MetaVictims{NumPDBViolations: int64(o.Violations)}
		for _, v := range o.Victims {
			victims.Pods = append(victims.Pods, &extenderv1.MetaPod{UID: string(v.ID)})
		}
		out[o.Node] = victims
	}
	return out
}

// wholeVictims returns the arguments for an extender without a cache. The objects are read from the API server, because
// the informer's cache has only a part of each. Victims that are gone are left out.
func (m *loop) wholeVictims(
	ctx context.Context, offers []corescheduler.Preemption,
) (map[string]*extenderv1.Victims, error) {
	out := map[string]*extenderv1.Victims{}
	for _, o := range offers {
		victims := &extenderv1.Victims{NumPDBViolations: int64(o.Violations)}
		for _, v := range o.Victims {
			victim, err := m.wholePod(ctx, v.Namespace, v.Name, v.ID)
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read victim %s/%s: %w", v.Namespace, v.Name, err)
			}
			victims.Pods = append(victims.Pods, victim)
		}
		if len(victims.Pods) > 0 {
			out[o.Node] = victims
		}
	}
	if len(out) == 0 {
		return nil, errVictimsGone
	}
	return out, nil
}

// errVictimsGone is the error if no victim is left about which an extender could be asked. The pod is tried again: its
// room may be free by now.
var errVictimsGone = errors.New("all victims are gone")
