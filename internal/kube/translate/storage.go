package translate

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/storage/ephemeral"
	csitranslation "k8s.io/csi-translation-lib"
	csiplugins "k8s.io/csi-translation-lib/plugins"
	"k8s.io/klog/v2"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/podfields"
)

// movedPlugins are the in-tree volume plugins that CSI drivers have replaced. kube-scheduler 1.36 counts their volumes
// against the drivers' limits.
var movedPlugins = []string{
	csiplugins.AWSEBSInTreePluginName, csiplugins.GCEPDInTreePluginName, csiplugins.AzureDiskInTreePluginName,
	csiplugins.CinderInTreePluginName, csiplugins.PortworxVolumePluginName,
}

var csi = csitranslation.New()

// schedulerMounts returns the volumes of pod that matter for a rule of the scheduler.
func schedulerMounts(pod *corev1.Pod) []scheduler.Mount {
	var out []scheduler.Mount
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		var m scheduler.Mount
		switch {
		case v.PersistentVolumeClaim != nil:
			m.Claim = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			m.Claim, m.Own = ephemeral.VolumeClaimName(pod, v), true
		default:
			m.Disk, m.Attached = schedulerDisk(v), inlineAttached(v, pod.Namespace)
		}
		if m.Claim != "" || m.Disk != nil || m.Attached != (scheduler.Attached{}) {
			out = append(out, m)
		}
	}
	return out
}

