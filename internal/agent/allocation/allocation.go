// Package allocation has the CPU and memory that the node has allocated to a pod: the resources of its specification
// when it was admitted or last resized.
//
// There is no file of allocations. The API's status is their checkpoint: it has the requests (allocatedResources) and
// what the cgroups had (resources). Before the status is written for the first time, an annotation of the pod's sandbox
// is the checkpoint (NoteOf). If an agent dies after it allocated and before it reported, the next agent judges the
// resize again, given the pods that are on the node then, and reconciles a cgroup that was written already. One case is
// lost: when the agent died, a limit was allocated and not written yet, and the next resize was pending. Then the
// container keeps its actual limit until the next resize is allocated.
//
// The package decides nothing: whether a resize fits is core/admission's decision.
package allocation

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Allocation is what is allocated to one pod. Every part of the agent sees the pod with these resources instead of
// those of its specification (In); only the verdict on a resize depends on both. It is replaced, never written to. A
// pod that was not admitted yet, or cannot be resized, has a nil Allocation.
type Allocation struct {
	level      *corev1.ResourceRequirements           // of the pod as a whole; nil: its specification has none
	containers map[string]corev1.ResourceRequirements // by name, init containers too
}

// Of allocates to a pod what it requests.
func Of(pod *corev1.Pod) *Allocation {
	a := &Allocation{level: pod.Spec.Resources, containers: map[string]corev1.ResourceRequirements{}}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			a.containers[list[i].Name] = list[i].Resources
		}
	}
	return a
}

// Meets reports whether a is what the pod requests. A nil Allocation always is.
func (a *Allocation) Meets(pod *corev1.Pod) bool {
	if a == nil {
		return true
	}
	if (a.level == nil) != (pod.Spec.Resources == nil) || a.level != nil && !Same(*a.level, *pod.Spec.Resources) {
		return false
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if !Same(a.containers[list[i].Name], list[i].Resources) {
				return false
			}
		}
	}
	return true
}

// In returns the pod with the resources of a instead of those that it requests; the pod itself if they are the same.
func (a *Allocation) In(pod *corev1.Pod) *corev1.Pod {
	if a.Meets(pod) {
		return pod
	}
	out := *pod
	out.Spec.Resources = a.level
	replace := func(list []corev1.Container) []corev1.Container {
		list = append([]corev1.Container(nil), list...)
		for i := range list {
			if r, ok := a.containers[list[i].Name]; ok {
				list[i].Resources = r
			}
		}
		return list
	}
	out.Spec.InitContainers, out.Spec.Containers = replace(pod.Spec.InitContainers), replace(pod.Spec.Containers)
	return &out
}

// reported recovers from a pod's status what was allocated to it. For a container that the status says nothing about,
// that is what the pod requests. If the pod's requests are the allocated ones, its limits count as allocated too:
// limits need no room.
func reported(pod *corev1.Pod) *Allocation {
	asked := Of(pod)
	out := &Allocation{level: asked.level, containers: map[string]corev1.ResourceRequirements{}}
	pending := false
	for name, r := range asked.containers {
		out.containers[name] = r
		s := translate.StatusNamed(pod, name)
		if s == nil || s.Resources == nil {
			continue // none were reported: the container has not run yet
		}
		allocated := overridden(r, s.AllocatedResources, s.Resources.Limits)
		pending = pending || !agreeInRequests(allocated, r)
		out.containers[name] = allocated
	}
	if level := pod.Spec.Resources; level != nil && pod.Status.Resources != nil {
		overhead := pod.Spec.Overhead
		requests, limits := less(pod.Status.AllocatedResources, overhead), less(pod.Status.Resources.Limits, overhead)
		allocated := overridden(*level, requests, limits)
		pending = pending || !agreeInRequests(allocated, *level)
		out.level = &allocated
	}
	if !pending {
		return asked
	}
	return out
}

// agreeInRequests reports whether two containers agree in the requests that can be resized.
func agreeInRequests(a, b corev1.ResourceRequirements) bool {
	return Same(corev1.ResourceRequirements{Requests: a.Requests}, corev1.ResourceRequirements{Requests: b.Requests})
}

// overridden returns r with CPU and memory as they are in the lists. A limit is never below its request.
func overridden(r corev1.ResourceRequirements, requests, limits corev1.ResourceList) corev1.ResourceRequirements {
	out := *r.DeepCopy()
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		delete(out.Requests, name)
		delete(out.Limits, name)
		request, requested := requests[name]
		if requested {
			out.Requests = with(out.Requests, name, request)
		}
		limit, limited := limits[name]
		if limited && requested && limit.Cmp(request) < 0 {
			limit = request
		}
		if limited {
			out.Limits = with(out.Limits, name, limit)
		}
	}
	return out
}

func with(list corev1.ResourceList, name corev1.ResourceName, q resource.Quantity) corev1.ResourceList {
	if list == nil {
		list = corev1.ResourceList{}
	}
	list[name] = q
	return list
}

// less returns a list minus the overhead.
func less(list, overhead corev1.ResourceList) corev1.ResourceList {
	out := list.DeepCopy()
	for name, more := range overhead {
		if q, ok := out[name]; ok {
			q.Sub(more)
			out[name] = q
		}
	}
	return out
}

// Same reports whether the resources of two containers agree in what can be resized.
func Same(a, b corev1.ResourceRequirements) bool {
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		for _, lists := range [][2]corev1.ResourceList{{a.Requests, b.Requests}, {a.Limits, b.Limits}} {
			x, hasX := lists[0][name]
			y, hasY := lists[1][name]
			if hasX != hasY || x.Cmp(y) != 0 {
				return false
			}
		}
	}
	return true
}
