package scheduler

import (
	"context"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// answersTo reports whether pods of that schedulerName are ours to place.
func (m *mind) answersTo(schedulerName string) bool {
	return slices.ContainsFunc(m.o.Profiles, func(p placement.Profile) bool { return p.Name == schedulerName })
}

// podHandler turns changes of pods into facts. Translation is done by KeepPod, beside the mind.
func (m *mind) podHandler() cache.ResourceEventHandler {
	seen := func(obj any) {
		k, ok := KeepPod(obj).(*KeptPod)
		if !ok || k.fact == nil {
			return
		}
		p := *k.fact
		k.Passed()
		if p.Node == "" && !m.answersTo(k.profile) {
			return // another scheduler's; it counts once it is bound
		}
		m.tell(context.Background(), func(now unit.Instant) { m.placer.PodSeen(now, p) })
	}
	gone := func(uid types.UID) {
		m.tell(context.Background(), func(now unit.Instant) { m.placer.PodGone(now, placement.PodID(uid)) })
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: seen,
		UpdateFunc: func(before, after any) {
			if old := before.(metav1.Object); old.GetUID() != after.(metav1.Object).GetUID() {
				gone(old.GetUID()) // deleted and made anew while the watch was down
			}
			seen(after)
		},
		DeleteFunc: func(obj any) {
			if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = missed.Obj
			}
			if pod, ok := obj.(metav1.Object); ok {
				gone(pod.GetUID())
			}
		},
	}
}

// nodeHandler turns changes of nodes into facts.
func (m *mind) nodeHandler() cache.ResourceEventHandler {
	seen := func(node *corev1.Node) {
		n := kube.PlacementNode(node)
		m.tell(context.Background(), func(now unit.Instant) { m.placer.NodeSeen(now, n) })
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen(obj.(*corev1.Node)) },
		UpdateFunc: func(_, after any) { seen(after.(*corev1.Node)) },
		DeleteFunc: func(obj any) {
			if node, ok := kube.Deleted[*corev1.Node](obj); ok {
				m.tell(context.Background(), func(now unit.Instant) { m.placer.NodeGone(now, node.Name) })
			}
		},
	}
}

// lesserWatches are those of objects that say something about pods: namespaces, the groups that select them, and
// disruption budgets.
func (m *mind) lesserWatches(client *kube.Client) []cache.Controller {
	group := func(obj any, now unit.Instant, fold func(unit.Instant, placement.Group)) {
		if g, ok := kube.PlacementGroup(obj); ok {
			fold(now, g)
		}
	}
	groupSeen := func(obj any, now unit.Instant) { group(obj, now, m.placer.GroupSeen) }
	groupGone := func(obj any, now unit.Instant) { group(obj, now, m.placer.GroupGone) }
	return []cache.Controller{
		m.watch(client, kube.Namespaces, nil,
			func(obj any, now unit.Instant) {
				n := obj.(*corev1.Namespace)
				m.placer.NamespaceSeen(now, n.Name, kube.PlacementLabels(n.Labels))
			},
			func(obj any, now unit.Instant) { m.placer.NamespaceGone(now, obj.(*corev1.Namespace).Name) }),
		m.watch(client, kube.DisruptionBudgets, nil,
			func(obj any, now unit.Instant) {
				m.placer.BudgetSeen(now, kube.PlacementBudget(obj.(*policyv1.PodDisruptionBudget)))
			},
			func(obj any, now unit.Instant) {
				b := obj.(*policyv1.PodDisruptionBudget)
				m.placer.BudgetGone(now, b.Namespace, b.Name)
			}),
		m.watch(client, kube.Services, nil, groupSeen, groupGone),
		m.watch(client, kube.ReplicationControllers, trimGroup, groupSeen, groupGone),
		m.watch(client, kube.ReplicaSets, trimGroup, groupSeen, groupGone),
		m.watch(client, kube.StatefulSets, trimGroup, groupSeen, groupGone),
	}
}

// watch makes facts of what happens to objects of one kind.
func (m *mind) watch(client *kube.Client, k kube.Kind, trim func(runtime.Object), seen, gone func(obj any, now unit.Instant)) cache.Controller {
	tell := func(fold func(any, unit.Instant), obj any) {
		m.tell(context.Background(), func(now unit.Instant) { fold(obj, now) })
	}
	_, controller := client.Informer(k, kube.Selection{Trim: trim}, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { tell(seen, obj) },
		UpdateFunc: func(_, after any) { tell(seen, after) },
		DeleteFunc: func(obj any) {
			if o, ok := kube.Deleted[runtime.Object](obj); ok {
				tell(gone, o)
			}
		},
	})
	return controller
}

// trimGroup drops pod templates and status, which no rule reads.
func trimGroup(obj runtime.Object) {
	switch o := obj.(type) {
	case *corev1.ReplicationController:
		o.Spec.Template, o.Status = nil, corev1.ReplicationControllerStatus{}
	case *appsv1.ReplicaSet:
		o.Spec.Template, o.Status = corev1.PodTemplateSpec{}, appsv1.ReplicaSetStatus{}
	case *appsv1.StatefulSet:
		o.Spec.Template, o.Spec.VolumeClaimTemplates, o.Status = corev1.PodTemplateSpec{}, nil, appsv1.StatefulSetStatus{}
	}
}
