package criconfig

// Our own annotations of sandboxes and containers, for the next agent.
const (
	AnnotationFixed       = "plimsoll.dev/container-fixed" // the resources that cannot change without a restart
	AnnotationMessageHost = "plimsoll.dev/termination-message-host-path"
	// of sandboxes and containers: CPUs, memory and devices assigned to the pod
	AnnotationAssignment = "plimsoll.dev/holdings"
	// of containers: the IDs of the images that they mount, with commas between
	AnnotationMountedImages = "plimsoll.dev/mounted-images"
	AnnotationAllocation    = "plimsoll.dev/allocation" // of sandboxes: the pod's allocated resources
)
