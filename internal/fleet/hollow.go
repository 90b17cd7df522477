package fleet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"runtime"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/plimsoll-dev/plimsoll/internal/core/fault"
	"github.com/plimsoll-dev/plimsoll/internal/core/heartbeat"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
	"github.com/plimsoll-dev/plimsoll/internal/version"
)

// hollow is one node. Only the conductor's goroutine writes it. Requests read only the fields that newHollow sets, and
// effect.
type hollow struct {
	o          *Options
	name, ip   string
	zone       string
	beat       *heartbeat.Beat // decides when to register, renew and report
	attemptMax time.Duration   // bounds one request

	uid          types.UID              // of the Node; it owns the Lease
	leaseVersion string                 // resourceVersion of our last write; empty: not known
	observed     corev1.ConditionStatus // status of Ready in the newest version from the watch; empty: none yet
	spoken       corev1.ConditionStatus // status of Ready in our last report; empty: none yet
	since        metav1.Time            // when the pressure conditions last changed
	readyAt      metav1.Time            // when Ready last changed
	counted      bool                   // in fleet.ready

	fault fault.Fault // the newest order for the node
	// the fault's current effect; the conductor writes it, requests and actors read it
	effect  atomic.Pointer[fault.Effect]
	changes unit.Instant     // when the effect changes by itself; zero: never
	missed  []heartbeat.Fact // facts that were kept while the node was silent

	wake  unit.Instant // when the Beat is due; zero: not before the next fact
	place int          // in wakes
}

func newHollow(o *Options, i int, now unit.Instant) *hollow {
	name := fmt.Sprintf("%s%d", o.Prefix, i)
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(name)) // a hash never returns an error
	beat := heartbeat.New(heartbeat.Config{
		LeaseDuration: o.LeaseDuration, ReportEvery: o.ReportEvery, RuntimeEvery: -1, RuntimeMax: -1, MainLoopMax: -1,
		Seed: hash.Sum64() ^ o.Seed,
	}, now)
	h := &hollow{o: o, name: name, ip: nodeIP(i), beat: beat, attemptMax: beat.AttemptMax()}
	h.effect.Store(&fault.Effect{})
	if o.Zones > 0 {
		h.zone = fmt.Sprintf("zone-%d", i%o.Zones)
	}
	return h
}

// nodeAPI is the part of the API server's interface that a hollow node uses.
type nodeAPI interface {
	createNode(ctx context.Context, n *corev1.Node) (*corev1.Node, error)
	getNode(ctx context.Context, name string) (*corev1.Node, error)
	patchNode(ctx context.Context, name string, t types.PatchType, body []byte, subresources ...string) error
	createLease(ctx context.Context, l *coordinationv1.Lease) (version string, err error)
	updateLease(ctx context.Context, l *coordinationv1.Lease) (version string, err error)
	leaseVersion(ctx context.Context, name string) (string, error)
}

// remote is the real API server.
type remote struct{ client *kube.Client }

func (r remote) createNode(ctx context.Context, n *corev1.Node) (*corev1.Node, error) {
	out := &corev1.Node{}
	return out, r.client.Create(ctx, kube.Nodes, "", "", n, out)
}

func (r remote) getNode(ctx context.Context, name string) (*corev1.Node, error) {
	out := &corev1.Node{}
	return out, r.client.Get(ctx, kube.Nodes, "", name, out)
}

func (r remote) patchNode(ctx context.Context, name string, t types.PatchType, body []byte,
	subresources ...string) error {
	return r.client.Patch(ctx, kube.Nodes, "", name, t, body, nil, subresources...)
}

func (r remote) createLease(ctx context.Context, l *coordinationv1.Lease) (string, error) {
	err := r.client.Create(ctx, kube.Leases, l.Namespace, "", l, l)
	return l.ResourceVersion, err
}

func (r remote) updateLease(ctx context.Context, l *coordinationv1.Lease) (string, error) {
	err := r.client.Update(ctx, kube.Leases, l.Namespace, l.Name, l, l)
	return l.ResourceVersion, err
}

func (r remote) leaseVersion(ctx context.Context, name string) (string, error) {
	l := &coordinationv1.Lease{}
	err := r.client.Get(ctx, kube.Leases, corev1.NamespaceNodeLease, name, l)
	return l.ResourceVersion, err
}

