package scheduler

import (
	"context"
	"reflect"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// answersTo reports whether this scheduler places pods with that schedulerName.
func (m *loop) answersTo(schedulerName string) bool {
	return slices.ContainsFunc(m.o.Profiles, func(p corescheduler.Profile) bool { return p.Name == schedulerName })
}

// submitEvent hands a fact to the scheduling loop, and measures how long the loop takes for it. event is upstream's
// name.
func (m *loop) submitEvent(event string, f fact) {
	m.submit(context.Background(), func(now unit.Instant) {
		began := time.Now()
		f(now)
		m.o.Metrics.eventTime.WithLabelValues(event).Observe(time.Since(began).Seconds())
	})
}

// podHandler translates changes of pods into facts. KeepPod translates, in the informer's goroutine.
func (m *loop) podHandler() cache.ResourceEventHandler {
	seen := func(obj any, change string) {
		k, ok := KeepPod(obj).(*KeptPod)
		if !ok || k.fact == nil {
			return
		}
		p := *k.fact
		k.Passed()
		if p.Node == "" && !m.answersTo(k.profile) {
			return // another scheduler's; it is passed on when it is bound
		}
		if p.Node == "" {
			p.AsksExtenders, p.AsksPreemption = m.extendersFor(p)
		}
		event := "UnscheduledPod" + change
		if p.Node != "" {
			event = "AssignedPod" + change
		}
		if p.Node != "" || p.Deleting { // also if another scheduler has bound it
			m.failures.withdraw(p.ID)
			m.evictions.withdraw(p.ID)
		}
		m.submitEvent(event, func(now unit.Instant) {
			if p.Node != "" {
				delete(m.rejected, p.ID)
				m.shownOn(now, p.ID, p.Node)
			}
			m.placer.PodSeen(now, p)
		})
	}
	gone := func(uid types.UID) {
		m.failures.withdraw(corescheduler.PodID(uid))
		m.evictions.withdraw(corescheduler.PodID(uid))
		m.submitEvent("PodDelete", func(now unit.Instant) {
			delete(m.rejected, corescheduler.PodID(uid))
			delete(m.unknownBinds, corescheduler.PodID(uid))
			m.placer.PodGone(now, corescheduler.PodID(uid))
		})
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { seen(obj, "Add") },
		UpdateFunc: func(before, after any) {
			if old := before.(metav1.Object); old.GetUID() != after.(metav1.Object).GetUID() {
				gone(old.GetUID()) // deleted and created again while the watch was broken
			}
			seen(after, "Update")
		},
		DeleteFunc: func(obj any) {
			if pod, ok := kube.Deleted[metav1.Object](obj); ok {
				gone(pod.GetUID())
			}
		},
	}
}

// nodeHandler translates changes of nodes into facts.
func (m *loop) nodeHandler() cache.ResourceEventHandler {
	seen := func(node *corev1.Node, event string) {
		n := translate.SchedulerNode(node)
		m.submitEvent(event, func(now unit.Instant) { m.placer.NodeSeen(now, n) })
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen(obj.(*corev1.Node), "NodeAdd") },
		UpdateFunc: func(_, after any) { seen(after.(*corev1.Node), "NodeUpdate") },
		DeleteFunc: func(obj any) {
			if node, ok := kube.Deleted[*corev1.Node](obj); ok {
				m.submitEvent("NodeDelete", func(now unit.Instant) { m.placer.NodeGone(now, node.Name) })
			}
		},
	}
}

// otherWatches returns the watches of other objects that affect pods: namespaces, the groups that select pods, and
// disruption budgets.
func (m *loop) otherWatches(client *kube.Client) []cache.Controller {
	p := m.placer
	return []cache.Controller{
		follow(m, client, kube.Namespaces, as[*corev1.Namespace], func(now unit.Instant, n *corev1.Namespace) {
			p.NamespaceSeen(now, n.Name, translate.SchedulerLabels(n.Labels))
		}, byName(p.NamespaceGone)),
		follow(m, client, kube.DisruptionBudgets, translate.SchedulerBudget, p.BudgetSeen, p.BudgetGone),
		followGroup[*corev1.Service](m, client, kube.Services, corescheduler.KindService),
		followGroup[*corev1.ReplicationController](m, client, kube.ReplicationControllers,
			corescheduler.KindReplicationController),
		followGroup[*appsv1.ReplicaSet](m, client, kube.ReplicaSets, corescheduler.KindReplicaSet),
		followGroup[*appsv1.StatefulSet](m, client, kube.StatefulSets, corescheduler.KindStatefulSet),
	}
}

// object is an API object.
type object interface {
	runtime.Object
	metav1.Object
}

// follow translates changes of objects of one kind into facts, in the informer's goroutine.
func follow[T object, F any](
	m *loop, client *kube.Client, k kube.Kind,
	factOf func(T) F, seen func(unit.Instant, F), gone func(now unit.Instant, namespace, name string),
) cache.Controller {
	_, controller := client.Informer(k, kube.Selection{Trim: trim}, followed(m, factOf, seen, gone))
	return controller
}

// followed is the handler of follow.
func followed[T object, F any](
	m *loop, factOf func(T) F, seen func(unit.Instant, F), gone func(now unit.Instant, namespace, name string),
) cache.ResourceEventHandler {
	name := reflect.TypeFor[T]().Elem().Name()
	changed := func(obj any, change string) {
		f := factOf(obj.(T))
		m.submitEvent(name+change, func(now unit.Instant) { seen(now, f) })
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { changed(obj, "Add") },
		UpdateFunc: func(_, after any) { changed(after, "Update") },
		DeleteFunc: func(obj any) {
			if o, ok := kube.Deleted[T](obj); ok {
				namespace, of := o.GetNamespace(), o.GetName()
				m.submitEvent(name+"Delete", func(now unit.Instant) { gone(now, namespace, of) })
			}
		},
	}
}

// as is the factOf of follow for kinds that need no translation.
func as[T any](obj T) T { return obj }

// byName adapts a function for kinds without namespaces.
func byName(gone func(unit.Instant, string)) func(unit.Instant, string, string) {
	return func(now unit.Instant, _, name string) { gone(now, name) }
}

// followGroup is follow for a kind that selects pods.
func followGroup[T object](m *loop, client *kube.Client, k kube.Kind, kind string) cache.Controller {
	groupOf := func(o T) corescheduler.Group {
		g, _ := translate.SchedulerGroup(o)
		return g
	}
	return follow(m, client, k, groupOf, m.placer.GroupSeen, func(now unit.Instant, namespace, name string) {
		m.placer.GroupGone(now, corescheduler.Group{Kind: kind, Namespace: namespace, Name: name})
	})
}

// trim drops the pod templates and the status of the objects that select pods: no rule reads them.
func trim(obj runtime.Object) {
	switch o := obj.(type) {
	case *corev1.ReplicationController:
		o.Spec.Template, o.Status = nil, corev1.ReplicationControllerStatus{}
	case *appsv1.ReplicaSet:
		o.Spec.Template, o.Status = corev1.PodTemplateSpec{}, appsv1.ReplicaSetStatus{}
	case *appsv1.StatefulSet:
		o.Spec.Template = corev1.PodTemplateSpec{}
		o.Spec.VolumeClaimTemplates = nil
		o.Status = appsv1.StatefulSetStatus{}
	}
}
