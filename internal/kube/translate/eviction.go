package translate

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	podresource "k8s.io/component-helpers/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// EvictionPod translates what evictions need to know of a pod: all its containers and volumes, in the order of its
// lists. Its usage is not set; EvictionUsage sets it.
func EvictionPod(pod *corev1.Pod) eviction.Pod {
	// Pod-level resources, where there are any, replace those of the containers: upstream's ranking then ignores the
	// containers'.
	requests := podresource.PodRequests(pod, podresource.PodResourcesOptions{
		SkipContainerLevelResources: podresource.IsPodLevelResourcesSet(pod), ExcludeOverhead: true,
	})
	limits := podresource.PodLimits(pod, podresource.PodResourcesOptions{})
	out := eviction.Pod{
		ID:             string(pod.UID),
		Namespace:      pod.Namespace,
		Name:           pod.Name,
		Critical:       isCritical(pod),
		MemoryRequest:  evictionRequest(pod, requests, corev1.ResourceMemory),
		StorageRequest: evictionRequest(pod, requests, corev1.ResourceEphemeralStorage),
		StorageLimit:   quantityIn(limits, corev1.ResourceEphemeralStorage),
	}
	if pod.Spec.Priority != nil {
		out.Priority = *pod.Spec.Priority
	}
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		out.Grace = unit.Of(time.Duration(min(*s, int64(graceMax/time.Second))) * time.Second)
	}
	if r := pod.Spec.Resources; r != nil {
		out.LevelMemory = quantityIn(r.Requests, corev1.ResourceMemory)
	}
	for i := range pod.Spec.InitContainers {
		c := evictionContainer(&pod.Spec.InitContainers[i])
		c.StorageLimit = eviction.Quantity{}
		out.Containers = append(out.Containers, c)
	}
	for i := range pod.Spec.Containers {
		out.Containers = append(out.Containers, evictionContainer(&pod.Spec.Containers[i]))
	}
	for i := range pod.Spec.Volumes {
		out.Volumes = append(out.Volumes, evictionVolume(&pod.Spec.Volumes[i]))
	}
	return out
}

// graceMax bounds a pod's termination grace period, so that it can be added to a time. Chosen: no pod needs a year to
// end.
const graceMax = 365 * 24 * time.Hour

// evictionRequest returns what the whole pod requests. The overhead counts only for a resource of which the pod
// requests some.
func evictionRequest(pod *corev1.Pod, requests corev1.ResourceList, name corev1.ResourceName) unit.Bytes {
	q := requests[name]
	overhead := pod.Spec.Overhead[name]
	if !q.IsZero() {
		q.Add(overhead)
	}
	return unit.Bytes(min(q.Value(), amountMax))
}

func evictionContainer(c *corev1.Container) eviction.Container {
	return eviction.Container{
		Name:           c.Name,
		MemoryRequest:  quantityIn(c.Resources.Requests, corev1.ResourceMemory),
		StorageRequest: quantityIn(c.Resources.Requests, corev1.ResourceEphemeralStorage),
		StorageLimit:   quantityIn(c.Resources.Limits, corev1.ResourceEphemeralStorage),
	}
}

// evictionVolume translates a volume. Local volumes are those whose usage upstream counts as the pod's
// (localVolumeNames): they are on nodefs.
func evictionVolume(v *corev1.Volume) eviction.Volume {
	out := eviction.Volume{Name: v.Name}
	switch {
	case v.EmptyDir != nil:
		out.Freed = true
		out.Local = v.EmptyDir.Medium == corev1.StorageMediumDefault
		if limit := v.EmptyDir.SizeLimit; limit != nil {
			out.SizeLimit = eviction.Quantity{Value: limit.Value(), Text: limit.String()}
		}
	case v.HostPath != nil:
		out.Local = true
	case v.ConfigMap != nil, v.GitRepo != nil:
		out.Local, out.Freed = true, true
	}
	return out
}

func quantityIn(list corev1.ResourceList, name corev1.ResourceName) eviction.Quantity {
	q, ok := list[name]
	if !ok {
		return eviction.Quantity{}
	}
	return eviction.Quantity{Value: q.Value(), Text: q.String()}
}
