package pods

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// specOf returns podlife's specification of a pod, with the desired sizes of its cgroups.
func (r *Runner) specOf(pod *corev1.Pod) podlife.Spec {
	s := translate.PodlifeSpec(pod)
	size, of := r.Groups.Sizes(pod)
	s.Size = size
	for i := range s.Containers {
		s.Containers[i].Size = of(translate.ContainerNamed(pod, s.Containers[i].Name))
	}
	return s
}
