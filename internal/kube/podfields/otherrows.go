package podfields

// otherAreas returns the rows of the fields of a pod outside its specification. They are not part of
// docs/compatibility.md, which is about what users may request.
func otherAreas() []Area {
	return []Area{
		{"Metadata", metadata()},
		{"Status", status()},
		{"Status of containers", containerStatus()},
	}
}

func metadata() []Group {
	return []Group{
		{"metadata", "namespace name uid labels", Read, ObserverScheduler, "also read by all other parts"},
		{"metadata.ownerReferences[]", "apiVersion kind name controller", Read, ObserverScheduler,
			"the owner whose pods are spread"},
		{"metadata.ownerReferences[]", "uid blockOwnerDeletion", NoEffect, "", "read by the garbage collector"},
		{"metadata", "annotations", Read, ObserverResources,
			"static pods, mirror pods, NUMA placement; what pods read of themselves"},
		{"metadata", "creationTimestamp", Read, ObserverLost, "also the order in which pods are admitted"},
		{"metadata", "deletionTimestamp", Read, ObserverScheduler, "also read by all other parts"},
		{"metadata", "deletionGracePeriodSeconds", Read, ObserverLife, ""},
		{"metadata", "generation", Read, "internal/agent/podstatus.TestStatus",
			"the generation that status and conditions are about"},
		{"metadata", "resourceVersion", Read, "internal/agent/statusreport.TestPodTakesVersions",
			"tells which of two answers is newer"},
		{"metadata", "finalizers[]", NoEffect, "", "the API server keeps the object for them; the pod has ended"},
		{"metadata", "generateName", NoEffect, "", "the API server has made a name of it"},
		{"metadata", "selfLink", NoEffect, "", "no longer set since 1.20"},
		{"metadata", "managedFields[]", NoEffect, "", "dropped when a pod arrives"},
	}
}

const (
	ownStatus = "the agent writes it, and computes it anew"
	claims    = "about resource claims, because of which pods are held"
)

func status() []Group {
	const c = "status.conditions[]"
	return []Group{
		{"status", "phase", Read, ObserverLost, "also whether a pod may run again"},
		{"status", "reason message", Read, "internal/agent/podstatus.TestStatus", "those of a pod that ended are kept"},
		{"status", "startTime nominatedNodeName", Read, ObserverScheduler, ""},
		{"status", "qosClass", Read, ObserverResources, "a recorded class has precedence over a computed one"},
		{"status", "podIP", Read, "internal/fleet.TestPods", "a hollow pod keeps its address"},
		{"status", "podIPs[].ip", Read, "internal/agent/podstatus.TestStatus", "a pod that ended keeps those it had"},
		{"status", "hostIP hostIPs[].ip observedGeneration", NoEffect, "", ownStatus},
		{"status", "allocatedResources resources.limits", Read, ObserverAllocated, ""},
		{"status", "resources.requests", Read, ObserverScheduler, "of a pod that is being resized"},
		{"status", "resources.claims*", NoEffect, "", claims},
		{"status", "resourceClaimStatuses* extendedResourceClaimStatus*", NoEffect, "", claims},
		{"status", "nodeAllocatableResourceClaimStatuses*", NoEffect, "", claims},
		{"status", "resize", NoEffect, "", "replaced by conditions since 1.33"},
		{c, "type status", Read, ObserverLost, "also readiness gates"},
		{c, "lastTransitionTime", Read, ObserverLost, "since when a pod is on its node"},
		{c, "reason", Read, ObserverScheduler, "whether it was evicted to make room"},
		{c, "message", Read, "internal/agent/pods.TestHeldIsToldOnce", "what was already reported to users"},
		{c, "observedGeneration lastProbeTime", NoEffect, "", "kept as they are in conditions of others"},
	}
}

func containerStatus() []Group {
	const c = "status.containerStatuses[]"
	const end = "exitCode reason message startedAt finishedAt containerID"
	return []Group{
		{c, "name imageID containerID restartCount", Read, ObserverLife, ""},
		{c, "state.running.startedAt state.waiting.reason", Read, ObserverLife, ""},
		{c + ".state.terminated", end, Read, ObserverLife, "how the last run ended"},
		{c + ".lastState.terminated", end, Read, ObserverLife, "and the one before"},
		{c, "state.terminated.signal lastState.terminated.signal", NoEffect, "", "CRI has no such field"},
		{c, "lastState.running* lastState.waiting*", NoEffect, "", "a last state is an end"},
		{c, "state.waiting.message", NoEffect, "", ownStatus},
		{c, "resources.limits", Read, ObserverAllocated, ""},
		{c, "allocatedResources resources.requests", Read, ObserverScheduler,
			"of a pod that is being resized; also what was allocated"},
		{c, "resources.claims*", NoEffect, "", claims},
		{c, "image user*", Read, "internal/agent/podstatus.TestRun", "of a run that the runtime has lost"},
		{c, "ready started volumeMounts* allocatedResourcesStatus* stopSignal", NoEffect, "", ownStatus},
	}
}
