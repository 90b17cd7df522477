package oracle

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// stores is the storage objects of a cluster.
type stores struct {
	claims      []*corev1.PersistentVolumeClaim
	volumes     []*corev1.PersistentVolume
	classes     []*storagev1.StorageClass
	nodes       []*storagev1.CSINode
	drivers     []*storagev1.CSIDriver
	capacities  []*storagev1.CSIStorageCapacity
	attachments []*storagev1.VolumeAttachment
}

const ebs = "kubernetes.io/aws-ebs"

// stores generates claims, whose names differ between namespaces (README.md); classes with immediate binding and with
// WaitForFirstConsumer, with and without provisioner; claims in every state; volumes with and without node affinity,
// zones and claims.
func (r random) stores(c *cluster) *stores {
	s := &stores{}
	r.addClasses(s)
	r.addDrivers(s)
	r.addCapacities(s)
	for i := range 12 {
		s.volumes = append(s.volumes, r.volume(i, c))
	}
	for _, namespace := range []string{"x", "y"} {
		for i := range 8 {
			s.claims = append(s.claims, r.claim(namespace, fmt.Sprint(namespace, "-claim", i), s))
		}
	}
	for _, n := range c.nodes {
		if !r.chance(3) {
			r.addNode(s, n.Name)
		}
	}
	return s
}

func (r random) addClasses(s *stores) {
	mode := func(m storagev1.VolumeBindingMode) *storagev1.VolumeBindingMode { return &m }
	for _, k := range []struct{ name, provisioner string }{
		{"now", "csi.example.com"},
		{"wait", "csi.example.com"},
		{"local", "kubernetes.io/no-provisioner"},
		{"old", ebs},
		{"space", "space.example.com"},
	} {
		class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: k.name}, Provisioner: k.provisioner,
			VolumeBindingMode: mode(storagev1.VolumeBindingWaitForFirstConsumer)}
		if k.name == "now" {
			class.VolumeBindingMode = mode(storagev1.VolumeBindingImmediate)
		}
		for r.chance(3) {
			t := corev1.TopologySelectorTerm{}
			for r.chance(2) {
				t.MatchLabelExpressions = append(t.MatchLabelExpressions, corev1.TopologySelectorLabelRequirement{
					Key:    r.of("zone", "disk", "topology.kubernetes.io/zone"),
					Values: []string{r.of("a", "b", "z1"), r.of("1", "z2")},
				})
			}
			class.AllowedTopologies = append(class.AllowedTopologies, t)
		}
		if !r.chance(10) {
			s.classes = append(s.classes, class)
		}
	}
}

func (r random) addDrivers(s *stores) {
	yes := true
	for _, name := range []string{"space.example.com", "csi.example.com"} {
		if r.chance(2) {
			d := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}}
			if r.chance(2) {
				d.Spec.StorageCapacity = &yes
			}
			s.drivers = append(s.drivers, d)
		}
	}
}

func (r random) addCapacities(s *stores) {
	for i := range r.IntN(4) {
		k := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprint("k", i)},
			StorageClassName: r.of("space", "wait")}
		if !r.chance(5) {
			k.NodeTopology = r.selectNodes()
		}
		if !r.chance(5) {
			q := resource.MustParse(r.of("1Gi", "5Gi"))
			k.Capacity = &q
		}
		if r.chance(4) {
			q := resource.MustParse(r.of("1Gi", "2Gi"))
			k.MaximumVolumeSize = &q
		}
		s.capacities = append(s.capacities, k)
	}
}

// addNode adds the drivers and attachments of a node.
func (r random) addNode(s *stores, name string) {
	k := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
	if r.chance(2) {
		k.Annotations[corev1.MigratedPluginsAnnotationKey] = r.of(ebs, "kubernetes.io/cinder", "kubernetes.io/cinder,"+ebs)
	}
	for _, driver := range []string{"csi.example.com", "space.example.com", "ebs.csi.aws.com"} {
		d := storagev1.CSINodeDriver{Name: driver, NodeID: name}
		if limit := int32(r.IntN(4)); !r.chance(3) {
			d.Allocatable = &storagev1.VolumeNodeResources{Count: &limit}
		}
		if r.chance(2) {
			k.Spec.Drivers = append(k.Spec.Drivers, d)
		}
	}
	s.nodes = append(s.nodes, k)
	for r.chance(3) {
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("a", len(s.attachments))}}
		a.Spec.NodeName, a.Spec.Attacher = name, r.of("csi.example.com", "space.example.com")
		if volume := r.of("pv0", "pv1", "pv2", "pv3", "gone"); !r.chance(5) {
			a.Spec.Source.PersistentVolumeName = &volume
		}
		s.attachments = append(s.attachments, a)
	}
}

