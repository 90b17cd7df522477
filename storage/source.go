package main

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
)

// selectedNode is the annotation of a claim that names the node on which its volume is made. Both the scheduler and a
// provisioner that runs on each node write it.
const selectedNode = "volume.kubernetes.io/selected-node"

// besideSource is a Provisioner that makes a copy on the node of its source only: a clone on that of the cloned volume,
// a restored volume on that of the snapshot. No scheduler knows where a source is, so it may select another node. Then
// this provisioner selects the node of the source, and the provisioner of that node makes the volume. A scheduler that
// waits for the volume sees that another node is selected, and places the pod on it.
//
// Without this, upstream's provisioner would only remove the selected node when the driver refuses. The scheduler,
// which does not remember the refusal, might select the same node again, for ever.
type besideSource struct {
	controller.Provisioner
	client    kubernetes.Interface
	snapshots snapshotclient.Interface
	claims    corelisters.PersistentVolumeClaimLister
	volumes   corelisters.PersistentVolumeLister
	events    record.EventRecorder
	driver    string            // name of the driver
	node      string            // name of this node
	here      map[string]string // this node's topology labels
}

// Provision makes a volume here, or has the node of its source make it.
func (b *besideSource) Provision(
	ctx context.Context, o controller.ProvisionOptions,
) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	if o.SelectedNodeName != b.node {
		return b.Provisioner.Provision(ctx, o)
	}
	there, err := b.sourceNode(ctx, o.PVC)
	if err != nil {
		return nil, controller.ProvisioningNoChange, fmt.Errorf("find the node of the claim's source: %w", err)
	}
	if there == "" || there == b.node {
		return b.Provisioner.Provision(ctx, o)
	}
	if err := b.selectNode(ctx, o.PVC, there); err != nil {
		err = fmt.Errorf("select node %s, which has the claim's source: %w", there, err)
		return nil, controller.ProvisioningNoChange, err
	}
	return nil, controller.ProvisioningNoChange, &controller.IgnoredError{
		Reason: fmt.Sprintf("the source is on node %s, which is selected now", there)}
}

// ShouldProvision is asked before anything is done for a claim.
func (b *besideSource) ShouldProvision(ctx context.Context, claim *corev1.PersistentVolumeClaim) bool {
	q, ok := b.Provisioner.(controller.Qualifier)
	return !ok || q.ShouldProvision(ctx, claim)
}

// SupportsBlock reports whether the driver makes block devices.
func (b *besideSource) SupportsBlock(ctx context.Context) bool {
	p, ok := b.Provisioner.(controller.BlockProvisioner)
	return ok && p.SupportsBlock(ctx)
}

// sourceNode returns the node that has the source of a claim. It is empty for a claim without a source, and if the node
// is not known: upstream's provisioner then says what is wrong with the source, or the driver refuses it.
func (b *besideSource) sourceNode(ctx context.Context, claim *corev1.PersistentVolumeClaim) (string, error) {
	switch kind, name := sourceOf(claim); kind {
	case "PersistentVolumeClaim":
		source, err := b.claims.PersistentVolumeClaims(claim.Namespace).Get(name)
		if err != nil || source.Spec.VolumeName == "" {
			return "", nil
		}
		pv, err := b.volumes.Get(source.Spec.VolumeName)
		if err != nil || pv.Spec.CSI == nil || pv.Spec.CSI.Driver != b.driver || onNode(pv, b.here) {
			return "", nil
		}
		return b.nodeOf(ctx, pv)
	case "VolumeSnapshot":
		snapshot, err := b.snapshots.SnapshotV1().VolumeSnapshots(claim.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil || snapshot.Status == nil || snapshot.Status.BoundVolumeSnapshotContentName == nil {
			return "", nil
		}
		content, err := b.snapshots.SnapshotV1().VolumeSnapshotContents().Get(ctx,
			*snapshot.Status.BoundVolumeSnapshotContentName, metav1.GetOptions{})
		if err != nil || content.Spec.Driver != b.driver {
			return "", nil
		}
		return b.existing(ctx, content.Labels[utils.VolumeSnapshotContentManagedByLabel])
	}
	return "", nil
}

// sourceOf returns kind and name of the object that a claim's volume is a copy of; empty: of none.
func sourceOf(claim *corev1.PersistentVolumeClaim) (kind, name string) {
	if s := claim.Spec.DataSource; s != nil {
		return s.Kind, s.Name
	}
	if s := claim.Spec.DataSourceRef; s != nil && s.Namespace == nil {
		return s.Kind, s.Name
	}
	return "", ""
}

// nodeOf returns the first node, by name, that the affinity of a volume admits; empty: none.
func (b *besideSource) nodeOf(ctx context.Context, pv *corev1.PersistentVolume) (string, error) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return "", nil
	}
	var names []string
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		if len(term.MatchExpressions) == 0 {
			continue
		}
		selector := labels.NewSelector()
		for _, e := range term.MatchExpressions {
			in, err := labels.NewRequirement(e.Key, selection.In, e.Values)
			if err != nil || e.Operator != corev1.NodeSelectorOpIn {
				return "", nil // the provisioner writes no such affinity
			}
			selector = selector.Add(*in)
		}
		nodes, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{
			LabelSelector:   selector.String(),
			ResourceVersion: "0", // as the API server's cache has it
		})
		if err != nil {
			return "", err
		}
		for i := range nodes.Items {
			names = append(names, nodes.Items[i].Name)
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	return slices.Min(names), nil
}

// existing returns the name of a node if the cluster has it; else nothing.
func (b *besideSource) existing(ctx context.Context, node string) (string, error) {
	if node == "" {
		return "", nil
	}
	nodes, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector(metav1.ObjectNameField, node).String(),
		ResourceVersion: "0",
	})
	if err != nil {
		return "", err
	}
	if !slices.ContainsFunc(nodes.Items, func(n corev1.Node) bool { return n.Name == node }) {
		return "", nil
	}
	return node, nil
}

// selectNode replaces this node by another one in a claim, unless the claim has changed.
func (b *besideSource) selectNode(ctx context.Context, claim *corev1.PersistentVolumeClaim, node string) error {
	claims := b.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		current, err := claims.Get(ctx, claim.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if current.UID != claim.UID || current.Spec.VolumeName != "" || current.Annotations[selectedNode] != b.node {
			return nil
		}
		current.Annotations[selectedNode] = node
		if _, err := claims.Update(ctx, current, metav1.UpdateOptions{}); err != nil {
			return err
		}
		b.events.Eventf(current, corev1.EventTypeNormal, "Provisioning",
			"The source of the volume is on node %q. The volume is made there, and not on node %q.", node, b.node)
		return nil
	})
}
