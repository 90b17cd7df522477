package main

import (
	"context"
	"fmt"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/util/workqueue"
	csitranslation "k8s.io/csi-translation-lib"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"

	"github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/capacity"
	"github.com/kubernetes-csi/external-provisioner/v6/pkg/capacity/topology"
	provision "github.com/kubernetes-csi/external-provisioner/v6/pkg/controller"
	resizecontroller "github.com/kubernetes-csi/external-resizer/v2/pkg/controller"
	resizecsi "github.com/kubernetes-csi/external-resizer/v2/pkg/csi"
	"github.com/kubernetes-csi/external-resizer/v2/pkg/resizer"
	snapshotinformers "github.com/kubernetes-csi/external-snapshotter/client/v8/informers/externalversions"
	common "github.com/kubernetes-csi/external-snapshotter/v8/pkg/common-controller"
	snapshotmetrics "github.com/kubernetes-csi/external-snapshotter/v8/pkg/metrics"
	sidecar "github.com/kubernetes-csi/external-snapshotter/v8/pkg/sidecar-controller"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/snapshotter"
	"github.com/kubernetes-csi/external-snapshotter/v8/pkg/utils"
)

// provisioner makes the controllers that make and remove volumes, protect the sources of clones, and report the node's
// capacity. The returned function runs them.
func (s *shared) provisioner(ctx context.Context) (func(context.Context), error) {
	plugin, controllerCan, err := provision.GetDriverCapabilities(s.driver, callTimeout)
	if err != nil {
		return nil, fmt.Errorf("ask the driver for its capabilities: %w", err)
	}
	info, err := provision.GetNodeInfo(s.driver, callTimeout)
	if err != nil {
		return nil, fmt.Errorf("ask the driver where it is: %w", err)
	}
	claims := s.objects.Core().V1().PersistentVolumeClaims()
	classes := s.objects.Storage().V1().StorageClasses()
	node := &provision.NodeDeployment{
		NodeName:      s.node,
		ClaimInformer: claims,
		NodeInfo:      info,
		// No scheduler chooses a node for a claim that is bound before a pod uses it. The first node whose provisioner
		// takes the claim makes the volume.
		ImmediateBinding: true,
		BaseDelay:        0,
		MaxDelay:         retryMax,
	}
	csiNodes, nodes := s.onlyNode(info)
	const (
		wholeUUID             = -1 // length of the UUID in names of volumes: not cut
		inTreePlugin          = "" // migrated to this driver: none
		strictTopology        = false
		immediateTopology     = true
		extraCreateMetadata   = false
		defaultFSType         = "" // the driver chooses
		publishReadOnly       = false
		preventModeConversion = true
	)
	p := provision.NewCSIProvisioner(s.client, callTimeout, s.name+"-"+s.node, "pvc", wholeUUID, s.driver, s.snapshots,
		s.name, plugin, controllerCan, inTreePlugin, strictTopology, immediateTopology, csitranslation.New(),
		classes.Lister(), csiNodes, nodes, claims.Lister(), nil, nil, extraCreateMetadata, defaultFSType, node,
		publishReadOnly, preventModeConversion, provision.NewInMemoryStore())
	p = &besideSource{
		Provisioner: p,
		client:      s.client,
		snapshots:   s.snapshots,
		claims:      claims.Lister(),
		volumes:     s.objects.Core().V1().PersistentVolumes().Lister(),
		events:      s.recorder(),
		driver:      s.name,
		node:        s.node,
		here:        info.GetAccessibleTopology().GetSegments(),
	}
	capacities, space := s.capacities(info)
	p = capacity.NewProvisionWrapper(p, space)
	provisioning := controller.NewProvisionController(ctx, s.client, s.name, p,
		controller.LeaderElection(false),
		controller.FailedProvisionThreshold(0), // try again for ever, more and more slowly
		controller.FailedDeleteThreshold(0),
		controller.RateLimiter(limiter()),
		controller.RetryIntervalMax(retryMax),
		controller.Threadiness(workers),
		controller.ClaimsInformer(claims.Informer()),
		controller.VolumesInformer(s.objects.Core().V1().PersistentVolumes().Informer()),
		controller.ClassesInformer(classes.Informer()),
		controller.AddFinalizer(true),
	)
	protection := provision.NewCloningProtectionController(s.client, claims.Lister(), claims.Informer(),
		workqueue.NewTypedRateLimitingQueue(limiter()), controllerCan)
	return func(ctx context.Context) {
		capacities.Start(ctx.Done())
		go space.Run(ctx, 1, nil)
		go protection.Run(ctx, 1, nil)
		provisioning.Run(ctx)
	}, nil
}