func (r random) selectNodes() *metav1.LabelSelector {
	switch r.IntN(4) {
	case 0:
		return &metav1.LabelSelector{}
	case 1:
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone",
			Operator: metav1.LabelSelectorOperator(r.of("Exists", "DoesNotExist"))}}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{r.of("zone", "disk"): r.of("a", "b")}}
}

// volume has i GiB and a bit more: all sizes are different, so that the smallest is unique.
func (r random) volume(i int, c *cluster) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("pv", i), Labels: map[string]string{}}}
	v.Spec.Capacity = corev1.ResourceList{"storage": resource.MustParse(fmt.Sprint(i*500, "Mi"))}
	v.Spec.StorageClassName = r.of("now", "wait", "local", "old", "space", "local", "wait")
	v.Status.Phase = corev1.VolumeAvailable
	if r.chance(6) {
		v.Status.Phase = corev1.PersistentVolumePhase(r.of("Pending", "Released", "Bound"))
	}
	v.Spec.AccessModes = r.modes()
	if r.chance(6) {
		block := corev1.PersistentVolumeBlock
		v.Spec.VolumeMode = &block
	}
	if r.chance(10) {
		gold := "gold"
		v.Spec.VolumeAttributesClassName = &gold
	}
	if r.chance(12) {
		now := metav1.Now()
		v.DeletionTimestamp = &now
	}
	for r.chance(3) {
		v.Labels[r.of("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone",
			"topology.kubernetes.io/region", "tier")] = r.of("z1", "z2", "z1__z2", "z1____z3", " z3 ", "")
	}
	if r.chance(2) {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{}
		if !r.chance(8) {
			v.Spec.NodeAffinity.Required = &corev1.NodeSelector{}
			for range 1 + r.IntN(2) {
				t := r.term(true)
				if r.chance(2) {
					t = corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "kubernetes.io/hostname",
						Operator: "In", Values: []string{c.nodes[r.IntN(len(c.nodes))].Name, "n0"}}}}
				}
				v.Spec.NodeAffinity.Required.NodeSelectorTerms = append(v.Spec.NodeAffinity.Required.NodeSelectorTerms, t)
			}
		}
	}
	switch r.IntN(4) {
	case 0:
		v.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/d"}
	case 1:
		v.Spec.AWSElasticBlockStore = &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: fmt.Sprint("vol-", r.IntN(6))}
		if r.chance(2) {
			v.Labels["topology.kubernetes.io/zone"] = "z1"
		}
	default:
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: r.of("csi.example.com", "space.example.com",
			"ebs.csi.aws.com"), VolumeHandle: fmt.Sprint("vol-", r.IntN(8))}
	}
	return v
}

func (r random) modes() []corev1.PersistentVolumeAccessMode {
	out := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if r.chance(3) {
		out = append(out, corev1.ReadWriteMany)
	}
	if r.chance(3) {
		out = append(out, corev1.ReadWriteOncePod)
	}
	return out
}

