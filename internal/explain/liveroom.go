package explain

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// A LiveRoom is a node with what it has for pods.
type LiveRoom struct {
	Node *corev1.Node // not to be changed
	Load []LiveLoad   // cpu, memory and pods first, then the others by name
}

// LiveLoad is a Load in base units.
type LiveLoad struct {
	Resource                         string
	Capacity, Allocatable, Requested int64
}

// Room returns a node, with what its pods request. known is false if there is no such node.
func (l *Live) Room(name string) (out LiveRoom, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.nodes[name]
	if n == nil {
		return LiveRoom{}, false
	}
	room, known := l.s.world.Placer().RoomOn(name)
	if !known {
		return LiveRoom{}, false
	}
	out.Node = n.Node
	capacity, podsMax := capacityOf(n.Node)
	add := func(resource string, allocatable, requested int64) {
		out.Load = append(out.Load, LiveLoad{
			Resource:    resource,
			Capacity:    capacity[resource],
			Allocatable: allocatable,
			Requested:   requested,
		})
	}
	for _, first := range []string{scheduler.CPU, scheduler.Memory} {
		for _, r := range room.Resources {
			if r.Resource == first {
				add(r.Resource, r.Allocatable, r.Requested)
			}
		}
	}
	capacity[scheduler.Pods] = podsMax
	add(scheduler.Pods, room.PodsMax, room.Pods)
	for _, r := range room.Resources {
		if r.Resource != scheduler.CPU && r.Resource != scheduler.Memory {
			add(r.Resource, r.Allocatable, r.Requested)
		}
	}
	return out, true
}

// capacityOf returns a node's capacity in base units.
func capacityOf(node *corev1.Node) (capacity map[string]int64, podsMax int64) {
	full := *node
	full.Status.Allocatable = node.Status.Capacity
	of := translate.SchedulerNode(&full)
	capacity = map[string]int64{}
	for _, c := range of.Allocatable {
		capacity[c.Resource] = c.Value
	}
	return capacity, of.PodsMax
}

// PodsOn returns the pods on a node, by namespace and name.
func (l *Live) PodsOn(node string) []*LivePod {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := slices.Collect(maps.Values(l.on[node]))
	slices.SortFunc(out, func(a, b *LivePod) int {
		if a.Namespace != b.Namespace {
			return strings.Compare(a.Namespace, b.Namespace)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// Report returns what a node's agent published about its NUMA nodes; nil: nothing. It is not to be changed.
func (l *Live) Report(node string) *topology.Object {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.report[node]
}