// EphemeralClaim returns the claim that upstream's controller creates for a generic ephemeral volume of pod.
func EphemeralClaim(pod *corev1.Pod, v *corev1.Volume) *corev1.PersistentVolumeClaim {
	template, yes := v.Ephemeral.VolumeClaimTemplate.DeepCopy(), true
	c := &corev1.PersistentVolumeClaim{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	c.Namespace, c.Name = pod.Namespace, ephemeral.VolumeClaimName(pod, v)
	c.UID = types.UID(c.Namespace + "/" + c.Name)
	c.OwnerReferences = []metav1.OwnerReference{{
		APIVersion:         "v1",
		Kind:               "Pod",
		Name:               pod.Name,
		UID:                pod.UID,
		Controller:         &yes,
		BlockOwnerDeletion: &yes,
	}}
	return c
}

// schedulerDisk returns the disk of v, if it is of a kind that two pods must not share.
func schedulerDisk(v *corev1.Volume) *scheduler.Disk {
	switch {
	case v.GCEPersistentDisk != nil:
		disk := v.GCEPersistentDisk
		return &scheduler.Disk{Kind: "gcePersistentDisk", ID: disk.PDName, ReadOnly: disk.ReadOnly}
	case v.AWSElasticBlockStore != nil:
		// not shared even for reading
		return &scheduler.Disk{Kind: "awsElasticBlockStore", ID: v.AWSElasticBlockStore.VolumeID}
	case v.ISCSI != nil:
		return &scheduler.Disk{Kind: "iscsi", ID: v.ISCSI.IQN, ReadOnly: v.ISCSI.ReadOnly}
	case v.RBD != nil:
		monitors := append([]string{}, v.RBD.CephMonitors...) // never nil: disks without a common monitor differ
		return &scheduler.Disk{
			Kind:     "rbd",
			ID:       v.RBD.RBDPool + "/" + v.RBD.RBDImage,
			Monitors: monitors,
			ReadOnly: v.RBD.ReadOnly,
		}
	}
	return nil
}

// inlineAttached returns what a CSI driver attaches for an in-tree volume in a pod's specification.
func inlineAttached(v *corev1.Volume, namespace string) scheduler.Attached {
	if !csi.IsInlineMigratable(v) {
		return scheduler.Attached{}
	}
	plugin, err := csi.GetInTreePluginNameFromSpec(nil, v)
	if err != nil || !slices.Contains(movedPlugins, plugin) {
		return scheduler.Attached{}
	}
	pv, err := csi.TranslateInTreeInlineVolumeToCSI(klog.Background(), v, namespace)
	if err != nil || pv == nil || pv.Spec.CSI == nil {
		return scheduler.Attached{}
	}
	return scheduler.Attached{Driver: pv.Spec.CSI.Driver, Handle: pv.Spec.CSI.VolumeHandle}
}

// Annotations by which the scheduler, the controller of persistent volumes and provisioners inform each other
// (upstream's names).
const (
	// AnnotationBoundByController of a volume: a controller bound it to its claim, not its creator.
	AnnotationBoundByController = "pv.kubernetes.io/bound-by-controller"
	// AnnotationSelectedNode of a claim: the node for which its volume is to be provisioned.
	AnnotationSelectedNode = "volume.kubernetes.io/selected-node"
	// annotationBindCompleted of a claim: the controller has completed binding it.
	annotationBindCompleted = "pv.kubernetes.io/bind-completed"
)

// ClaimClass returns the storage class of a claim. named is false for a claim without one, which gets the cluster's
// default class. The annotation of older releases has precedence over the field, as upstream.
func ClaimClass(c *corev1.PersistentVolumeClaim) (class string, named bool) {
	if class, named = c.Annotations[corev1.BetaStorageClassAnnotation]; named {
		return class, true
	}
	if c.Spec.StorageClassName == nil {
		return "", false
	}
	return *c.Spec.StorageClassName, true
}

// volumeClass returns the storage class of a volume, by the same rule.
func volumeClass(v *corev1.PersistentVolume) string {
	if class, named := v.Annotations[corev1.BetaStorageClassAnnotation]; named {
		return class
	}
	return v.Spec.StorageClassName
}

// SchedulerClaim translates a PersistentVolumeClaim.
func SchedulerClaim(c *corev1.PersistentVolumeClaim) scheduler.Claim {
	out := scheduler.Claim{
		Namespace: c.Namespace, Name: c.Name, UID: string(c.UID), Version: c.ResourceVersion,
		Volume: c.Spec.VolumeName,
		Bound:  metav1.HasAnnotation(c.ObjectMeta, annotationBindCompleted),
		Lost:   c.Status.Phase == corev1.ClaimLost, Deleting: c.DeletionTimestamp != nil,
		Modes: accessModes(c.Spec.AccessModes), OncePod: slices.Contains(c.Spec.AccessModes, corev1.ReadWriteOncePod),
		Block: isBlock(c.Spec.VolumeMode),
	}
	out.Class, _ = ClaimClass(c)
	out.Node, out.Selected = c.Annotations[AnnotationSelectedNode]
	if q, ok := c.Spec.Resources.Requests[corev1.ResourceStorage]; ok {
		out.Size, out.Sized = q.Value(), true
	}
	if c.Spec.VolumeAttributesClassName != nil {
		out.Attributes = *c.Spec.VolumeAttributesClassName
	}
	if c.Spec.Selector != nil {
		out.Selector = objectSelector(c.Spec.Selector)
	}
	if owner := metav1.GetControllerOf(c); owner != nil {
		out.Controller = string(owner.UID)
	}
	return out
}

// objectSelector translates a label selector; an invalid one matches nothing.
func objectSelector(in *metav1.LabelSelector) *scheduler.LabelSelector {
	s, err := schedulerSelector(in)
	if err != nil {
		s = scheduler.LabelSelector{Nothing: true}
	}
	return &s
}

func accessModes(modes []corev1.PersistentVolumeAccessMode) []string {
	out := make([]string, len(modes))
	for i := range modes {
		out[i] = string(modes[i])
	}
	return out
}

func isBlock(mode *corev1.PersistentVolumeMode) bool {
	return mode != nil && *mode == corev1.PersistentVolumeBlock
}

// SchedulerVolume translates a PersistentVolume.
func SchedulerVolume(v *corev1.PersistentVolume) scheduler.Volume {
	capacity := v.Spec.Capacity[corev1.ResourceStorage]
	out := scheduler.Volume{
		Name: v.Name, Version: v.ResourceVersion, Labels: SchedulerLabels(v.Labels), Class: volumeClass(v),
		Capacity: capacity.Value(), Available: v.Status.Phase == corev1.VolumeAvailable, Deleting: v.DeletionTimestamp != nil,
		Modes: accessModes(v.Spec.AccessModes), Block: isBlock(v.Spec.VolumeMode), Affinity: volumeAffinity(v),
		NeedsOfAgent: podfields.CodesOfVolume(v),
	}
	if v.Spec.VolumeAttributesClassName != nil {
		out.Attributes = *v.Spec.VolumeAttributesClassName
	}
	if ref := v.Spec.ClaimRef; ref != nil {
		out.Claimed = true
		out.ClaimNamespace = ref.Namespace
		out.ClaimName = ref.Name
		out.ClaimUID = string(ref.UID)
	}
	if source := v.Spec.CSI; source != nil {
		out.Attached, out.CSI = scheduler.Attached{Driver: source.Driver, Handle: source.VolumeHandle}, true
		return out
	}
	if !csi.IsPVMigratable(v) {
		return out
	}
	plugin, err := csi.GetInTreePluginNameFromSpec(v, nil)
	if err != nil || !slices.Contains(movedPlugins, plugin) {
		return out
	}
	if moved, err := csi.TranslateInTreePVToCSI(klog.Background(), v); err == nil && moved.Spec.CSI != nil {
		out.Attached = scheduler.Attached{Driver: moved.Spec.CSI.Driver, Handle: moved.Spec.CSI.VolumeHandle}
		out.Plugin, out.Moved = plugin, volumeAffinity(moved)
	}
	return out
}

func volumeAffinity(v *corev1.PersistentVolume) *[]scheduler.NodeTerm {
	if v.Spec.NodeAffinity == nil || v.Spec.NodeAffinity.Required == nil {
		return nil
	}
	terms, _, _ := SchedulerNodeAffinity(&corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: v.Spec.NodeAffinity.Required,
	})
	return terms
}

