package translate

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
)

// PodResources are the parts of a pod that decide what it asks for and takes: what QoSPod reads, and what SchedulerPod
// reads for Requests and Ports. They tell whether another version of a pod has to be translated anew: most updates are
// of other things. To compare them costs much less than to translate a pod, and to keep them keeps no old objects
// alive.
type PodResources struct {
	recorded      qos.Class // as the status has it
	critical      bool
	priorityClass string
	overhead      corev1.ResourceList
	level         *corev1.ResourceRequirements
	containers    []containerResources // in the order of eachContainer
	// reports: the status says that the pod has more than it asks for, or that a resize waits, which changes what the
	// rest of it means. Such a pod is always translated anew.
	reports bool
}

// containerResources are those of one container.
type containerResources struct {
	name    string
	init    bool
	sidecar bool
	asks    corev1.ResourceRequirements
	ports   []corev1.ContainerPort
}

// PodResourcesOf are those of a pod, which must not be written to afterwards.
func PodResourcesOf(pod *corev1.Pod) PodResources {
	r := PodResources{
		recorded:      qos.Class(pod.Status.QOSClass),
		critical:      isCritical(pod),
		priorityClass: pod.Spec.PriorityClassName,
		overhead:      pod.Spec.Overhead,
		level:         pod.Spec.Resources,
		containers:    make([]containerResources, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers)),
		reports:       reports(pod),
	}
	eachContainer(pod, func(c *corev1.Container, init bool) bool {
		r.containers = append(r.containers, containerResources{
			name:    c.Name,
			init:    init,
			sidecar: IsSidecar(c),
			asks:    c.Resources,
			ports:   c.Ports,
		})
		return true
	})
	return r
}

// SameAs reports whether a pod has the same resources. It may say no of one that has; never yes of one that has not.
func (r *PodResources) SameAs(pod *corev1.Pod) bool {
	level := pod.Spec.Resources
	if r.recorded != qos.Class(pod.Status.QOSClass) || r.critical != isCritical(pod) ||
		r.priorityClass != pod.Spec.PriorityClassName || !sameList(r.overhead, pod.Spec.Overhead) ||
		(r.level == nil) != (level == nil) || level != nil && !sameRequirements(*r.level, *level) ||
		len(r.containers) != len(pod.Spec.InitContainers)+len(pod.Spec.Containers) {
		return false
	}
	i := -1
	same := eachContainer(pod, func(c *corev1.Container, init bool) bool {
		i++
		k := &r.containers[i]
		return k.name == c.Name && k.init == init && k.sidecar == IsSidecar(c) && slices.Equal(k.ports, c.Ports) &&
			sameRequirements(k.asks, c.Resources)
	})
	return same && !r.reports && !reports(pod)
}

// eachContainer calls see for each container until it returns false, and reports whether it never did.
func eachContainer(pod *corev1.Pod, see func(c *corev1.Container, init bool) bool) bool {
	for k, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if !see(&list[i], k == 0) {
				return false
			}
		}
	}
	return true
}

func sameRequirements(a, b corev1.ResourceRequirements) bool {
	return sameList(a.Requests, b.Requests) && sameList(a.Limits, b.Limits)
}

func sameList(a, b corev1.ResourceList) bool {
	if len(a) != len(b) {
		return false
	}
	if reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() {
		return true // of copies of one object, which share what is below
	}
	for name, x := range a {
		if y, ok := b[name]; !ok || x.Cmp(y) != 0 {
			return false
		}
	}
	return true
}

// reports is PodResources.reports.
func reports(pod *corev1.Pod) bool {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == corev1.PodResizePending {
			return true
		}
	}
	if podresource.IsPodLevelRequestsSet(pod) &&
		beyond(pod.Spec.Resources.Requests, pod.Status.Resources, pod.Status.AllocatedResources) {
		return true
	}
	return !eachContainer(pod, func(c *corev1.Container, _ bool) bool {
		for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
			for i := range list {
				s := &list[i]
				if s.Name == c.Name && beyond(c.Resources.Requests, s.Resources, s.AllocatedResources) {
					return false
				}
			}
		}
		return true
	})
}

// beyond reports whether more of any resource is in use or allocated than is asked for. What is allocated counts only
// next to what is in use, as upstream has it.
func beyond(asked corev1.ResourceList, has *corev1.ResourceRequirements, allocated corev1.ResourceList) bool {
	if has == nil {
		return false
	}
	for _, list := range [2]corev1.ResourceList{has.Requests, allocated} {
		for name, q := range list {
			if q.Cmp(asked[name]) > 0 {
				return true
			}
		}
	}
	return false
}
