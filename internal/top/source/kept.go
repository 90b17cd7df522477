package source

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
	"github.com/plimsoll-dev/plimsoll/internal/top"
)

// keptNode is what is stored of a node's object.
type keptNode struct {
	metav1.ObjectMeta
	node      top.Node
	addresses []corev1.NodeAddress
	port      int32 // of its agent
}

// object returns the kept part as a Node object.
func (k *keptNode) object() *corev1.Node {
	n := &corev1.Node{ObjectMeta: k.ObjectMeta}
	n.Status.Addresses = k.addresses
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = k.port
	return n
}

func keepNode(obj any) any {
	n, is := obj.(*corev1.Node)
	if !is {
		return obj // it is a keptNode already, or a tombstone
	}
	k := &keptNode{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
		addresses:  n.Status.Addresses,
		port:       n.Status.DaemonEndpoints.KubeletEndpoint.Port,
		node: top.Node{
			Name:        n.Name,
			Kubelet:     n.Status.NodeInfo.KubeletVersion,
			Ours:        translate.OurAgent(n),
			State:       "Unknown",
			Cordoned:    n.Spec.Unschedulable,
			Capacity:    amounts(n.Status.Capacity),
			Allocatable: amounts(n.Status.Allocatable),
		},
	}
	for _, c := range n.Status.Conditions {
		is := c.Status == corev1.ConditionTrue
		switch c.Type {
		case corev1.NodeReady:
			k.node.State = map[corev1.ConditionStatus]string{corev1.ConditionTrue: "Ready",
				corev1.ConditionFalse: "NotReady"}[c.Status]
			if k.node.State == "" {
				k.node.State = "Unknown"
			}
		case corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure:
			if is {
				k.node.Pressure = append(k.node.Pressure, strings.ToLower(strings.TrimSuffix(string(c.Type), "Pressure")))
			}
		}
	}
	slices.Sort(k.node.Pressure)
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeUnschedulable {
			continue // the state says that it is cordoned
		}
		text := t.Key
		if t.Value != "" {
			text += "=" + t.Value
		}
		k.node.Taints = append(k.node.Taints, text+":"+string(t.Effect))
	}
	return k
}

func amounts(list corev1.ResourceList) top.Amounts {
	value := func(name corev1.ResourceName, of func(resource.Quantity) int64) int64 {
		q, has := list[name]
		if !has {
			return 0
		}
		return of(q)
	}
	whole := func(q resource.Quantity) int64 { return q.Value() }
	return top.Amounts{
		CPU:    unit.MilliCPU(value(corev1.ResourceCPU, func(q resource.Quantity) int64 { return q.MilliValue() })),
		Memory: unit.Bytes(value(corev1.ResourceMemory, whole)),
		Disk:   unit.Bytes(value(corev1.ResourceEphemeralStorage, whole)),
		Pods:   value(corev1.ResourcePods, whole),
	}
}

// keptPod is what is stored of a pod's object.
type keptPod struct {
	metav1.ObjectMeta
	pod top.Pod
}

func keepPod(obj any) any {
	p, is := obj.(*corev1.Pod)
	if !is {
		return obj
	}
	k := &keptPod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion},
		pod: top.Pod{
			ID:        p.Namespace + "/" + p.Name,
			Namespace: p.Namespace,
			Name:      p.Name,
			UID:       string(p.UID),
			Node:      p.Spec.NodeName,
			State:     stateOf(p),
			Created:   p.CreationTimestamp.Time,
		},
	}
	for _, a := range translate.SchedulerRequests(p) {
		switch a.Resource {
		case scheduler.CPU:
			k.pod.Requested.CPU = unit.MilliCPU(a.Value)
		case scheduler.Memory:
			k.pod.Requested.Memory = unit.Bytes(a.Value)
		case scheduler.EphemeralStorage:
			k.pod.Requested.Disk = unit.Bytes(a.Value)
		}
	}
	k.pod.Requested.Pods = 1
	for i := range p.Status.ContainerStatuses {
		k.pod.Restarts += int(p.Status.ContainerStatuses[i].RestartCount)
	}
	return k
}

// stateOf is the phase of a pod, or why it or one of its containers is not further.
func stateOf(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		return "Terminating"
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			if w := list[i].State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" {
				return w.Reason
			}
		}
	}
	if p.Status.Phase == "" {
		return string(corev1.PodPending)
	}
	return string(p.Status.Phase)
}

// nodeOf returns the entry of a node, for a change of it. s.mu is locked.
func (s *Source) nodeOf(name string) *node {
	n := s.nodes[name]
	if n == nil {
		n = &node{}
		s.nodes[name] = n
		s.order = nil
	}
	n.shown = nil
	return n
}

func (s *Source) nodeHandler() cache.ResourceEventHandler {
	set := func(obj any) {
		k, is := obj.(*keptNode)
		if !is {
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.nodeOf(k.Name).kept = k
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, obj any) { set(obj) },
		DeleteFunc: func(obj any) {
			k, is := kube.Deleted[*keptNode](obj)
			if !is {
				return
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.nodeOf(k.Name).kept = nil
			s.drop(k.Name)
		},
	}
}

// drop forgets a node without object and pods. s.mu is locked.
func (s *Source) drop(name string) {
	if n := s.nodes[name]; n != nil && n.kept == nil && n.requested.Pods == 0 {
		delete(s.nodes, name)
		s.order = nil
	}
}

func (s *Source) podHandler() cache.ResourceEventHandler {
	set := func(obj any) {
		if k, is := obj.(*keptPod); is {
			s.count(string(k.UID), k)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    set,
		UpdateFunc: func(_, obj any) { set(obj) },
		DeleteFunc: func(obj any) {
			if k, is := kube.Deleted[*keptPod](obj); is {
				s.count(string(k.UID), nil)
			}
		},
	}
}

// count replaces what is known of a pod, and changes the sums; nil: it is gone.
func (s *Source) count(uid string, now *keptPod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	slot := s.pods[uid]
	if slot != nil {
		s.add(&slot.kept.pod, -1)
	}
	switch {
	case now == nil && slot != nil:
		slot.kept = nil
		delete(s.pods, uid)
		s.sorted.gone++
	case now != nil && slot == nil:
		slot = &podSlot{id: now.pod.ID, kept: now}
		s.pods[uid] = slot
		s.sorted.add(slot)
	case now != nil:
		slot.kept = now
	}
	if now != nil {
		s.add(&now.pod, 1)
	}
}

func (s *Source) add(p *top.Pod, sign int64) {
	if p.Node == "" {
		s.waiting += int(sign)
		return
	}
	sum := &s.nodeOf(p.Node).requested
	sum.CPU += unit.MilliCPU(sign) * p.Requested.CPU
	sum.Memory += unit.Bytes(sign) * p.Requested.Memory
	sum.Disk += unit.Bytes(sign) * p.Requested.Disk
	sum.Pods += sign
	s.drop(p.Node)
}
