package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/health"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// api is what the controller asks of the API server.
type api interface {
	ready(ctx context.Context) error
	lease(ctx context.Context, node string) (*coordinationv1.Lease, error)
	patchNode(ctx context.Context, name string, t types.PatchType, body []byte, subresources ...string) (*corev1.Node, error)
	patchPodStatus(ctx context.Context, namespace, name string, body []byte) error
}

// requestTimeout bounds one request. Chosen: below the shortest sensible grace; a request without an answer by then is
// tried again.
const requestTimeout = 10 * time.Second

// remote is the real API server.
type remote struct{ client *kube.Client }

func (r remote) ready(ctx context.Context) error { return r.client.Ready(ctx) }

func (r remote) lease(ctx context.Context, node string) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, r.client.Get(ctx, kube.Leases, corev1.NamespaceNodeLease, node, out)
}

func (r remote) patchNode(ctx context.Context, name string, t types.PatchType, body []byte, subresources ...string) (*corev1.Node, error) {
	out := &corev1.Node{}
	return out, r.client.Patch(ctx, kube.Nodes, "", name, t, body, out, subresources...)
}

func (r remote) patchPodStatus(ctx context.Context, namespace, name string, body []byte) error {
	return r.client.Patch(ctx, kube.Pods, namespace, name, types.StrategicMergePatchType, body, nil, "status")
}

// errAlive reports that a node gave a sign that the watch had not brought yet.
var errAlive = errors.New("node renewed its lease")

// markNode writes conditions and taints of one node and tells the Monitor what came of it.
func (c *controller) markNode(ctx context.Context, a health.Action, node *corev1.Node, renewed unit.Wall) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if node == nil {
		c.tell(ctx, func(now unit.Instant) { c.monitor.Done(now, a, false) })
		return
	}
	began := time.Now()
	after, err := c.writeNode(ctx, a, node, renewed)
	alive := errors.Is(err, errAlive)
	switch {
	case err == nil:
		slog.Info("node marked", "node", a.Node, "unknown", len(a.Unknown), "add", a.Add, "drop", a.Drop, "took", time.Since(began).Round(time.Millisecond))
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err) || alive:
		slog.Debug("node changed meanwhile", "node", a.Node, "err", err)
	case ctx.Err() == nil:
		slog.Warn("mark node failed", "node", a.Node, "err", err)
	}
	c.tell(context.WithoutCancel(ctx), func(now unit.Instant) {
		if after != nil {
			c.seeNode(now, after)
		}
		c.monitor.Done(now, a, err == nil || alive)
	})
}

// writeNode returns the last version of the node that the API answered with, also beside an error.
func (c *controller) writeNode(ctx context.Context, a health.Action, node *corev1.Node, renewed unit.Wall) (after *corev1.Node, err error) {
	if len(a.Unknown) > 0 {
		if err := c.confirmSilence(ctx, a.Node, renewed); err != nil {
			return nil, err
		}
		body, err := conditionsPatch(node, a.Unknown, time.Now())
		if err != nil {
			return nil, err
		}
		if after, err = c.api.patchNode(ctx, a.Node, types.StrategicMergePatchType, body, "status"); err != nil {
			return nil, fmt.Errorf("write conditions of node %s: %w", a.Node, err)
		}
		node = after
	}
	if len(a.Add)+len(a.Drop) == 0 {
		return after, nil
	}
	body, err := taintsPatch(node, a.Add, a.Drop, time.Now())
	if err != nil {
		return after, err
	}
	tainted, err := c.api.patchNode(ctx, a.Node, types.MergePatchType, body)
	if err != nil {
		return after, fmt.Errorf("write taints of node %s: %w", a.Node, err)
	}
	return tainted, nil
}

// confirmSilence reads the node's lease once more. A renewal that the watch has not brought is told to the Monitor.
func (c *controller) confirmSilence(ctx context.Context, node string, renewed unit.Wall) error {
	lease, err := c.api.lease(ctx, node)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read lease of node %s: %w", node, err)
	}
	if lease.Spec.RenewTime == nil || unit.WallOf(lease.Spec.RenewTime.Time) == renewed {
		return nil
	}
	c.tell(ctx, func(now unit.Instant) { c.seeLease(now, lease) })
	return errAlive
}

// conditionsPatch sets conditions to Unknown with upstream's reasons. When the node last spoke (lastHeartbeatTime) stays
// as it was; a condition that was never posted gets the node's creation.
func conditionsPatch(node *corev1.Node, unknown []health.UnknownCondition, now time.Time) ([]byte, error) {
	var conditions []map[string]any
	for _, u := range unknown {
		c := map[string]any{
			"type": u.Type, "status": corev1.ConditionUnknown, "lastTransitionTime": metav1.NewTime(now),
			"reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status.",
		}
		if u.Never {
			c["reason"], c["message"] = "NodeStatusNeverUpdated", "Kubelet never posted node status."
			c["lastHeartbeatTime"] = node.CreationTimestamp
		}
		conditions = append(conditions, c)
	}
	return guarded(node, "status", map[string]any{"conditions": conditions})
}

// taintsPatch replaces the list of taints. The list has no merge key, so that others' taints are kept by writing them
// back, and the resourceVersion makes sure that none was added meanwhile.
func taintsPatch(node *corev1.Node, add, drop []health.Taint, now time.Time) ([]byte, error) {
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return slices.Contains(drop, health.Taint{Key: t.Key, Effect: health.Effect(t.Effect)})
	})
	added := metav1.NewTime(now)
	for _, t := range add {
		taints = append(taints, corev1.Taint{Key: t.Key, Effect: corev1.TaintEffect(t.Effect), TimeAdded: &added})
	}
	if taints == nil {
		taints = []corev1.Taint{}
	}
	return guarded(node, "spec", map[string]any{"taints": taints})
}

// guarded makes a patch of one field that fails if the node is not the version it was made for.
func guarded(node *corev1.Node, field string, value any) ([]byte, error) {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion},
		field:      value,
	})
	if err != nil {
		return nil, fmt.Errorf("write %s of node %s: %w", field, node.Name, err)
	}
	return body, nil
}

// markPod writes that a pod on a silent node is not Ready.
func (c *controller) markPod(ctx context.Context, a health.Action, pod *corev1.Pod) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	body, err := podNotReadyPatch(*a.Pod, time.Now())
	if err == nil {
		err = c.api.patchPodStatus(ctx, a.Pod.Namespace, a.Pod.Name, body)
	}
	gone := apierrors.IsNotFound(err) || apierrors.IsConflict(err) // the UID is another pod's
	if err != nil && !gone && ctx.Err() == nil {
		slog.Warn("mark pod not ready failed", "pod", a.Pod.Namespace+"/"+a.Pod.Name, "node", a.Node, "err", err)
	}
	if err == nil && pod != nil {
		c.recorder.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	}
	c.tell(context.WithoutCancel(ctx), func(now unit.Instant) {
		if err == nil {
			p := *a.Pod
			p.Ready = false
			c.monitor.PodSeen(now, p)
		}
		c.monitor.Done(now, a, err == nil)
	})
}

func podNotReadyPatch(p health.Pod, now time.Time) ([]byte, error) {
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.ID},
		"status": map[string]any{"conditions": []map[string]any{{
			"type": corev1.PodReady, "status": corev1.ConditionFalse, "lastTransitionTime": metav1.NewTime(now),
		}}},
	})
	if err != nil {
		return nil, fmt.Errorf("write readiness of pod %s/%s: %w", p.Namespace, p.Name, err)
	}
	return body, nil
}
