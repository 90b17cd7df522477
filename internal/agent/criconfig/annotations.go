package criconfig

// Labels and annotations of sandboxes and containers, spelled as the kubelet spells them, so that either can adopt what
// the other left.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"

	AnnotationHash          = "plimsoll.dev/container-hash"  // our own hash: the kubelet's means something else
	AnnotationFixed         = "plimsoll.dev/container-fixed" // the resources that cannot change without a restart
	AnnotationRestartCount  = "io.kubernetes.container.restartCount"
	AnnotationMessagePath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationMessagePolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationMessageHost   = "plimsoll.dev/termination-message-host-path"
	AnnotationHoldings      = "plimsoll.dev/holdings"   // of sandboxes and containers: what the pod has of its own
	AnnotationAllocation    = "plimsoll.dev/allocation" // of sandboxes: the resources that the pod was granted
	AnnotationPodGrace      = "io.kubernetes.pod.terminationGracePeriod"
)
