package explain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/remedy"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// pageSize is how many objects one answer of the API server has at most. Chosen: kubectl's and client-go's default.
const pageSize = 500

// atRead is the instant of all facts: nothing in the world depends on time.
const atRead = unit.Instant(1)

// snapshot is a cluster as it was read.
type snapshot struct {
	a        *Asker
	world    *remedy.World
	waiting  map[scheduler.PodID]*waitingPod
	placedOn map[string][]scheduler.Pod // the pods on the node keep
	keep     string                     // the node whose pods are wanted; empty: no node's
	nodes    int                        // how many there are, if nothing waits and they were not read; else zero
	unseen   []Unseen
	noClaims string // which objects, without which claims cannot be judged, could not be read; empty: none
}

// waitingPod is a pod without a node.
type waitingPod struct {
	pod  *corev1.Pod
	fact scheduler.Pod
}

func (p *waitingPod) name() string { return p.pod.Namespace + "/" + p.pod.Name }

func (a *Asker) newSnapshot() *snapshot {
	return &snapshot{
		a:        a,
		world:    remedy.NewWorld(scheduler.Options{Profiles: a.Config.Profiles}),
		waiting:  map[scheduler.PodID]*waitingPod{},
		placedOn: map[string][]scheduler.Pod{},
	}
}

// look returns the cluster as it is: that of the Live, if there is one, or else what a question needs of it is read. It
// must be released.
func (a *Asker) look(ctx context.Context, q askedQuestion) (s *snapshot, release func(), err error) {
	switch {
	case a.live != nil && q.node != nil:
		s, release = a.live.look(q.node.Name)
	case a.live != nil:
		s, release = a.live.look("")
	case q.pod != "":
		s, err = a.readAll(ctx, nil)
		return s, func() {}, err
	default:
		s, err = a.read(ctx, q.node)
		return s, func() {}, err
	}
	return s, release, nil
}

// waits selects the pods that wait for a node.
var waits = fields.AndSelectors(kube.LivePods, fields.OneTermEqualSelector("spec.nodeName", "")).String()

// read reads the cluster. If no pod waits, nothing is judged: then it reads the pods of node only. Of 150,000 pods
// that takes the API server a scan of its cache, and not an answer of some hundred MB. The cache is asked for a state
// that is no older than this call. An API server that cannot say so is asked for everything.
func (a *Asker) read(ctx context.Context, node *corev1.Node) (*snapshot, error) {
	s := a.newSnapshot()
	first := &corev1.NodeList{}
	if err := a.Client.List(ctx, kube.Nodes, "", metav1.ListOptions{Limit: 1}, first); err != nil {
		return nil, withRole(fmt.Errorf("list nodes: %w", err))
	}
	fresh := metav1.ListOptions{
		FieldSelector:        waits,
		ResourceVersion:      first.ResourceVersion,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	}
	err := s.pages(ctx, kube.Pods, fresh, s.podSeen)
	if err != nil || len(s.waiting) > 0 || first.ResourceVersion == "" {
		return a.readAll(ctx, node)
	}
	if node == nil {
		s.nodes, err = s.countNodes(ctx, first)
		return s, withRole(err)
	}
	s.keep = node.Name
	s.world.NodeSeen(atRead, translate.SchedulerNode(node))
	fresh.FieldSelector = fields.AndSelectors(kube.LivePods,
		fields.OneTermEqualSelector("spec.nodeName", node.Name)).String()
	return s, withRole(s.pages(ctx, kube.Pods, fresh, s.podSeen))
}

// readAll reads all that decides about pods that wait.
func (a *Asker) readAll(ctx context.Context, node *corev1.Node) (*snapshot, error) {
	s := a.newSnapshot()
	if node != nil {
		s.keep = node.Name
	}
	nodes := s.each(ctx, kube.Nodes, "", func(o runtime.Object) {
		s.world.NodeSeen(atRead, translate.SchedulerNode(o.(*corev1.Node)))
	})
	pods := s.each(ctx, kube.Pods, kube.LivePods.String(), s.podSeen)
	if err := errors.Join(nodes, pods); err != nil {
		return nil, withRole(err)
	}
	if len(s.waiting) > 0 {
		s.readOthers(ctx)
	}
	return s, nil
}

// countNodes returns how many nodes there are by their first page.
func (s *snapshot) countNodes(ctx context.Context, first *corev1.NodeList) (int, error) {
	if first.Continue == "" {
		return len(first.Items), nil
	}
	if first.RemainingItemCount != nil {
		return len(first.Items) + int(*first.RemainingItemCount), nil
	}
	names := map[string]bool{} // an API server need not say how many remain
	err := s.each(ctx, kube.Nodes, "", func(o runtime.Object) { names[o.(*corev1.Node).Name] = true })
	return len(names), err
}

// withRole says where a role is that allows what was asked, if err is that it is not allowed.
func withRole(err error) error {
	if !apierrors.IsForbidden(err) {
		return err
	}
	return fmt.Errorf("%w (a cluster role with all that is read is in deploy/rbac-explain.yaml)", err)
}

