package translate

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestNodeConditions has every condition that an agent writes, as upstream writes it, and the Event for it.
func TestNodeConditions(t *testing.T) {
	memory := corev1.NodeMemoryPressure
	disk := corev1.NodeDiskPressure
	pid := corev1.NodePIDPressure
	for want, c := range map[string]corev1.NodeCondition{
		"MemoryPressure=False KubeletHasSufficientMemory: kubelet has sufficient memory available": NodePressure(memory,
			false),
		"MemoryPressure=True KubeletHasInsufficientMemory: kubelet has insufficient memory available": NodePressure(memory,
			true),
		"DiskPressure=False KubeletHasNoDiskPressure: kubelet has no disk pressure": NodePressure(disk,
			false),
		"DiskPressure=True KubeletHasDiskPressure: kubelet has disk pressure": NodePressure(disk,
			true),
		"PIDPressure=False KubeletHasSufficientPID: kubelet has sufficient PID available": NodePressure(pid,
			false),
		"PIDPressure=True KubeletHasInsufficientPID: kubelet has insufficient PID available": NodePressure(pid,
			true),
		"Ready=True KubeletReady: kubelet is posting ready status": NodeReady(),
		"Ready=False KubeletNotReady: a is down":                   NodeReady("a is down"),
		"Ready=False KubeletNotReady: [a is down, b]": NodeReady("a is down",
			"b"),
	} {
		if got := string(c.Type) + "=" + string(c.Status) + " " + c.Reason + ": " + c.Message; got != want {
			t.Errorf("have %s\nwant %s", got, want)
		}
		if got, want := NodeConditionEvent(c), "Node"+strings.TrimPrefix(c.Reason, "Kubelet"); got != want {
			t.Errorf("%s: Event %q, want %q", c.Reason, got, want)
		}
	}
	for _, c := range []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionUnknown},
		{Type: memory, Status: corev1.ConditionUnknown},
		{Type: "Theirs", Status: corev1.ConditionTrue},
	} {
		if got := NodeConditionEvent(c); got != "" {
			t.Errorf("%s=%s: Event %q, want none", c.Type, c.Status, got)
		}
	}
}
