package translate

import corev1 "k8s.io/api/core/v1"

// IsSidecar reports whether an init container is a sidecar: it always restarts, and so runs during the containers after
// it. The containers of a pod's other lists are never sidecars; do not call it for them.
func IsSidecar(init *corev1.Container) bool {
	return init.RestartPolicy != nil && *init.RestartPolicy == corev1.ContainerRestartPolicyAlways
}
