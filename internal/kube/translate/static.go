package translate

import corev1 "k8s.io/api/core/v1"

const (
	// AnnotationSource says where the kubelet got a pod from; sourceAPI is its value for the API server.
	AnnotationSource = "kubernetes.io/config.source"
	sourceAPI        = "api"
)

// IsStaticPod reports whether a pod is static, by the kubelet's rule: it has the annotation of its source, and the
// source is not the API server. An empty source is therefore that of a static pod. A pod without the annotation is not
// static.
func IsStaticPod(pod *corev1.Pod) bool {
	source, ok := pod.Annotations[AnnotationSource]
	return ok && source != sourceAPI
}

// FromAPI marks a pod that came from the API server as such if its annotation claims another source, as the kubelet
// does when a pod arrives. Otherwise everybody who may create pods could create one that counts as static, and so as
// critical.
func FromAPI(pod *corev1.Pod) {
	if IsStaticPod(pod) {
		pod.Annotations[AnnotationSource] = sourceAPI
	}
}

// isMirrorPod reports whether a pod is the API's image of a static pod.
func isMirrorPod(pod *corev1.Pod) bool {
	_, ok := pod.Annotations[corev1.MirrorPodAnnotationKey]
	return ok
}
