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
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// api is the part of the API server's interface that the controller uses.
type api interface {
	ready(ctx context.Context) error
	lease(ctx context.Context, node string) (*coordinationv1.Lease, error)
	patchNode(
		ctx context.Context, name string, t types.PatchType, body []byte, subresources ...string,
	) (*corev1.Node, error)
	getNode(ctx context.Context, name string) error
	patchPodStatus(ctx context.Context, namespace, name string, body []byte) (version string, err error)
	deletePod(ctx context.Context, namespace, name string, o metav1.DeleteOptions) error
	evictPod(ctx context.Context, e *policyv1.Eviction) error
}

// remote is the real API server. Its client has a Throttle, which limits the writes in flight and how long an answer
// may take.
type remote struct{ client *kube.Client }

func (r remote) ready(ctx context.Context) error { return r.client.Ready(ctx) }

func (r remote) lease(ctx context.Context, node string) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, r.client.Get(ctx, kube.Leases, corev1.NamespaceNodeLease, node, out)
}

func (r remote) patchNode(
	ctx context.Context, name string, t types.PatchType, body []byte, subresources ...string,
) (*corev1.Node, error) {
	out := &corev1.Node{}
	return out, r.client.Patch(ctx, kube.Nodes, "", name, t, body, out, subresources...)
}

func (r remote) patchPodStatus(ctx context.Context, namespace, name string, body []byte) (string, error) {
	out := &corev1.Pod{}
	err := r.client.Patch(ctx, kube.Pods, namespace, name, types.StrategicMergePatchType, body, out, "status")
	return out.ResourceVersion, err
}

func (r remote) getNode(ctx context.Context, name string) error {
	return r.client.Get(ctx, kube.Nodes, "", name, &corev1.Node{})
}

func (r remote) deletePod(ctx context.Context, namespace, name string, o metav1.DeleteOptions) error {
	return r.client.Delete(ctx, kube.Pods, namespace, name, o)
}

func (r remote) evictPod(ctx context.Context, e *policyv1.Eviction) error {
	return r.client.Evict(ctx, e)
}

// errAlive is the error if the API server shows a renewal that the watch has not brought yet.
var errAlive = errors.New("node renewed its lease")

// errGone is the error of an action about a node that is no longer known.
var errGone = errors.New("node is gone")

// markNode writes conditions, taints and labels of one node and passes its new version to the Monitor.
func (c *controller) markNode(ctx context.Context, r renewedAction) error {
	a, node := r.Action, r.node
	if node == nil {
		return errGone
	}
	began := time.Now()
	after, err := c.writeNode(ctx, a, node, r.renewed)
	if after != nil {
		c.send(context.WithoutCancel(ctx), func(now unit.Instant) { c.seeNode(now, after) })
	}
	switch {
	case err == nil:
		took := time.Since(began)
		c.metrics.node.Observe(took.Seconds())
		if len(a.Unknown) > 0 && r.silent != 0 {
			c.metrics.reaction.Observe(c.clock.Now().Sub(r.silent).Seconds())
		}
		if a.StartsEvictions() {
			c.metrics.nodeEvictions.WithLabelValues(translate.LifecycleNode(node).Zone).Inc()
		}
		slog.Info("node marked", "node", a.Node, "unknown", len(a.Unknown), "add", a.Add, "drop", a.Drop,
			"took", took.Round(time.Millisecond))
	case errors.Is(err, errAlive):
		slog.Debug("node renewed its lease meanwhile", "node", a.Node)
		return nil
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		slog.Debug("node changed meanwhile", "node", a.Node, "err", err)
	case ctx.Err() == nil:
		slog.Warn("mark node failed", "node", a.Node, "err", err)
	}
	return err
}

// writeNode writes conditions, then taints and labels. It returns the newest version of the node with which the API
// server answered, even together with an error; nil: none.
func (c *controller) writeNode(
	ctx context.Context, a corelifecycle.Action, node *corev1.Node, renewed unit.Wall,
) (after *corev1.Node, err error) {
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
	if len(a.Add)+len(a.Drop)+len(a.Labels) == 0 {
		return after, nil
	}
	body, err := taintsPatch(node, a, time.Now())
	if err != nil {
		return after, err
	}
	tainted, err := c.api.patchNode(ctx, a.Node, types.MergePatchType, body)
	if err != nil {
		return after, fmt.Errorf("write taints and labels of node %s: %w", a.Node, err)
	}
	return tainted, nil
}

// confirmSilence reads the node's lease once more. A renewal that the watch has not brought yet is passed to the
// Monitor.
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
	c.sendRenewals(ctx, []kube.Renewal{{Name: node, Renewed: unit.WallOf(lease.Spec.RenewTime.Time)}})
	return errAlive
}

// conditionsPatch sets conditions to Unknown with upstream's reasons. The time of the last heartbeat
// (lastHeartbeatTime) stays; a condition that was never posted gets the node's creation time.
func conditionsPatch(node *corev1.Node, unknown []corelifecycle.UnknownCondition, now time.Time) ([]byte, error) {
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

// taintsPatch replaces the list of taints and sets labels. A patch can only replace the whole list, so it must contain
// the taints of other writers, too. The resourceVersion ensures that none was added meanwhile.
func taintsPatch(node *corev1.Node, a corelifecycle.Action, now time.Time) ([]byte, error) {
	taints := slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return slices.ContainsFunc(a.Drop, corelifecycle.Taint{Key: t.Key, Effect: corelifecycle.Effect(t.Effect)}.Same)
	})
	for _, t := range a.Add {
		added := metav1.NewTime(now)
		if t.Added != 0 {
			added = metav1.NewTime(t.Added.Time())
		}
		taints = append(taints, corev1.Taint{Key: t.Key, Effect: corev1.TaintEffect(t.Effect), TimeAdded: &added})
	}
	metadata := map[string]any{"uid": node.UID, "resourceVersion": node.ResourceVersion}
	if len(a.Labels) > 0 {
		metadata["labels"] = a.Labels
	}
	patch := map[string]any{"metadata": metadata}
	if len(a.Add)+len(a.Drop) > 0 {
		if taints == nil {
			taints = []corev1.Taint{}
		}
		patch["spec"] = map[string]any{"taints": taints}
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return nil, fmt.Errorf("write taints of node %s: %w", node.Name, err)
	}
	return body, nil
}

// guarded returns a patch of one field that fails if the node has changed since.
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