// SchedulerStorageClass translates a StorageClass.
func SchedulerStorageClass(c *storagev1.StorageClass) scheduler.StorageClass {
	out := scheduler.StorageClass{
		Name:        c.Name,
		Provisioner: c.Provisioner,
		Driver:      c.Provisioner,
		Unset:       c.VolumeBindingMode == nil,
	}
	out.Waits = c.VolumeBindingMode != nil && *c.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	if csi.IsMigratableIntreePluginByName(c.Provisioner) {
		out.Driver, out.NeedsOfAgent = "", podfields.CodesOfInTree()
		if slices.Contains(movedPlugins, c.Provisioner) {
			out.Driver, _ = csi.GetCSINameFromInTreeName(c.Provisioner)
		}
	}
	if len(c.AllowedTopologies) > 0 {
		terms := make([]scheduler.NodeTerm, 0, len(c.AllowedTopologies))
		for _, t := range c.AllowedTopologies {
			terms = append(terms, topologyTerm(t))
		}
		out.Topologies = &terms
	}
	return out
}

func topologyTerm(t corev1.TopologySelectorTerm) scheduler.NodeTerm {
	var out scheduler.NodeTerm
	for _, e := range t.MatchLabelExpressions {
		in := corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOpIn, Values: e.Values}
		r, ok := schedulerRequirement(&in)
		out.Labels = append(out.Labels, r)
		out.Broken = out.Broken || !ok
	}
	return out
}

// SchedulerNodeStorage translates a CSINode.
func SchedulerNodeStorage(n *storagev1.CSINode) scheduler.NodeStorage {
	out := scheduler.NodeStorage{Node: n.Name}
	for _, d := range n.Spec.Drivers {
		if d.Allocatable != nil && d.Allocatable.Count != nil {
			if out.Limits == nil {
				out.Limits = map[string]int64{}
			}
			out.Limits[d.Name] = int64(*d.Allocatable.Count)
		}
	}
	if moved := n.Annotations[corev1.MigratedPluginsAnnotationKey]; moved != "" {
		out.Plugins = strings.Split(moved, ",")
	}
	return out
}

// PublishesCapacities reports whether a driver publishes its storage capacity and wants the scheduler to use it.
func PublishesCapacities(d *storagev1.CSIDriver) bool {
	return d.Spec.StorageCapacity != nil && *d.Spec.StorageCapacity
}

// SchedulerCapacity translates a CSIStorageCapacity.
func SchedulerCapacity(c *storagev1.CSIStorageCapacity) scheduler.Capacity {
	out := scheduler.Capacity{Namespace: c.Namespace, Name: c.Name, Class: c.StorageClassName}
	if c.NodeTopology != nil {
		out.Nodes = objectSelector(c.NodeTopology)
	}
	if q := cmp.Or(c.MaximumVolumeSize, c.Capacity); q != nil {
		out.Size, out.Sized = q.Value(), true
	}
	return out
}

// SchedulerAttachment translates a VolumeAttachment. One without a PersistentVolume does not count against limits.
func SchedulerAttachment(a *storagev1.VolumeAttachment) scheduler.Attachment {
	out := scheduler.Attachment{Name: a.Name, Node: a.Spec.NodeName, Driver: a.Spec.Attacher}
	if a.Spec.Source.PersistentVolumeName != nil {
		out.Volume = *a.Spec.Source.PersistentVolumeName
	}
	return out
}
