package podlife

// Reasons of containers that wait, in upstream's words, that the agent has rules for, too: what it records Events of,
// and which of its errors they name.
const (
	ReasonContainerCreating = "ContainerCreating" // nothing is wrong: it is being made, or its turn comes
	ReasonPodInitializing   = "PodInitializing"   // the same, of a pod with init containers
	ReasonCrashLoopBackOff  = "CrashLoopBackOff"

	// Of images. ImagePullBackOff follows ErrImagePull, RegistryUnavailable and SignatureValidationFailed.
	ReasonErrImagePull      = "ErrImagePull"
	ReasonImagePullBackOff  = "ImagePullBackOff"
	ReasonErrImageNeverPull = "ErrImageNeverPull"
	ReasonInvalidImageName  = "InvalidImageName"
	ReasonImageInspectError = "ImageInspectError"

	// Of starts that failed after the container had been created.
	ReasonRunContainerError  = "RunContainerError"
	ReasonPostStartHookError = "PostStartHookError"
)

// ReasonDeadlineExceeded is the reason of a pod that failed because its activeDeadlineSeconds are over.
const ReasonDeadlineExceeded = "DeadlineExceeded"

// ReasonCompleted is the reason of a container that ended with code 0.
const ReasonCompleted = "Completed"