// onlyNode returns listers of the objects from which the provisioner reads topology: the Node and the CSINode of this
// node only, made of the driver's answer. So this process does not watch all nodes.
func (s *shared) onlyNode(info *spec.NodeGetInfoResponse) (storagelisters.CSINodeLister, corelisters.NodeLister) {
	segments := info.GetAccessibleTopology().GetSegments()
	csiNode := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: s.node}}
	driver := storagev1.CSINodeDriver{Name: s.name, NodeID: info.GetNodeId()}
	for key := range segments {
		driver.TopologyKeys = append(driver.TopologyKeys, key)
	}
	csiNode.Spec.Drivers = append(csiNode.Spec.Drivers, driver)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: s.node, Labels: segments}}
	never := informers.NewSharedInformerFactory(s.client, 0) // it is not started
	csiNodes := never.Storage().V1().CSINodes()
	nodes := never.Core().V1().Nodes()
	// Adding to a store that nothing else writes cannot fail: the key is the object's name.
	_ = csiNodes.Informer().GetStore().Add(csiNode)
	_ = nodes.Informer().GetStore().Add(node)
	return csiNodes.Lister(), nodes.Lister()
}

// managedByMax is the longest value of a label.
const managedByMax = 63

// capacities makes the controller that keeps this node's CSIStorageCapacity objects, by which the scheduler knows
// whether a volume fits. The Node object owns them, so they go when it is deleted.
func (s *shared) capacities(info *spec.NodeGetInfoResponse) (informers.SharedInformerFactory, *capacity.Controller) {
	var segment topology.Segment
	for key, value := range info.GetAccessibleTopology().GetSegments() {
		segment = append(segment, topology.SegmentEntry{Key: key, Value: value})
	}
	by := "plimsoll-storage-" + s.node
	by = by[:min(len(by), managedByMax)]
	own := informers.NewSharedInformerFactoryWithOptions(s.client, resync, informers.WithNamespace(s.namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.LabelSelector = labels.Set{capacity.DriverNameLabel: s.name, capacity.ManagedByLabel: by}.String()
		}))
	objects := own.Storage().V1().CSIStorageCapacities()
	queue := workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[capacity.QueueKey](retryMin, retryMax))
	const immediateBinding = false // of StorageClasses whose volumes are bound at once the scheduler reads no capacity
	return own, capacity.NewCentralCapacityController(spec.NewControllerClient(s.driver), s.name,
		s.client.StorageV1(), queue, &s.owner, by, s.namespace, topology.NewFixedNodeTopology(&segment),
		s.objects.Storage().V1().StorageClasses(), objects, capacityPeriod, immediateBinding, callTimeout)
}

// ours is a Resizer for the volumes of this node only.
type ours struct {
	resizer.Resizer
	node *corev1.Node
}

// CanSupport is asked before anything is done with a volume.
func (o ours) CanSupport(pv *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	return o.Resizer.CanSupport(pv, claim) && onNode(pv, o.node.Labels)
}

// onNode reports whether the node affinity of a volume, as the provisioner writes it, admits a node with these labels.
func onNode(pv *corev1.PersistentVolume, node map[string]string) bool {
	affinity := pv.Spec.NodeAffinity
	if affinity == nil || affinity.Required == nil {
		return true
	}
	for _, term := range affinity.Required.NodeSelectorTerms {
		fits := true
		for _, e := range term.MatchExpressions {
			value, has := node[e.Key]
			in := false
			for _, v := range e.Values {
				in = in || has && v == value
			}
			fits = fits && e.Operator == corev1.NodeSelectorOpIn && in
		}
		if fits {
			return true
		}
	}
	return false
}

