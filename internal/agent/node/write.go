package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// register creates the agent's Node with its status, or takes over the existing one.
func (k *Reporter) register(ctx context.Context) (heartbeat.Fact, error) {
	k.refresh(ctx)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: k.o.Name, Labels: k.labels(),
		Annotations: maps.Clone(k.o.Annotations)}}
	node.Spec = corev1.NodeSpec{Taints: slices.Clone(k.o.Taints), ProviderID: k.o.ProviderID}
	if k.o.Cloud != nil {
		node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: taintUninitialized, Value: "true",
			Effect: corev1.TaintEffectNoSchedule})
	}
	k.mu.Lock()
	k.fill(node) // without devices if Recall was not called yet; the first report has them
	found := k.addresses != nil
	k.mu.Unlock()
	if !found {
		return heartbeat.Fact{}, errors.New("the machine's addresses are not known: see the log")
	}
	if k.o.Register {
		k.o.Announce(ctx)
		k.o.Startup.Trying()
		out := &corev1.Node{}
		err := k.o.API.Create(ctx, kube.Nodes, "", "", node, out)
		if err == nil {
			slog.Info("node registered", "node", k.o.Name, "ready", readyStatus(out), "cpu", out.Status.Allocatable.Cpu(),
				"memory", out.Status.Allocatable.Memory())
			k.o.Startup.Registered()
			k.measureReady(out)
			k.recall(nil)
			k.accept(&corev1.Node{}, out)
			k.o.Announce(ctx)
			k.o.Exists()
			return heartbeat.Fact{}, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return heartbeat.Fact{}, err
		}
	}
	return heartbeat.Fact{}, k.takeOver(ctx, node)
}

// takeOver writes the agent's labels and status over the existing Node. Its taints and its provider ID stay as they
// are.
func (k *Reporter) takeOver(ctx context.Context, ours *corev1.Node) error {
	theirs := &corev1.Node{}
	if err := k.o.API.Get(ctx, kube.Nodes, "", k.o.Name, theirs); err != nil {
		return err
	}
	k.recall(theirs)
	node := theirs.DeepCopy()
	if node.Labels == nil {
		node.Labels = map[string]string{}
	}
	for key, value := range ours.Labels {
		// As in the kubelet, a label that was changed since stays, unless it describes the machine itself.
		if _, exists := node.Labels[key]; !exists || slices.Contains(kubeletapis.KubeletLabels(), key) {
			node.Labels[key] = value
		}
	}
	if len(ours.Annotations) > 0 && node.Annotations == nil {
		node.Annotations = map[string]string{}
	}
	maps.Copy(node.Annotations, ours.Annotations)
	if id := theirs.Spec.ProviderID; ours.Spec.ProviderID != "" && id != ours.Spec.ProviderID {
		k.failures.Failed("take over node",
			fmt.Errorf("it was registered with provider ID %q, which the API does not allow to change to %q: "+
				"delete the Node if the configuration is right", id, ours.Spec.ProviderID))
	}
	k.mu.Lock()
	k.fill(node)
	k.mu.Unlock()
	out, err := k.patch(ctx, theirs, node)
	if err != nil {
		return err
	}
	if boot := theirs.Status.NodeInfo.BootID; boot != "" && boot != node.Status.NodeInfo.BootID {
		k.o.Recorder.Eventf(k.ref(), corev1.EventTypeWarning, "Rebooted", "Node %s has been rebooted, boot id: %s", k.o.Name,
			node.Status.NodeInfo.BootID)
	}
	slog.Info("node taken over", "node", k.o.Name, "created", theirs.CreationTimestamp.Time, "ready", readyStatus(out))
	k.accept(theirs, out)
	k.o.Exists()
	return nil
}

// labels returns the default labels and the configured ones, which take precedence.
func (k *Reporter) labels() map[string]string {
	labels := map[string]string{
		corev1.LabelHostname:  k.o.Name,
		kubeletapis.LabelOS:   runtime.GOOS,
		kubeletapis.LabelArch: k.o.Machine.Identity.Architecture,
	}
	maps.Copy(labels, k.machineLabels())
	maps.Copy(labels, k.o.Labels)
	return labels
}

// report sends the difference between the Node as last delivered and as computed.
func (k *Reporter) report(ctx context.Context) (heartbeat.Fact, error) {
	k.mu.Lock()
	base, computed := k.base, k.computed
	if base != nil && computed == nil {
		computed = base.DeepCopy()
		k.fill(computed)
	}
	k.mu.Unlock()
	if base == nil {
		return heartbeat.Fact{}, nil // deleted meanwhile; register is called next
	}
	out, err := k.patch(ctx, base, computed)
	if apierrors.IsNotFound(err) {
		k.deleted(base.UID)
	}
	if err != nil {
		return heartbeat.Fact{}, err
	}
	k.measureReady(out)
	k.accept(base, out)
	return heartbeat.Fact{}, nil
}

// measureReady measures the start of the node if it is ready by what the API server has.
func (k *Reporter) measureReady(node *corev1.Node) {
	if readyStatus(node) == corev1.ConditionTrue {
		k.o.Startup.Ready()
	}
}