// podSeen records one pod.
func (s *snapshot) podSeen(o runtime.Object) {
	pod := o.(*corev1.Pod)
	fact := translate.SchedulerPod(pod)
	switch {
	case fact.Node != "":
		s.world.PodSeen(atRead, fact)
		if s.keep == fact.Node {
			s.placedOn[fact.Node] = append(s.placedOn[fact.Node], fact)
		}
	case !fact.Deleting:
		// a copy, because a pointer into the list would keep all of it
		s.waiting[fact.ID] = &waitingPod{pod: pod.DeepCopy(), fact: fact}
		if fact.Nominated != "" {
			s.world.PodSeen(atRead, fact)
		}
	}
}

// each calls see for every object of a kind. An object may be seen twice.
func (s *snapshot) each(ctx context.Context, k kube.Kind, selector string, see func(runtime.Object)) error {
	return s.pages(ctx, k, metav1.ListOptions{Limit: pageSize, FieldSelector: selector}, see)
}

// pages is each with options for the first page.
func (s *snapshot) pages(ctx context.Context, k kube.Kind, o metav1.ListOptions, see func(runtime.Object)) error {
	for {
		list := k.NewList()
		err := s.a.Client.List(ctx, k, "", o, list)
		if apierrors.IsResourceExpired(err) && o.Continue != "" {
			o = metav1.ListOptions{FieldSelector: o.FieldSelector} // the pages are too old: all at once
			continue
		}
		if err != nil {
			return fmt.Errorf("list %s: %w", resourceText(k), err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error { see(o); return nil }); err != nil {
			return fmt.Errorf("list %s: %w", resourceText(k), err)
		}
		if o.Continue = list.(metav1.ListInterface).GetContinue(); o.Continue == "" {
			return nil
		}
	}
}

// resourceText returns a kind as RBAC names it.
func resourceText(k kube.Kind) string {
	if k.Group == "" {
		return k.Resource
	}
	return k.Resource + "." + k.Group
}

// source is objects that are read if they can be.
type source struct {
	kind   kube.Kind
	see    func(runtime.Object)
	gone   func(namespace, name string) // an object was deleted; only a Live calls it
	effect string                       // what it means that they are not seen
	// claims says that without them no pod with claims can be judged.
	claims bool
	// may says that an API server need not serve them.
	may bool
}

// others is the objects that may decide about any waiting pod besides nodes and pods. reported is called for each
// node whose agent's report was read, or is gone (nil).
func (s *snapshot) others(reported func(node string, report *topology.Node)) []source {
	p := s.world.Placer()
	var decoder topology.Decoder
	return []source{
		{
			kind: kube.DisruptionBudgets,
			see: func(o runtime.Object) {
				s.world.BudgetSeen(atRead, translate.SchedulerBudget(o.(*policyv1.PodDisruptionBudget)))
			},
			gone:   func(namespace, name string) { s.world.BudgetGone(atRead, namespace, name) },
			effect: "preemptions are judged as if there were no disruption budgets",
		},
		{
			kind: kube.Namespaces,
			see: func(o runtime.Object) {
				n := o.(*corev1.Namespace)
				p.NamespaceSeen(atRead, n.Name, translate.SchedulerLabels(n.Labels))
			},
			gone:   func(_, name string) { p.NamespaceGone(atRead, name) },
			effect: "a namespaceSelector in an affinity term selects no namespace",
		},
		{
			kind: kube.Topologies,
			see: func(o runtime.Object) {
				if n, err := decoder.Decode(o.(*topology.Object)); err == nil { // else it is another agent's
					s.world.ReportSeen(atRead, o.(*topology.Object).Name, n.State)
					reported(o.(*topology.Object).Name, n)
				}
			},
			gone: func(_, name string) {
				s.world.ReportGone(atRead, name)
				reported(name, nil)
			},
			effect: "nodes are judged without regard to what is free on their NUMA nodes",
			may:    true,
		},
	}
}

// readOthers reads what may decide about the waiting pods besides nodes and pods.
func (s *snapshot) readOthers(ctx context.Context) {
	sources := s.others(func(string, *topology.Node) {})
	if s.anyWaits(func(p *scheduler.Pod) bool { return len(p.Mounts) > 0 }) {
		sources = append(sources, s.storage()...)
	}
	if slices.ContainsFunc(s.a.Config.Profiles, hasHardDefaults) {
		sources = append(sources, s.groupsOfPods()...)
	}
	for _, from := range sources {
		err := s.each(ctx, from.kind, "", from.see)
		if err == nil || from.may && apierrors.IsNotFound(err) {
			continue
		}
		s.unseen = append(s.unseen, Unseen{What: resourceText(from.kind), Error: err.Error(), Effect: from.effect})
		if from.claims {
			s.noClaims = strings.TrimPrefix(s.noClaims+", "+resourceText(from.kind), ", ")
		}
	}
}

func (s *snapshot) anyWaits(which func(*scheduler.Pod) bool) bool {
	for _, p := range s.waiting {
		if which(&p.fact) {
			return true
		}
	}
	return false
}

// storage is the objects that decide about volumes.
func (s *snapshot) storage() []source {
	const unjudged = "pods with persistent volume claims are not judged"
	p := s.world.Placer()
	return []source{
		{
			kind: kube.StorageClasses,
			see: func(o runtime.Object) {
				p.StorageClassSeen(atRead, translate.SchedulerStorageClass(o.(*storagev1.StorageClass)))
			},
			gone:   func(_, name string) { p.StorageClassGone(atRead, name) },
			effect: unjudged,
			claims: true,
		},
		{
			kind: kube.Volumes,
			see: func(o runtime.Object) {
				p.VolumeSeen(atRead, translate.SchedulerVolume(o.(*corev1.PersistentVolume)))
			},
			gone:   func(_, name string) { p.VolumeGone(atRead, name) },
			effect: unjudged,
			claims: true,
		},
		{
			kind: kube.VolumeClaims,
			see: func(o runtime.Object) {
				p.ClaimSeen(atRead, translate.SchedulerClaim(o.(*corev1.PersistentVolumeClaim)))
			},
			gone:   func(namespace, name string) { p.ClaimGone(atRead, namespace, name) },
			effect: unjudged,
			claims: true,
		},
		{
			kind: kube.CSINodes,
			see: func(o runtime.Object) {
				p.NodeStorageSeen(atRead, translate.SchedulerNodeStorage(o.(*storagev1.CSINode)))
			},
			gone:   func(_, name string) { p.NodeStorageGone(atRead, name) },
			effect: "nodes are judged as if they could attach any number of volumes",
		},
		{
			kind: kube.CSIDrivers,
			see: func(o runtime.Object) {
				d := o.(*storagev1.CSIDriver)
				p.DriverSeen(atRead, d.Name, translate.PublishesCapacities(d))
			},
			gone:   func(_, name string) { p.DriverGone(atRead, name) },
			effect: "nodes are judged as if their storage could provision volumes of any size",
		},
		{
			kind: kube.CSIStorageCapacities,
			see: func(o runtime.Object) {
				p.CapacitySeen(atRead, translate.SchedulerCapacity(o.(*storagev1.CSIStorageCapacity)))
			},
			gone:   func(namespace, name string) { p.CapacityGone(atRead, namespace, name) },
			effect: "nodes count as without storage capacity where their driver publishes it",
		},
		{
			kind: kube.VolumeAttachments,
			see: func(o runtime.Object) {
				p.AttachmentSeen(atRead, translate.SchedulerAttachment(o.(*storagev1.VolumeAttachment)))
			},
			gone:   func(_, name string) { p.AttachmentGone(atRead, name) },
			effect: "volumes that are still attached to a node count only if a pod there uses them",
		},
	}
}

func hasHardDefaults(p scheduler.Profile) bool {
	return slices.ContainsFunc(p.DefaultSpread, func(c scheduler.SpreadConstraint) bool { return c.Hard })
}

// groupsOfPods is the objects that select pods. They decide about pods only if a profile has hard default spread
// constraints.
func (s *snapshot) groupsOfPods() (out []source) {
	for _, k := range []struct {
		kind kube.Kind
		name string
	}{
		{kube.Services, scheduler.KindService},
		{kube.ReplicationControllers, scheduler.KindReplicationController},
		{kube.ReplicaSets, scheduler.KindReplicaSet},
		{kube.StatefulSets, scheduler.KindStatefulSet},
	} {
		out = append(out, source{
			kind: k.kind,
			see: func(o runtime.Object) {
				if g, ok := translate.SchedulerGroup(o); ok {
					s.world.Placer().GroupSeen(atRead, g)
				}
			},
			gone: func(namespace, name string) {
				s.world.Placer().GroupGone(atRead, scheduler.Group{Kind: k.name, Namespace: namespace, Name: name})
			},
			effect: "the default spread constraints of the profile do not reject pods of these",
		})
	}
	return out
}

// notJudged returns why the core cannot judge a pod; empty: it can.
func (s *snapshot) notJudged(pod *scheduler.Pod) string {
	if len(pod.Unsupported) > 0 {
		return "it needs " + strings.Join(pod.Unsupported, ", ") + ", which plimsoll's core does not know"
	}
	claims := slices.ContainsFunc(pod.Mounts, func(m scheduler.Mount) bool { return m.Claim != "" })
	if claims && s.noClaims != "" {
		return "it has persistent volume claims, and these could not be read: " + s.noClaims
	}
	return ""
}

// notes returns what a reader must know about the verdicts of some waiting pods.
func (s *snapshot) notes(pods map[scheduler.PodID]*waitingPod) (out []string) {
	for _, p := range pods {
		known := slices.ContainsFunc(s.a.Config.Profiles, func(q scheduler.Profile) bool { return q.Name == p.fact.Profile })
		note := fmt.Sprintf("pods of scheduler %s are judged by the profile of %s: the configuration has none of that name",
			p.fact.Profile, s.a.Config.Profiles[0].Name)
		if !known && !slices.Contains(out, note) {
			out = append(out, note)
		}
	}
	if len(s.a.Config.Extenders) > 0 {
		out = append(out, "the extenders of the configuration are not asked")
	}
	slices.Sort(out)
	return out
}
