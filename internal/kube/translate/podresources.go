package translate

import (
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
)

// PodResources are the parts of a pod that decide what it requests and uses: what QoSPod reads, and what SchedulerPod
// reads for Requests and Ports. By them a caller sees whether a new version of a pod must be translated again. Most
// updates change other things. Comparing them costs much less than translating the pod, and keeping them keeps no old
// object alive.
type PodResources struct {
	recorded      qos.Class // the class in the pod's status
	critical      bool      // see isCritical
	priorityClass string
	overhead      corev1.ResourceList          // of the pod's RuntimeClass
	level         *corev1.ResourceRequirements // of the pod as a whole; nil: there are none
	containers    []containerResources         // in the order of eachContainer
	// resizing: the status says that the pod has more than it requests, or that a resize is pending. Then the requests
	// also depend on the status, so such a pod is always translated again.
	resizing bool
}

// containerResources are the parts of one container that PodResources has.
type containerResources struct {
	name    string
	init    bool
	sidecar bool
	asks    corev1.ResourceRequirements
	ports   []corev1.ContainerPort
}

// PodResourcesOf returns those of a pod. The pod must not be written to afterwards, because the result shares its maps.
func PodResourcesOf(pod *corev1.Pod) PodResources {
	r := PodResources{
		recorded:      qos.Class(pod.Status.QOSClass),
		critical:      isCritical(pod),
		priorityClass: pod.Spec.PriorityClassName,
		overhead:      pod.Spec.Overhead,
		level:         pod.Spec.Resources,
		containers:    make([]containerResources, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers)),
		resizing:      resizing(pod),
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

// SameAs reports whether a pod has the same resources. False is always safe: it may be returned for a pod that has the
// same. True is never returned for a pod that has others.
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
	return same && !r.resizing && !resizing(pod)
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
		return true // shallow copies of one object share their maps
	}
	for name, x := range a {
		if y, ok := b[name]; !ok || x.Cmp(y) != 0 {
			return false
		}
	}
	return true
}

// resizing computes PodResources.resizing.
func resizing(pod *corev1.Pod) bool {
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

// beyond reports whether more of any resource is in use or allocated than is requested. As upstream, allocated
// resources count only if the status has those in use.
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
