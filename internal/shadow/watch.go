package shadow

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	corelifecycle "github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Unseen is something that could not be read.
type Unseen struct {
	What   string `json:"what"`
	Error  string `json:"error"`
	Effect string `json:"effect"` // what that means for the comparison
}

// sizes is how many objects there are.
type sizes struct {
	nodes int
	all   map[string]bool // UIDs of pods
}

func (s *sizes) pods() int { return len(s.all) }

// teller translates objects of one kind into facts for the Placers.
type teller struct {
	seen func(obj any) func(unit.Instant, *corescheduler.Placer)
	gone func(namespace, name string) func(unit.Instant, *corescheduler.Placer)
}

// tells makes a teller from a translation and the Placer's methods.
func tells[T any, F any](
	factOf func(T) F, seen func(*corescheduler.Placer, unit.Instant, F),
	gone func(p *corescheduler.Placer, now unit.Instant, namespace, name string),
) teller {
	return teller{
		seen: func(obj any) func(unit.Instant, *corescheduler.Placer) {
			f := factOf(obj.(T))
			return func(now unit.Instant, p *corescheduler.Placer) { seen(p, now, f) }
		},
		gone: func(namespace, name string) func(unit.Instant, *corescheduler.Placer) {
			return func(now unit.Instant, p *corescheduler.Placer) { gone(p, now, namespace, name) }
		},
	}
}

func byName(gone func(*corescheduler.Placer, unit.Instant, string)) func(
	*corescheduler.Placer, unit.Instant, string, string) {
	return func(p *corescheduler.Placer, now unit.Instant, _, name string) { gone(p, now, name) }
}

// as is the translation of kinds that need none.
func as[T any](obj T) T { return obj }

// groups tells about objects of a kind that select pods.
func groups(kind string) teller {
	return tells(func(obj any) corescheduler.Group {
		g, _ := translate.SchedulerGroup(obj)
		return g
	}, (*corescheduler.Placer).GroupSeen, func(p *corescheduler.Placer, now unit.Instant, namespace, name string) {
		p.GroupGone(now, corescheduler.Group{Kind: kind, Namespace: namespace, Name: name})
	})
}

// others are the kinds besides pods, nodes and leases. Each is watched if it can be read.
var others = []struct {
	kind kube.Kind
	teller
	effect string
}{
	{kube.Namespaces, tells(as[*corev1.Namespace], func(p *corescheduler.Placer, now unit.Instant, n *corev1.Namespace) {
		p.NamespaceSeen(now, n.Name, translate.SchedulerLabels(n.Labels))
	}, byName((*corescheduler.Placer).NamespaceGone)), "a namespaceSelector in an affinity term selects no namespace"},
	{kube.DisruptionBudgets, tells(func(o *policyv1.PodDisruptionBudget) corescheduler.Budget {
		return translate.SchedulerBudget(o)
	}, (*corescheduler.Placer).BudgetSeen, (*corescheduler.Placer).BudgetGone),
		"preemptions are judged as if there were no disruption budgets"},
	{kube.Services, groups(corescheduler.KindService), noSpread},
	{kube.ReplicationControllers, groups(corescheduler.KindReplicationController), noSpread},
	{kube.ReplicaSets, groups(corescheduler.KindReplicaSet), noSpread},
	{kube.StatefulSets, groups(corescheduler.KindStatefulSet), noSpread},
	{kube.StorageClasses, tells(translate.SchedulerStorageClass, (*corescheduler.Placer).StorageClassSeen,
		byName((*corescheduler.Placer).StorageClassGone)), noClaims},
	{kube.Volumes, tells(translate.SchedulerVolume, (*corescheduler.Placer).VolumeSeen,
		byName((*corescheduler.Placer).VolumeGone)), noClaims},
	{kube.VolumeClaims, tells(translate.SchedulerClaim, (*corescheduler.Placer).ClaimSeen,
		(*corescheduler.Placer).ClaimGone), noClaims},
	{kube.CSINodes, tells(translate.SchedulerNodeStorage, (*corescheduler.Placer).NodeStorageSeen,
		byName((*corescheduler.Placer).NodeStorageGone)),
		"nodes are judged as if they could attach any number of volumes"},
	{kube.CSIDrivers, tells(as[*storagev1.CSIDriver], func(p *corescheduler.Placer, now unit.Instant,
		d *storagev1.CSIDriver,
	) {
		p.DriverSeen(now, d.Name, translate.PublishesCapacities(d))
	}, byName((*corescheduler.Placer).DriverGone)),
		"nodes are judged as if their storage could provision volumes of any size"},
	{kube.CSIStorageCapacities, tells(translate.SchedulerCapacity, (*corescheduler.Placer).CapacitySeen,
		(*corescheduler.Placer).CapacityGone), "nodes count as without storage capacity where their driver publishes it"},
	{kube.VolumeAttachments, tells(translate.SchedulerAttachment, (*corescheduler.Placer).AttachmentSeen,
		byName((*corescheduler.Placer).AttachmentGone)),
		"volumes that are still attached to a node count only if a pod there uses them"},
	{kube.Topologies, tells(report, func(p *corescheduler.Placer, now unit.Instant, r nodeReport) {
		if r.ok {
			p.ReportSeen(now, r.node, r.State)
		} else {
			p.ReportGone(now, r.node)
		}
	}, byName((*corescheduler.Placer).ReportGone)),
		"nodes are judged without regard to what is free on their NUMA nodes"},
}