// register creates the Node, or continues with the one that an earlier process left.
func (h *hollow) register(ctx context.Context, api nodeAPI) (func(*hollow), error) {
	now := metav1.Now()
	node := h.node(now)
	made, err := api.createNode(ctx, node)
	if apierrors.IsAlreadyExists(err) {
		made, err = h.adopt(ctx, api, node)
	}
	if err != nil {
		return nil, fmt.Errorf("register node %s: %w", h.name, err)
	}
	uid := made.UID
	return func(h *hollow) {
		h.uid, h.leaseVersion = uid, ""
		h.since = now
		h.readyAt = now
		h.observed = corev1.ConditionTrue
		h.spoken = corev1.ConditionTrue
	}, nil
}

func (h *hollow) adopt(ctx context.Context, api nodeAPI, want *corev1.Node) (*corev1.Node, error) {
	have, err := api.getNode(ctx, h.name)
	if err != nil {
		return nil, err
	}
	if have.Labels[LabelHollow] != "true" {
		return nil, fmt.Errorf("a node of this name exists and has no label %s=true: choose another --node-prefix",
			LabelHollow)
	}
	labels, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": want.Labels}})
	if err != nil {
		return nil, err
	}
	if err := api.patchNode(ctx, h.name, types.MergePatchType, labels); err != nil {
		return nil, err
	}
	status, err := json.Marshal(map[string]any{"status": want.Status})
	if err != nil {
		return nil, err
	}
	return have, api.patchNode(ctx, h.name, types.StrategicMergePatchType, status, "status")
}

// renewal returns the request that renews the Lease. As an agent does, it updates the version that we wrote last. If
// another client has written or deleted the Lease, it updates the current version or creates a new Lease.
func (h *hollow) renewal() work {
	version, uid := h.leaseVersion, h.uid
	return func(ctx context.Context, api nodeAPI) (func(*hollow), error) {
		version, err := h.renew(ctx, api, uid, version)
		if err != nil {
			return func(h *hollow) { h.leaseVersion = "" }, fmt.Errorf("renew lease of node %s: %w", h.name, err)
		}
		return func(h *hollow) { h.leaseVersion = version }, nil
	}
}

// renew returns the resulting version of the Lease. An empty version means that it is not known.
func (h *hollow) renew(ctx context.Context, api nodeAPI, owner types.UID, version string) (string, error) {
	if version != "" {
		next, err := api.updateLease(ctx, h.lease(owner, version))
		if err == nil || !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return next, err
		}
	}
	next, err := api.createLease(ctx, h.lease(owner, ""))
	if !apierrors.IsAlreadyExists(err) {
		return next, err
	}
	if version, err = api.leaseVersion(ctx, h.name); err != nil {
		return "", err
	}
	return api.updateLease(ctx, h.lease(owner, version))
}

// lease returns the Lease in the kubelet's form: the Node owns it, so that it is deleted with the Node.
func (h *hollow) lease(owner types.UID, version string) *coordinationv1.Lease {
	now := metav1.NowMicro()
	seconds := int32(cmp.Or(h.o.LeaseDuration, heartbeat.Default().LeaseDuration) / time.Second)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: corev1.NamespaceNodeLease, Name: h.name, ResourceVersion: version,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: h.name, UID: owner}},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &h.name, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
}

// ready returns the Ready status that the node reports.
func (h *hollow) ready() corev1.ConditionStatus {
	if h.effect.Load().NotReady {
		return corev1.ConditionFalse
	}
	return corev1.ConditionTrue
}

// differs reports whether the API shows another Ready status than the node's: a fault changed it, or a controller
// marked the node as silent.
func (h *hollow) differs() bool { return h.observed != "" && h.observed != h.ready() }

