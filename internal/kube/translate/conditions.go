package translate

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// pressures are the kubelet's reasons and messages, without "Kubelet" and "kubelet", of a Node's pressure conditions:
// first if they are false, then if they are true. Alerts parse them.
var pressures = map[corev1.NodeConditionType][2]struct{ reason, message string }{
	corev1.NodeMemoryPressure: {
		{"HasSufficientMemory", "has sufficient memory available"},
		{"HasInsufficientMemory", "has insufficient memory available"},
	},
	corev1.NodeDiskPressure: {
		{"HasNoDiskPressure", "has no disk pressure"},
		{"HasDiskPressure", "has disk pressure"},
	},
	corev1.NodePIDPressure: {
		{"HasSufficientPID", "has sufficient PID available"},
		{"HasInsufficientPID", "has insufficient PID available"},
	},
}

// NodePressure returns a Node's condition MemoryPressure, DiskPressure or PIDPressure, in the kubelet's words. Its
// times are not set.
func NodePressure(kind corev1.NodeConditionType, short bool) corev1.NodeCondition {
	status, i := corev1.ConditionFalse, 0
	if short {
		status, i = corev1.ConditionTrue, 1
	}
	words := pressures[kind][i]
	return corev1.NodeCondition{
		Type: kind, Status: status, Reason: "Kubelet" + words.reason, Message: "kubelet " + words.message,
	}
}

// RuntimeDown is the problem of a node whose container runtime does not answer, in the kubelet's words.
const RuntimeDown = "container runtime is down"

// NodeReady returns a Node's condition Ready, in the kubelet's words. With problems it is false. Its times are not set.
func NodeReady(problems ...string) corev1.NodeCondition {
	if len(problems) == 0 {
		return corev1.NodeCondition{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue,
			Reason: "KubeletReady", Message: "kubelet is posting ready status",
		}
	}
	message := strings.Join(problems, ", ")
	if len(problems) > 1 {
		message = "[" + message + "]"
	}
	return corev1.NodeCondition{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: message,
	}
}

// NodeConditionEvent returns the reason of the kubelet's Event for a condition that has just changed: NodeReady,
// NodeHasDiskPressure, ... It is empty for a condition that no agent writes, and for one that a controller set to
// Unknown.
func NodeConditionEvent(c corev1.NodeCondition) string {
	var reason string
	switch c.Status {
	case corev1.ConditionFalse:
		reason = pressures[c.Type][0].reason
	case corev1.ConditionTrue:
		reason = pressures[c.Type][1].reason
	default:
		return ""
	}
	switch {
	case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
		reason = "Ready"
	case c.Type == corev1.NodeReady:
		reason = "NotReady"
	case reason == "":
		return ""
	}
	return "Node" + reason
}