const (
	noSpread = "the default spread constraints do not count the pods of these"
	noClaims = "pods with persistent volume claims are judged as if there were none of these"
)

// nodeReport is the report of our agent about the NUMA nodes of its node; ok: it could be decoded.
type nodeReport struct {
	node string
	topology.Node
	ok bool
}

func report(o *topology.Object) nodeReport {
	var decoder topology.Decoder
	n, err := decoder.Decode(o)
	if err != nil {
		return nodeReport{node: o.Name} // it is another agent's
	}
	return nodeReport{node: o.Name, Node: *n, ok: true}
}

// watch begins all watches. Nodes, pods and leases must be readable.
func (w *watcher) watch(ctx context.Context) (synced []cache.InformerSynced, err error) {
	for _, k := range []kube.Kind{kube.Nodes, kube.Pods} {
		if err := w.readable(ctx, k); err != nil {
			err = fmt.Errorf("list %s: %w", k.Resource, err)
			if apierrors.IsForbidden(err) {
				err = fmt.Errorf("%w (deploy/rbac-shadow.yaml has a cluster role with all that is read)", err)
			}
			return nil, err
		}
	}
	bursts, err := w.client.Gathering(kube.GatherBursts)
	if err != nil {
		return nil, err
	}
	start := func(watch cache.Controller) {
		synced = append(synced, watch.HasSynced)
		go watch.RunWithContext(ctx)
	}
	_, pods := bursts.Informer(kube.Pods, kube.Selection{Fields: kube.LivePods, Keep: keepPod}, w.podHandler(ctx))
	_, nodes := w.client.Informer(kube.Nodes, kube.Selection{}, w.nodeHandler(ctx))
	start(pods)
	start(nodes)
	for i := range others {
		from := &others[i]
		if err := w.readable(ctx, from.kind); err != nil {
			if !apierrors.IsNotFound(err) {
				w.unseen = append(w.unseen, Unseen{resourceText(from.kind), err.Error(), from.effect})
			}
			continue
		}
		_, watch := w.client.Informer(from.kind, kube.Selection{}, w.handler(ctx, from.teller))
		start(watch)
	}
	if err := w.readable(ctx, kube.Leases); err != nil {
		w.unseen = append(w.unseen, Unseen{resourceText(kube.Leases), err.Error(),
			"silent nodes are judged by the status that they report, which is only every five minutes"})
		return synced, nil
	}
	leases, err := w.client.Gathering(kube.GatherRenewals)
	if err != nil {
		return nil, err
	}
	listed := make(chan struct{})
	renewals := leases.NewRenewals(func(batch []kube.Renewal) { w.renewed(ctx, batch) })
	go renewals.Follow(ctx, func() { close(listed) })
	return append(synced, func() bool {
		select {
		case <-listed:
			return true
		default:
			return false
		}
	}), nil
}

// readable asks whether a kind can be listed.
func (w *watcher) readable(ctx context.Context, k kube.Kind) error {
	namespace := ""
	if k.Resource == kube.Leases.Resource {
		namespace = corev1.NamespaceNodeLease
	}
	return w.client.List(ctx, k, namespace, metav1.ListOptions{Limit: 1}, k.NewList())
}

// resourceText returns a kind as RBAC names it.
func resourceText(k kube.Kind) string {
	if k.Group == "" {
		return k.Resource
	}
	return k.Resource + "." + k.Group
}

// handler passes on the facts of a teller.
func (w *watcher) handler(ctx context.Context, t teller) cache.ResourceEventHandler {
	tell := func(f func(unit.Instant, *corescheduler.Placer)) {
		w.send(ctx, func(now unit.Instant) { w.placements.Tell(func(p *corescheduler.Placer) { f(now, p) }) })
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { tell(t.seen(obj)) },
		UpdateFunc: func(_, after any) { tell(t.seen(after)) },
		DeleteFunc: func(obj any) {
			if o, ok := kube.Deleted[metav1.Object](obj); ok {
				tell(t.gone(o.GetNamespace(), o.GetName()))
			}
		},
	}
}