// reporting returns the request that reports the conditions; it is a heartbeat if nothing changed.
func (h *hollow) reporting() work {
	now, ready := metav1.Now(), h.ready()
	if h.observed == corev1.ConditionUnknown {
		h.since = now // a controller had set all of them to Unknown
	}
	if h.observed != ready || h.spoken != ready {
		h.readyAt = now
	}
	said := conditions(now, h.since, h.readyAt, ready)
	return func(ctx context.Context, api nodeAPI) (func(*hollow), error) {
		body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": said}})
		if err == nil {
			err = api.patchNode(ctx, h.name, types.StrategicMergePatchType, body, "status")
		}
		if err != nil {
			return nil, fmt.Errorf("report status of node %s: %w", h.name, err)
		}
		return func(h *hollow) { h.observed, h.spoken = ready, ready }, nil
	}
}

// conditions returns a kubelet's conditions.
func conditions(now, since, readyAt metav1.Time, ready corev1.ConditionStatus) []corev1.NodeCondition {
	readiness := translate.NodeReady(translate.RuntimeDown)
	if ready == corev1.ConditionTrue {
		readiness = translate.NodeReady()
		readiness.Message = "hollow node: it runs no containers"
	}
	out := []corev1.NodeCondition{
		translate.NodePressure(corev1.NodeMemoryPressure, false),
		translate.NodePressure(corev1.NodeDiskPressure, false),
		translate.NodePressure(corev1.NodePIDPressure, false),
		readiness,
	}
	for i := range out {
		out[i].LastHeartbeatTime = now
		out[i].LastTransitionTime = since
	}
	out[len(out)-1].LastTransitionTime = readyAt
	return out
}

// node returns the complete object, status included.
func (h *hollow) node(now metav1.Time) *corev1.Node {
	c := h.o.Capacity
	resources := corev1.ResourceList{
		corev1.ResourceCPU: c.CPU, corev1.ResourceMemory: c.Memory, corev1.ResourceEphemeralStorage: c.EphemeralStorage,
		corev1.ResourcePods: *resource.NewQuantity(c.Pods, resource.DecimalSI),
	}
	labels := map[string]string{
		LabelHollow: "true", corev1.LabelHostname: h.name,
		corev1.LabelOSStable: "linux", corev1.LabelArchStable: runtime.GOARCH,
		kubeletapis.LabelOS: "linux", kubeletapis.LabelArch: runtime.GOARCH,
	}
	if h.zone != "" {
		labels[corev1.LabelTopologyZone] = h.zone
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: h.name, Labels: labels},
		Status: corev1.NodeStatus{
			Capacity:    resources,
			Allocatable: resources,
			Conditions:  conditions(now, now, now, corev1.ConditionTrue),
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: h.ip},
				{Type: corev1.NodeHostName, Address: h.name},
			},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion:          version.Kubernetes + "+hollow",
				OSImage:                 "hollow",
				ContainerRuntimeVersion: "hollow://" + version.Plimsoll(),
				OperatingSystem:         "linux",
				Architecture:            runtime.GOARCH,
			},
		},
	}
}

// trimNode removes from a Node what nodeHandler does not read.
func trimNode(obj apiruntime.Object) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			n.Status = corev1.NodeStatus{Conditions: []corev1.NodeCondition{c}}
			break
		}
	}
	n.Labels = nil
	n.Annotations = nil
	n.Spec = corev1.NodeSpec{}
}

// nodeHandler passes on changes of the Nodes: deletions, and conditions that a controller set to Unknown.
func (f *fleet) nodeHandler() cache.ResourceEventHandler {
	seen := func(obj any) {
		n := obj.(*corev1.Node)
		h := f.byName[n.Name]
		if h == nil {
			return
		}
		ready := corev1.ConditionUnknown
		for _, c := range n.Status.Conditions {
			ready = c.Status
		}
		var facts []heartbeat.Fact
		if ready == corev1.ConditionUnknown {
			facts = []heartbeat.Fact{{Kind: heartbeat.Stale}}
		}
		f.send(context.Background(), fact{node: h, seen: facts, update: func(h *hollow) { h.observed = ready }})
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, after any) { seen(after) },
		DeleteFunc: func(obj any) {
			n, ok := kube.Deleted[*corev1.Node](obj)
			if !ok || f.byName[n.Name] == nil {
				return
			}
			f.send(context.Background(), fact{
				node: f.byName[n.Name], seen: []heartbeat.Fact{{Kind: heartbeat.NodeGone}},
				onlyIf: func(h *hollow) bool { return h.uid == n.UID }, // another UID: the node is registered again already
			})
		},
	}
}