func (s *shared) resizer(ctx context.Context) (func(context.Context), error) {
	client, err := resizecsi.New(ctx, "unix://"+s.address, callTimeout, metrics.NewCSIMetricsManager(s.name))
	if err != nil {
		return nil, fmt.Errorf("connect to the driver for resizes: %w", err)
	}
	all, err := resizer.NewResizerFromClient(client, callTimeout, s.client, s.name)
	if err != nil {
		return nil, fmt.Errorf("make the resizer: %w", err)
	}
	info, err := provision.GetNodeInfo(s.driver, callTimeout)
	if err != nil {
		return nil, fmt.Errorf("ask the driver where it is: %w", err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: info.GetAccessibleTopology().GetSegments()}}
	// With this the controller would watch all pods to know which volumes are in use. The driver grows those, too.
	const handleVolumeInUseError = false
	c := resizecontroller.NewResizeController(s.name, ours{all, node}, s.client, resync, s.objects, limiter(),
		handleVolumeInUseError, retryMax)
	return func(ctx context.Context) { c.Run(workers, ctx, nil) }, nil
}

// snapshotter makes the controller that has the driver take and remove the snapshots of this node's volumes.
func (s *shared) snapshotter(context.Context) (func(context.Context), error) {
	all := snapshotinformers.NewSharedInformerFactory(s.snapshots, resync)
	ours := snapshotinformers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.LabelSelector = labels.Set{utils.VolumeSnapshotContentManagedByLabel: s.node}.String()
	})
	own := snapshotinformers.NewSharedInformerFactoryWithOptions(s.snapshots, resync, ours)
	const (
		wholeUUID           = -1 // length of the UUID in names of snapshots: not cut
		extraCreateMetadata = false
		groupSnapshots      = false
	)
	c := sidecar.NewCSISnapshotSideCarController(s.snapshots, s.client, s.name,
		own.Snapshot().V1().VolumeSnapshotContents(), all.Snapshot().V1().VolumeSnapshotClasses(),
		snapshotter.NewSnapshotter(s.driver), nil, callTimeout, resync, "snapshot", wholeUUID, "groupsnapshot",
		wholeUUID, extraCreateMetadata, limiter(), groupSnapshots, nil, nil, limiter())
	return func(ctx context.Context) {
		own.Start(ctx.Done())
		all.Start(ctx.Done())
		c.Run(workers, ctx.Done(), nil)
	}, nil
}

// cluster makes upstream's snapshot-controller, which binds VolumeSnapshots to their contents for the whole cluster;
// nil without --snapshot-controller.
func (s *shared) cluster(ctx context.Context) (func(context.Context), error) {
	if !s.snapshotController {
		return nil, nil
	}
	// The controller itself reports nothing if the definitions are missing.
	if _, err := s.snapshots.SnapshotV1().VolumeSnapshotClasses().List(ctx, metav1.ListOptions{Limit: 1}); err != nil {
		return nil, fmt.Errorf("list VolumeSnapshotClasses: %w (are the definitions of VolumeSnapshots installed?)", err)
	}
	all := snapshotinformers.NewSharedInformerFactory(s.snapshots, resync)
	v1 := all.Snapshot().V1()
	const (
		distributed           = true // each node's snapshotter takes the snapshots of its volumes
		preventModeConversion = true
		groupSnapshots        = false
	)
	c := common.NewCSISnapshotCommonController(s.snapshots, s.client, v1.VolumeSnapshots(), v1.VolumeSnapshotContents(),
		v1.VolumeSnapshotClasses(), nil, nil, nil, s.objects.Core().V1().PersistentVolumeClaims(),
		s.objects.Core().V1().PersistentVolumes(), s.objects.Core().V1().Nodes(),
		snapshotmetrics.NewMetricsManager(), resync, limiter(), limiter(), limiter(), limiter(), distributed,
		preventModeConversion, groupSnapshots)
	return func(ctx context.Context) {
		all.Start(ctx.Done())
		c.Run(workers, ctx.Done(), nil)
	}, nil
}
