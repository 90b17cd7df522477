package pods

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// allocation is what of CPU and memory the node has granted to a pod: the resources of its specification as they were
// when it was let in or last resized. Everything in the agent sees the pod with them in the place of what its
// specification has by now; only settle looks at both.
//
// There is no file of allocations. The API's status is their checkpoint: it has the requests (allocatedResources) and
// what the cgroups had (resources). Until it has been written first, a note with the pod's sandbox is. An agent that
// died between granting and reporting has its successor judge the resize again, by what is here then, and a cgroup that
// was written already is brought to whatever that decides. What the status cannot tell is a limit that was granted and
// not yet written when the agent died while the next resize was pending: until that is granted, the container keeps the
// limit that it has.
type allocation struct {
	level      *corev1.ResourceRequirements // pod-level resources; nil: none
	containers map[string]corev1.ResourceRequirements
}

// allocationOf grants a pod all that it asks for.
func allocationOf(pod *corev1.Pod) *allocation {
	a := &allocation{level: pod.Spec.Resources, containers: map[string]corev1.ResourceRequirements{}}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			a.containers[list[i].Name] = list[i].Resources
		}
	}
	return a
}

// meets reports whether a is what the pod asks for. A nil allocation is not asked yet.
func (a *allocation) meets(pod *corev1.Pod) bool {
	if a == nil {
		return true
	}
	if (a.level == nil) != (pod.Spec.Resources == nil) || a.level != nil && !sameAmounts(*a.level, *pod.Spec.Resources) {
		return false
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if !sameAmounts(a.containers[list[i].Name], list[i].Resources) {
				return false
			}
		}
	}
	return true
}

// in returns the pod with a in the place of what it asks for; the pod itself where that is the same.
func (a *allocation) in(pod *corev1.Pod) *corev1.Pod {
	if a.meets(pod) {
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

// allocationIn recovers what was granted to a pod from its status. Where the status says nothing, that is what it asks
// for. A pod whose requests are those that were granted has its limits granted, too: they need no room.
func allocationIn(pod *corev1.Pod) *allocation {
	asked := allocationOf(pod)
	told := &allocation{level: asked.level, containers: map[string]corev1.ResourceRequirements{}}
	pending := false
	for name, r := range asked.containers {
		told.containers[name] = r
		s := statusNamed(pod, name)
		if s == nil || s.Resources == nil {
			continue // nobody reported any: it did not run yet
		}
		granted := overridden(r, s.AllocatedResources, s.Resources.Limits)
		pending = pending || !sameAmounts(corev1.ResourceRequirements{Requests: granted.Requests}, corev1.ResourceRequirements{Requests: r.Requests})
		told.containers[name] = granted
	}
	if level := pod.Spec.Resources; level != nil && pod.Status.Resources != nil {
		overhead := pod.Spec.Overhead
		granted := overridden(*level, less(pod.Status.AllocatedResources, overhead), less(pod.Status.Resources.Limits, overhead))
		pending = pending || !sameAmounts(corev1.ResourceRequirements{Requests: granted.Requests}, corev1.ResourceRequirements{Requests: level.Requests})
		told.level = &granted
	}
	if !pending {
		return asked
	}
	return told
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

// less returns a list without the overhead that is in it.
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

// resume takes up what is known of a pod's resizes; let is the version of it that was let in, since which it may have
// asked for more. Caller holds e.mu.
func (e *entry) resume(let *corev1.Pod) {
	e.granted = e.recovered(let)
	e.pod = e.granted.in(e.desired)
	for _, c := range e.desired.Status.Conditions {
		switch {
		case c.Type == corev1.PodResizeInProgress && c.Status == corev1.ConditionTrue:
			e.resizing = c.ObservedGeneration
		case c.Type == corev1.PodResizePending && c.Status == corev1.ConditionTrue && !e.granted.meets(e.desired):
			e.pending = &podlife.PendingResize{Reason: c.Reason, Message: c.Message, Generation: c.ObservedGeneration}
			e.pendingSince = unit.WallOf(c.LastTransitionTime.Time)
		}
	}
}

// holding is the pod by what it holds: what it was granted, with a status that says what it has. That a resize is
// pending is left out: of such pods some believe the status alone. Caller holds e.mu.
func (e *entry) holding() *corev1.Pod {
	pod := *e.pod
	if e.status.Phase != "" {
		pod.Status = e.status
	}
	pod.Status.Conditions = nil
	return &pod
}
