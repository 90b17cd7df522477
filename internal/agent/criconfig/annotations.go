package criconfig

// The agent's own annotations of sandboxes and containers, for the next agent.
const (
	// AnnotationFixed is on containers: the resources that cannot change without a restart.
	AnnotationFixed = "plimsoll.dev/container-fixed"
	// AnnotationMessageHost is on containers: the host's path of the termination log.
	AnnotationMessageHost = "plimsoll.dev/termination-message-host-path"
	// AnnotationAssignment is on sandboxes and containers: the CPUs, memory and devices that are assigned to the pod.
	AnnotationAssignment = "plimsoll.dev/holdings"
	// AnnotationMountedImages is on containers: the IDs of the images that they mount, separated by commas.
	AnnotationMountedImages = "plimsoll.dev/mounted-images"
	// AnnotationAllocation is on sandboxes: the pod's allocated resources.
	AnnotationAllocation = "plimsoll.dev/allocation"
)
