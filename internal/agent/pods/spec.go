package pods

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// specOf is what a pod should be, and what its cgroups should be set to.
func (r *Runner) specOf(pod *corev1.Pod) podlife.Spec {
	s := translate.PodlifeSpec(pod)
	size, of := r.Groups.Sizes(pod)
	s.Size = size
	for i := range s.Containers {
		s.Containers[i].Size = of(containerNamed(pod, s.Containers[i].Name))
	}
	return s
}

// pastOf collects what is known of containers from the last status computed here, else from the API's.
func pastOf(pod *corev1.Pod, own corev1.PodStatus) map[string]podlife.Past {
	if len(own.ContainerStatuses) == 0 && len(own.InitContainerStatuses) == 0 { // no pod has only ephemeral containers
		return translate.PodlifePast(&pod.Status)
	}
	return translate.PodlifePast(&own)
}
