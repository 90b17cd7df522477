package translate

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/shutdown"
)

// ShutdownPod translates a pod that ends with its machine.
func ShutdownPod(pod *corev1.Pod) shutdown.Pod {
	out := shutdown.Pod{ID: string(pod.UID), Grace: DeletionGrace(pod)}
	if p := pod.Spec.Priority; p != nil {
		out.Priority = *p
	}
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out.Sidecars++
		}
	}
	return out
}