// patch sends the difference between two states of the Node through the status subresource, which accepts labels and
// annotations too.
func (k *Reporter) patch(ctx context.Context, from, to *corev1.Node) (*corev1.Node, error) {
	body, err := patchOf(from, to)
	if err != nil {
		return nil, fmt.Errorf("write patch: %w", err)
	}
	out := &corev1.Node{}
	return out, k.o.API.Patch(ctx, kube.Nodes, "", k.o.Name, types.StrategicMergePatchType, body, out, "status")
}

// patchOf returns a strategic merge patch. Addresses are replaced as a whole: their merge key is the type, and a node
// may have two addresses of one type.
func patchOf(from, to *corev1.Node) ([]byte, error) {
	oldJSON, err := json.Marshal(slim(from))
	if err != nil {
		return nil, err
	}
	newJSON, err := json.Marshal(slim(to))
	if err != nil {
		return nil, err
	}
	body, err := strategicpatch.CreateTwoWayMergePatch(oldJSON, newJSON, corev1.Node{})
	if err != nil {
		return nil, err
	}
	patch := map[string]any{}
	if err := json.Unmarshal(body, &patch); err != nil {
		return nil, err
	}
	status, _ := patch["status"].(map[string]any)
	if _, changed := status["addresses"]; !changed {
		delete(status, "$setElementOrder/addresses")
		return json.Marshal(patch)
	}
	addresses := []any{map[string]any{"$patch": "replace"}}
	for _, a := range to.Status.Addresses {
		addresses = append(addresses, a)
	}
	status["addresses"] = addresses
	delete(status, "$setElementOrder/addresses")
	return json.Marshal(patch)
}

// slim leaves out what the agent never changes: managed fields are the largest part of an encoded Node.
func slim(node *corev1.Node) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: node.Labels, Annotations: node.Annotations},
		Status: node.Status}
}

// accept stores the API server's answer to a write and records Events about what the write changed.
func (k *Reporter) accept(before, after *corev1.Node) {
	after.ManagedFields = nil
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.base == nil || k.base.UID != after.UID || newer(after.ResourceVersion, k.base.ResourceVersion) {
		k.base, k.computed = after, nil
		if k.o.Received != nil {
			k.o.Received(after)
		}
	}
	k.recordCordoned(after)
	was := map[corev1.NodeConditionType]corev1.ConditionStatus{}
	for _, c := range before.Status.Conditions {
		was[c.Type] = c.Status
	}
	for _, c := range after.Status.Conditions {
		old, existed := was[c.Type]
		if reason := translate.NodeConditionEvent(c); reason != "" && old != c.Status && (existed ||
			c.Type != corev1.NodeReady || c.Status == corev1.ConditionTrue) {
			k.event(corev1.EventTypeNormal, reason)
		}
	}
}

// renew renews the Lease.
func (k *Reporter) renew(ctx context.Context) (heartbeat.Fact, error) {
	k.mu.Lock()
	lease, node := k.lease, k.base
	k.mu.Unlock()
	if node == nil {
		return heartbeat.Fact{}, nil // deleted meanwhile
	}
	if lease != nil {
		renewed, err := k.write(ctx, lease, node)
		if err == nil {
			k.keepLease(renewed)
			return heartbeat.Fact{}, nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			return heartbeat.Fact{}, err
		}
		// It was written or deleted by another client: read what is there.
	}
	found := &coordinationv1.Lease{}
	err := k.o.API.Get(ctx, kube.Leases, corev1.NamespaceNodeLease, k.o.Name, found)
	if apierrors.IsNotFound(err) {
		found = nil
	} else if err != nil {
		return heartbeat.Fact{}, err
	}
	renewed, err := k.write(ctx, found, node)
	if err != nil {
		return heartbeat.Fact{}, err
	}
	k.keepLease(renewed)
	return heartbeat.Fact{}, nil
}

// write renews lease, or creates it if it is nil.
func (k *Reporter) write(ctx context.Context, lease *coordinationv1.Lease,
	node *corev1.Node) (*coordinationv1.Lease, error) {
	next := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: k.o.Name, Namespace: corev1.NamespaceNodeLease}}
	if lease != nil {
		next = lease.DeepCopy()
	}
	// The garbage collector deletes the Lease together with its Node.
	next.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	seconds := int32(k.leaseDuration() / time.Second)
	next.Spec.HolderIdentity, next.Spec.LeaseDurationSeconds = &k.o.Name, &seconds
	next.Spec.RenewTime = &metav1.MicroTime{Time: k.now()}
	out := &coordinationv1.Lease{}
	if lease == nil {
		return out, k.o.API.Create(ctx, kube.Leases, corev1.NamespaceNodeLease, "", next, out)
	}
	return out, k.o.API.Update(ctx, kube.Leases, corev1.NamespaceNodeLease, k.o.Name, next, out)
}

func (k *Reporter) leaseDuration() time.Duration {
	if d := k.o.Heartbeat.LeaseDuration; d > 0 {
		return d
	}
	return heartbeat.Default().LeaseDuration
}

func (k *Reporter) keepLease(lease *coordinationv1.Lease) {
	lease.ManagedFields = nil
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lease = lease
}
