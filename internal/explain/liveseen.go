package explain

import (
	"context"
	"maps"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

func (l *Live) watchNodes(ctx context.Context) {
	see := func(obj any) {
		n := keepNode(obj).(*LiveNode)
		l.update(func() { l.nodeSeen(n) })
	}
	_, controller := l.client.Informer(kube.Nodes, kube.Selection{Keep: keepNode}, cache.ResourceEventHandlerFuncs{
		AddFunc:    see,
		UpdateFunc: func(_, after any) { see(after) },
		DeleteFunc: func(obj any) {
			if n, ok := kube.Deleted[*LiveNode](obj); ok {
				l.update(func() { l.nodeGone(n.Name) })
			}
		},
	})
	l.runUntilSynced(ctx, resourceText(kube.Nodes), controller)
}

// keepNode converts the object of a node before it is stored.
func keepNode(obj any) any {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj
	}
	n := &LiveNode{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion},
		Node:       node,
		fact:       translate.SchedulerNode(node),
	}
	node.ManagedFields, node.Status.Images = nil, nil
	return n
}

func (l *Live) nodeSeen(n *LiveNode) {
	before := l.nodes[n.Name]
	l.nodes[n.Name] = n
	if before == nil || !reflect.DeepEqual(before.fact, n.fact) {
		l.s.world.NodeSeen(atRead, n.fact)
		l.waits = true
	}
	if before == nil || !sameToReaders(before.Node, n.Node) {
		l.dirty[n.Name] = true
	}
}

// sameToReaders reports whether two versions of a node differ only in what nobody reads: the times of heartbeats.
func sameToReaders(a, b *corev1.Node) bool {
	if !reflect.DeepEqual(a.Spec, b.Spec) || !reflect.DeepEqual(a.Status.Allocatable, b.Status.Allocatable) ||
		!reflect.DeepEqual(a.Status.Capacity, b.Status.Capacity) || a.Status.NodeInfo != b.Status.NodeInfo ||
		!maps.Equal(a.Labels, b.Labels) {
		return false
	}
	return slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, func(x, y corev1.NodeCondition) bool {
		x.LastHeartbeatTime, y.LastHeartbeatTime = metav1.Time{}, metav1.Time{}
		return x == y
	})
}

func (l *Live) nodeGone(name string) {
	delete(l.nodes, name)
	l.s.world.NodeGone(atRead, name)
	l.dirty[name], l.waits = true, true
}

func (l *Live) watchPods(ctx context.Context) {
	see := func(obj any) {
		p := keepPod(obj).(*LivePod)
		l.update(func() { l.livePodSeen(p) })
	}
	gone := func(p *LivePod) { l.update(func() { l.livePodGone(p) }) }
	sel := kube.Selection{Fields: kube.LivePods, Keep: keepPod}
	_, controller := l.client.Informer(kube.Pods, sel, cache.ResourceEventHandlerFuncs{
		AddFunc: see,
		UpdateFunc: func(before, after any) {
			if old, ok := before.(*LivePod); ok && old.UID != after.(metav1.Object).GetUID() {
				gone(old) // deleted and created again while the watch was broken
			}
			see(after)
		},
		DeleteFunc: func(obj any) {
			if p, ok := kube.Deleted[*LivePod](obj); ok {
				gone(p)
			}
		},
	})
	l.runUntilSynced(ctx, resourceText(kube.Pods), controller)
}

// keepPod converts the object of a pod before it is stored.
func keepPod(obj any) any {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj
	}
	fact := translate.SchedulerPod(pod)
	p := &LivePod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
			CreationTimestamp: pod.CreationTimestamp, DeletionTimestamp: pod.DeletionTimestamp, Labels: pod.Labels,
		},
		Node:     pod.Spec.NodeName,
		Phase:    pod.Status.Phase,
		Priority: fact.Priority,
		Requests: fact.Requests,
		fact:     &fact,
	}
	if c := conditionOf(pod, corev1.PodReady); c != nil {
		p.Ready = c.Status == corev1.ConditionTrue
	}
	for i := range pod.Status.ContainerStatuses {
		p.Restarts += pod.Status.ContainerStatuses[i].RestartCount
	}
	if p.Node == "" {
		p.waiter = &corev1.Pod{ObjectMeta: p.ObjectMeta, Status: corev1.PodStatus{Conditions: pod.Status.Conditions}}
	}
	return p
}

func (l *Live) livePodSeen(p *LivePod) {
	if p.fact == nil {
		return // it was passed on already
	}
	fact := *p.fact
	p.fact = nil
	l.moved[p.Namespace+"/"+p.Name] = true
	id := fact.ID
	switch {
	case fact.Node != "":
		if l.s.waiting[id] != nil {
			delete(l.s.waiting, id)
			l.waits = true
		}
		if l.on[fact.Node] == nil {
			l.on[fact.Node] = map[scheduler.PodID]*LivePod{}
		}
		if before := l.on[fact.Node][id]; before == nil || !slices.Equal(before.Requests, p.Requests) ||
			!maps.Equal(before.Labels, p.Labels) || before.DeletionTimestamp.IsZero() != p.DeletionTimestamp.IsZero() {
			l.s.world.PodSeen(atRead, fact)
			l.waits = true
		}
		l.on[fact.Node][id] = p
		l.dirty[fact.Node] = true
	case fact.Deleting:
		l.livePodGone(p)
	default:
		if fact.Nominated != "" {
			l.s.world.PodSeen(atRead, fact)
		} else if before := l.s.waiting[id]; before != nil && before.fact.Nominated != "" {
			l.s.world.PodGone(atRead, id)
		}
		l.s.waiting[id] = &waitingPod{pod: p.waiter, fact: fact}
		if l.waits = true; len(fact.Mounts) > 0 && !l.volume && l.start != nil {
			l.volume = true
			for _, of := range l.s.storage() {
				l.start(l.marking(of))
			}
		}
	}
}

func (l *Live) livePodGone(p *LivePod) {
	id := scheduler.PodID(p.UID)
	l.moved[p.Namespace+"/"+p.Name] = true
	delete(l.s.waiting, id)
	l.s.world.PodGone(atRead, id)
	if p.Node != "" {
		if delete(l.on[p.Node], id); len(l.on[p.Node]) == 0 {
			delete(l.on, p.Node)
		}
		l.dirty[p.Node] = true
	}
	l.waits = true
}