func (r random) claim(namespace, name string, s *stores) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		UID: types.UID(namespace + "/" + name), Annotations: map[string]string{}}}
	class := r.of("now", "wait", "local", "local", "wait", "old", "space", "none", "")
	c.Spec.StorageClassName = &class
	if r.chance(8) {
		c.Annotations[corev1.BetaStorageClassAnnotation] = r.of("wait", "local")
	}
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(r.of("ReadWriteOnce",
		"ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"))}
	if !r.chance(10) {
		c.Spec.Resources.Requests = corev1.ResourceList{"storage": resource.MustParse(r.of("1Gi", "1100Mi", "2Gi", "4Gi",
			"1"))}
	}
	if r.chance(8) {
		block := corev1.PersistentVolumeBlock
		c.Spec.VolumeMode = &block
	}
	if r.chance(10) {
		gold := "gold"
		c.Spec.VolumeAttributesClassName = &gold
	}
	if r.chance(6) {
		c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "tier",
			Operator: metav1.LabelSelectorOperator(r.of("Exists", "DoesNotExist"))}}}
	}
	c.Status.Phase = corev1.ClaimPending
	v := s.volumes[r.IntN(len(s.volumes))]
	switch r.IntN(12) {
	case 0, 1, 2, 3, 4: // bound
		c.Spec.VolumeName, c.Status.Phase = v.Name, corev1.ClaimBound
		c.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
		if v.Spec.ClaimRef == nil {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: name, UID: c.UID}
		}
	case 5: // reserved for it
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: name,
			UID: types.UID(r.of("", string(c.UID), "another"))}
	case 6:
		c.Annotations["volume.kubernetes.io/selected-node"] = r.of("n0", "n1", "n2")
	}
	switch r.IntN(24) {
	case 0:
		c.Spec.VolumeName = "gone"
		c.Annotations["pv.kubernetes.io/bind-completed"] = "yes"
	case 1:
		c.Status.Phase = corev1.ClaimLost
	case 2:
		now := metav1.Now()
		c.DeletionTimestamp = &now
	case 3:
		c.Spec.VolumeName = v.Name // requested, but not bound
		delete(c.Annotations, "pv.kubernetes.io/bind-completed")
	}
	return c
}

// mount gives a pod volumes: claims, some of which do not exist; generic ephemeral volumes; disks.
func (r random) mount(pod *corev1.Pod, s *stores) {
	add := func(source corev1.VolumeSource) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: fmt.Sprint("v", len(pod.Spec.Volumes)),
			VolumeSource: source})
	}
	for range 1 + r.IntN(3) {
		switch r.IntN(10) {
		case 0:
			add(corev1.VolumeSource{GCEPersistentDisk: &corev1.GCEPersistentDiskVolumeSource{PDName: r.of("a", "b"),
				ReadOnly: r.chance(2)}})
		case 1:
			add(corev1.VolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: r.of("vol-1",
				"vol-2"), ReadOnly: r.chance(2)}})
		case 2:
			if r.chance(2) {
				add(corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{IQN: r.of("a", "b"), ReadOnly: r.chance(2)}})
			} else {
				add(corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{CephMonitors: []string{r.of("m1", "m2"), "m3"}[:1+r.IntN(2)],
					RBDPool: "p", RBDImage: r.of("i", "j"), ReadOnly: r.chance(2)}})
			}
		case 3:
			add(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}})
			r.own(pod, s)
		default:
			name := fmt.Sprint(pod.Namespace, "-claim", r.IntN(8))
			if r.chance(40) {
				name = "missing"
			}
			if slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
				return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == name
			}) {
				continue
			}
			add(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
		}
	}
}

// own creates the claim of the last volume of pod; sometimes with another owner, or not at all.
func (r random) own(pod *corev1.Pod, s *stores) {
	if pod.Spec.NodeName == "" && r.chance(5) {
		return
	}
	c := r.claim(pod.Namespace, pod.Name+"-"+pod.Spec.Volumes[len(pod.Spec.Volumes)-1].Name, s)
	yes := true
	owner := pod.UID
	if pod.Spec.NodeName == "" && pod.Status.NominatedNodeName == "" && r.chance(6) {
		owner = "another"
	}
	c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: owner,
		Controller: &yes}}
	s.claims = append(s.claims, c)
}

// tellStores passes to a Placer what seeStores passes to upstream.
func tellStores(p *scheduler.Placer, s *stores) {
	for _, x := range s.classes {
		p.StorageClassSeen(1, translate.SchedulerStorageClass(x))
	}
	for _, x := range s.volumes {
		p.VolumeSeen(1, translate.SchedulerVolume(x))
	}
	for _, x := range s.claims {
		p.ClaimSeen(1, translate.SchedulerClaim(x))
	}
	for _, x := range s.drivers {
		p.DriverSeen(1, x.Name, translate.PublishesCapacities(x))
	}
	for _, x := range s.capacities {
		p.CapacitySeen(1, translate.SchedulerCapacity(x))
	}
	for _, x := range s.nodes {
		p.NodeStorageSeen(1, translate.SchedulerNodeStorage(x))
	}
	for _, x := range s.attachments {
		p.AttachmentSeen(1, translate.SchedulerAttachment(x))
	}
}
