package translate

import (
	corev1 "k8s.io/api/core/v1"
	nodetopology "k8s.io/component-helpers/node/topology"
	podresource "k8s.io/component-helpers/resource"
	kubeletapis "k8s.io/kubelet/pkg/apis"

	"github.com/plimsoll-dev/plimsoll/internal/core/lifecycle"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// labelExcludeDisruption excludes a node from the count of its zone, whatever the label's value (upstream's node
// lifecycle).
const labelExcludeDisruption = "node.kubernetes.io/exclude-disruption"

// followers are pairs of labels: upstream's node lifecycle controller keeps label equal to follows.
var followers = []struct{ label, follows string }{
	{kubeletapis.LabelOS, corev1.LabelOSStable},
	{kubeletapis.LabelArch, corev1.LabelArchStable},
}

// LifecycleNode translates what the lifecycle controller needs to know of a node.
func LifecycleNode(node *corev1.Node) lifecycle.Node {
	out := lifecycle.Node{
		Name:     node.Name,
		UID:      string(node.UID),
		Created:  unit.WallOf(node.CreationTimestamp.Time),
		Cordoned: node.Spec.Unschedulable,
		Status:   make(map[lifecycle.ConditionType]lifecycle.Status, len(node.Status.Conditions)),
		Zone:     nodetopology.GetZoneKey(node),
	}
	pods := amount(corev1.ResourcePods, node.Status.Allocatable[corev1.ResourcePods])
	out.Allocatable = lifecycleLoad(node.Status.Allocatable, pods)
	_, out.Excluded = node.Labels[labelExcludeDisruption]
	for _, c := range node.Status.Conditions {
		out.Status[lifecycle.ConditionType(c.Type)] = lifecycleStatus(c.Status)
		if c.Type == corev1.NodeReady {
			out.Heartbeat, out.Changed = unit.WallOf(c.LastHeartbeatTime.Time), unit.WallOf(c.LastTransitionTime.Time)
		}
	}
	for _, t := range node.Spec.Taints {
		taint := lifecycle.Taint{Key: t.Key, Value: t.Value, Effect: lifecycle.Effect(t.Effect)}
		if t.TimeAdded != nil {
			taint.Added = unit.WallOf(t.TimeAdded.Time)
		}
		out.Taints = append(out.Taints, taint)
	}
	for _, f := range followers {
		if want, ok := node.Labels[f.follows]; ok && node.Labels[f.label] != want {
			if out.Relabel == nil {
				out.Relabel = map[string]string{}
			}
			out.Relabel[f.label] = want
		}
	}
	return out
}

func lifecycleStatus(s corev1.ConditionStatus) lifecycle.Status {
	switch s {
	case corev1.ConditionTrue:
		return lifecycle.True
	case corev1.ConditionFalse:
		return lifecycle.False
	}
	return lifecycle.Unknown
}

func lifecycleLoad(list corev1.ResourceList, pods int64) lifecycle.Load {
	return lifecycle.Load{
		CPU:    unit.MilliCPU(amount(corev1.ResourceCPU, list[corev1.ResourceCPU])),
		Memory: unit.Bytes(amount(corev1.ResourceMemory, list[corev1.ResourceMemory])),
		Pods:   pods,
	}
}

// LifecyclePod translates what the lifecycle controller needs to know of a pod. It reads only what TrimLifecyclePod
// leaves.
func LifecyclePod(pod *corev1.Pod) lifecycle.Pod {
	out := lifecycle.Pod{
		ID:          lifecycle.PodID(pod.UID),
		Namespace:   pod.Namespace,
		Name:        pod.Name,
		Node:        pod.Spec.NodeName,
		Bound:       unit.WallOf(pod.CreationTimestamp.Time),
		Terminating: pod.DeletionTimestamp != nil,
		Gated:       len(pod.Spec.SchedulingGates) > 0,
		Ended:       pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
		Requests:    lifecycleLoad(podresource.PodRequests(pod, podresource.PodResourcesOptions{}), 1),
	}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == corev1.PodReady:
			out.Ready = c.Status == corev1.ConditionTrue
		case c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue:
			out.Bound = unit.WallOf(c.LastTransitionTime.Time)
		}
	}
	for i := range pod.Spec.Tolerations {
		out.Tolerations = append(out.Tolerations, LifecycleToleration(&pod.Spec.Tolerations[i]))
	}
	return out
}

// LifecycleToleration translates a toleration.
func LifecycleToleration(t *corev1.Toleration) lifecycle.Toleration {
	out := lifecycle.Toleration{Key: t.Key, Value: t.Value, Effect: lifecycle.Effect(t.Effect)}
	switch t.Operator {
	case "", corev1.TolerationOpEqual:
	case corev1.TolerationOpExists:
		out.Exists = true
	default: // Lt and Gt are an alpha of 1.36, off by default: they tolerate nothing
		out.Never = true
	}
	if t.TolerationSeconds != nil {
		out.Bounded, out.Seconds = true, *t.TolerationSeconds
	}
	return out
}

// TrimLifecyclePod removes what neither LifecyclePod, GrowthPod nor an Event about the pod reads, which is most of the
// pod.
func TrimLifecyclePod(pod *corev1.Pod) {
	keep := corev1.PodSpec{
		NodeName: pod.Spec.NodeName, Tolerations: pod.Spec.Tolerations, SchedulingGates: pod.Spec.SchedulingGates,
		Overhead: pod.Spec.Overhead, Resources: pod.Spec.Resources,
		InitContainers: onlyResources(pod.Spec.InitContainers), Containers: onlyResources(pod.Spec.Containers),
		Volumes: onlyClaims(pod.Spec.Volumes),
	}
	pod.Spec = keep
	pod.Status = corev1.PodStatus{Phase: pod.Status.Phase, Conditions: pod.Status.Conditions}
	pod.Labels, pod.Annotations = nil, nil
}

func onlyResources(in []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for i := range in {
		out = append(out, corev1.Container{
			Resources:     corev1.ResourceRequirements{Requests: in[i].Resources.Requests},
			RestartPolicy: in[i].RestartPolicy,
		})
	}
	return out
}
