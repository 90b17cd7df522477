package translate

import corev1 "k8s.io/api/core/v1"

// IsSidecar reports whether an init container is a sidecar: one that runs beside the containers that come after it,
// since it restarts always. The containers of a pod's other lists are never sidecars, whatever this says of them.
func IsSidecar(init *corev1.Container) bool {
	return init.RestartPolicy != nil && *init.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
