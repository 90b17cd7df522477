package criconfig

// Labels and annotations of sandboxes and containers. Those of the kubelet have its spelling, so that either agent can
// recover what the other left.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationHash          = "plimsoll.dev/container-hash"  // the agent's own hash: the kubelet's has another meaning
	AnnotationFixed         = "plimsoll.dev/container-fixed" // the resources that cannot change without a restart
	AnnotationRestartCount  = "io.kubernetes.container.restartCount"
	AnnotationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationMessageHost   = "plimsoll.dev/termination-message-host-path"
	// of sandboxes and containers: CPUs, memory and devices assigned to the pod
	AnnotationHoldings   = "plimsoll.dev/holdings"
	AnnotationAllocation = "plimsoll.dev/allocation" // of sandboxes: the pod's allocated resources
	AnnotationPodGrace   = "io.kubernetes.pod.terminationGracePeriod"
)
