package cri

import "k8s.io/apimachinery/pkg/types"

// The kubelet's labels of sandboxes and containers. This agent sets them, too: they tell the kubelet and other programs
// to which pod a container belongs.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
)

// The kubelet's annotations of containers.
const (
	AnnotationHash           = "io.kubernetes.container.hash" // package kubelethash
	AnnotationRestartCount   = "io.kubernetes.container.restartCount"
	AnnotationMessagePath    = "io.kubernetes.container.terminationMessagePath"
	AnnotationMessagePolicy  = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPodGracePeriod = "io.kubernetes.pod.terminationGracePeriod" // in seconds
	// for an agent that has to stop the container when its pod is gone: JSON
	AnnotationPreStop = "io.kubernetes.container.preStopHandler" // a LifecycleHandler
	AnnotationPorts   = "io.kubernetes.container.ports"          // a list of ContainerPorts
)

// PodUID returns the UID of the pod of a sandbox or container with these labels; empty: it belongs to no pod.
func PodUID(labels map[string]string) types.UID { return types.UID(labels[LabelPodUID]) }
