package podstatus

import (
	"encoding/json"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresource "k8s.io/component-helpers/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// addResources adds the allocated resources and the actual ones, which the cgroups have. pod has its allocated
// resources.
func addResources(pod *corev1.Pod, out *corev1.PodStatus, o podlife.Observation) {
	has, want := map[string]resize.Size{}, map[string]resize.Size{}
	for _, c := range o.Containers {
		if c.State == podlife.Running {
			has[c.ID] = c.Size
		}
	}
	for _, s := range o.Spec.Containers {
		want[s.Name] = s.Size
	}
	for _, list := range [][]corev1.ContainerStatus{out.InitContainerStatuses, out.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			c := translate.ContainerNamed(pod, s.Name)
			if c == nil {
				continue
			}
			s.AllocatedResources = maps.Clone(c.Resources.Requests)
			s.Resources = c.Resources.DeepCopy()
			if size, runs := has[translate.ContainerID(s.ContainerID)]; runs && s.State.Running != nil {
				overlay(s.Resources, size, want[s.Name])
			}
		}
	}
	options := podresource.PodResourcesOptions{}
	out.AllocatedResources = podresource.PodRequests(pod, options)
	level := &corev1.ResourceRequirements{
		Requests: maps.Clone(out.AllocatedResources),
		Limits:   podresource.PodLimits(pod, options),
	}
	if len(o.Sandboxes) > 0 {
		// The sum of the limits bounds the pod only if each container has a limit.
		if o.Size.Quota.IsUnlimited() {
			delete(level.Limits, corev1.ResourceCPU)
		}
		if o.Size.Memory.IsUnlimited() {
			delete(level.Limits, corev1.ResourceMemory)
		}
		overlay(level, o.Size, o.Spec.Size)
	}
	out.Resources = level
}

// overlay replaces allocated resources by what a cgroup has, if the two differ.
func overlay(r *corev1.ResourceRequirements, has, want resize.Size) {
	set := func(list corev1.ResourceList, name corev1.ResourceName, q *resource.Quantity) {
		if _, stated := list[name]; stated {
			list[name] = *q
		}
	}
	if request, known := has.CPURequest(); known && has.Shares != want.Shares {
		set(r.Requests, corev1.ResourceCPU, resource.NewMilliQuantity(int64(request), resource.DecimalSI))
	}
	if limit, bound := has.CPULimit(); bound && (has.Quota != want.Quota || has.Period != want.Period) {
		set(r.Limits, corev1.ResourceCPU, resource.NewMilliQuantity(int64(limit), resource.DecimalSI))
	}
	if limit, bound := has.Memory.Get(); bound && has.Memory != want.Memory {
		set(r.Limits, corev1.ResourceMemory, resource.NewQuantity(int64(limit), resource.BinarySI))
	}
}

// ResizeText returns the text of an Event about a resize. It is upstream's, which tools parse. problem may be empty.
func ResizeText(prefix string, pod *corev1.Pod, generation int64, problem string) string {
	type container struct {
		Name      string                      `json:"name"`
		Resources corev1.ResourceRequirements `json:"resources,omitempty"`
	}
	list := func(all []corev1.Container) (out []container) {
		for i := range all {
			out = append(out, container{Name: all[i].Name, Resources: all[i].Resources})
		}
		return out
	}
	text, err := json.Marshal(struct {
		InitContainers []container `json:"initContainers,omitempty"`
		Containers     []container `json:"containers,omitempty"`
		Generation     int64       `json:"generation"`
		Error          string      `json:"error,omitempty"`
	}{
		InitContainers: list(pod.Spec.InitContainers),
		Containers:     list(pod.Spec.Containers),
		Generation:     generation,
		Error:          problem,
	})
	if err != nil {
		return prefix
	}
	return prefix + ": " + string(text)
}