func (w *watcher) nodeHandler(ctx context.Context) cache.ResourceEventHandler {
	seen := func(node *corev1.Node, isNew bool) {
		s, l := translate.SchedulerNode(node), translate.LifecycleNode(node)
		w.send(ctx, func(now unit.Instant) {
			if isNew {
				w.count.nodes++
			}
			w.placements.NodeSeen(now, s)
			w.happened(w.nodes.NodeSeen(now, unit.WallOf(time.Now()), l))
		})
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen(obj.(*corev1.Node), true) },
		UpdateFunc: func(_, after any) { seen(after.(*corev1.Node), false) },
		DeleteFunc: func(obj any) {
			if node, ok := kube.Deleted[*corev1.Node](obj); ok {
				w.send(ctx, func(now unit.Instant) {
					w.count.nodes--
					w.placements.NodeGone(now, node.Name)
					w.nodes.NodeGone(now, node.Name)
				})
			}
		},
	}
}

// renewed passes on renewals that arrived together.
func (w *watcher) renewed(ctx context.Context, batch []kube.Renewal) {
	w.send(ctx, func(now unit.Instant) {
		wall := unit.WallOf(time.Now())
		for _, r := range batch {
			switch {
			case r.Gone:
				w.nodes.LeaseGone(r.Name)
			case r.Renewed != 0:
				w.happened(w.nodes.LeaseSeen(now, wall, r.Name, r.Renewed))
			}
		}
	})
}

// keptPod is what the informer's cache keeps of a pod, and its facts until the handler has passed them on.
type keptPod struct {
	metav1.ObjectMeta // namespace, name, UID, version
	facts             *podFacts
}

// podFacts is what is passed on about a pod.
type podFacts struct {
	place   corescheduler.Pod
	live    corelifecycle.Pod
	profile string
	refused bool // the other scheduler says that it fits nowhere
	said    string
	byTaint bool // the other controller evicts it because of a taint
}

// keepPod converts a pod before the informer stores it.
func keepPod(obj any) any {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj // it is a keptPod already, or a tombstone
	}
	f := &podFacts{
		place:   translate.SchedulerPod(pod),
		live:    translate.LifecyclePod(pod),
		profile: pod.Spec.SchedulerName,
	}
	for i := range pod.Status.Conditions {
		switch c := &pod.Status.Conditions[i]; {
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable:
			f.refused, f.said = true, c.Message
		case c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == "DeletionByTaintManager":
			f.byTaint = true
		}
	}
	return &keptPod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       pod.Namespace,
			Name:            pod.Name,
			UID:             pod.UID,
			ResourceVersion: pod.ResourceVersion,
		},
		facts: f,
	}
}

func (w *watcher) podHandler(ctx context.Context) cache.ResourceEventHandler {
	gone := func(uid string) {
		w.send(ctx, func(now unit.Instant) {
			delete(w.count.all, uid)
			w.placements.PodGone(now, corescheduler.PodID(uid))
			w.happened(w.nodes.PodGone(now, corelifecycle.PodID(uid)))
		})
	}
	seen := func(obj any) {
		kept, ok := keepPod(obj).(*keptPod)
		if !ok || kept.facts == nil {
			return
		}
		f, uid := kept.facts, string(kept.UID)
		kept.facts = nil
		w.send(ctx, func(now unit.Instant) {
			if w.count.all == nil {
				w.count.all = map[string]bool{}
			}
			w.count.all[uid] = true
			w.happened(w.nodes.PodSeen(now, f.live, f.byTaint))
			if f.place.Node == "" && !w.answersTo(f.profile) {
				w.others[f.profile]++
				return // it is passed on when it is bound
			}
			w.happened(w.placements.PodSeen(now, f.place, f.refused, f.said))
		})
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: seen,
		UpdateFunc: func(before, after any) {
			if old := before.(metav1.Object); old.GetUID() != after.(metav1.Object).GetUID() {
				gone(string(old.GetUID())) // deleted and created again while the watch was broken
			}
			seen(after)
		},
		DeleteFunc: func(obj any) {
			if pod, ok := kube.Deleted[metav1.Object](obj); ok {
				gone(string(pod.GetUID()))
			}
		},
	}
}

// answersTo reports whether the configuration has a profile for pods with that schedulerName.
func (w *watcher) answersTo(name string) bool {
	return slices.ContainsFunc(w.o.Config.Profiles, func(p corescheduler.Profile) bool { return p.Name == name })
}
