package kube

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/health"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// HealthNode translates what the lifecycle controller needs to know of a node.
func HealthNode(node *corev1.Node) health.Node {
	out := health.Node{
		Name: node.Name, UID: string(node.UID), Created: unit.WallOf(node.CreationTimestamp.Time), Cordoned: node.Spec.Unschedulable,
		Status: make(map[health.ConditionType]health.Status, len(node.Status.Conditions)),
	}
	for _, c := range node.Status.Conditions {
		out.Status[health.ConditionType(c.Type)] = healthStatus(c.Status)
		if c.Type == corev1.NodeReady {
			out.Heartbeat = unit.WallOf(c.LastHeartbeatTime.Time)
		}
	}
	for _, t := range node.Spec.Taints {
		out.Taints = append(out.Taints, health.Taint{Key: t.Key, Effect: health.Effect(t.Effect)})
	}
	return out
}

func healthStatus(s corev1.ConditionStatus) health.Status {
	switch s {
	case corev1.ConditionTrue:
		return health.True
	case corev1.ConditionFalse:
		return health.False
	}
	return health.Unknown
}

// HealthPod translates what the lifecycle controller needs to know of a pod.
func HealthPod(pod *corev1.Pod) health.Pod {
	out := health.Pod{ID: health.PodID(pod.UID), Namespace: pod.Namespace, Name: pod.Name, Node: pod.Spec.NodeName}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			out.Ready = c.Status == corev1.ConditionTrue
		}
	}
	return out
}
