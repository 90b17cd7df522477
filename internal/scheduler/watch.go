package scheduler

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// trimPod drops what no rule reads and what is often half of a pod: environments, commands, probes, mounts.
func trimPod(obj runtime.Object) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			list[i] = corev1.Container{Name: c.Name, Image: c.Image, RestartPolicyRules: c.RestartPolicyRules, Ports: c.Ports, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
		}
	}
	pod.Spec.EphemeralContainers, pod.Annotations = nil, nil
}

// podHandler turns changes of pods into facts. Translation is done here, beside the mind.
func (m *mind) podHandler() cache.ResourceEventHandler {
	seen := func(pod *corev1.Pod) {
		if pod.Spec.NodeName == "" && pod.Spec.SchedulerName != m.o.Name {
			return // another scheduler's; it counts once it is bound
		}
		p := kube.PlacementPod(pod)
		m.tell(context.Background(), func(now unit.Instant) { m.placer.PodSeen(now, p) })
	}
	gone := func(pod *corev1.Pod) {
		id := placement.PodID(pod.UID)
		m.tell(context.Background(), func(now unit.Instant) { m.placer.PodGone(now, id) })
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { seen(obj.(*corev1.Pod)) },
		UpdateFunc: func(before, after any) {
			if old := before.(*corev1.Pod); old.UID != after.(*corev1.Pod).UID {
				gone(old) // deleted and made anew while the watch was down
			}
			seen(after.(*corev1.Pod))
		},
		DeleteFunc: func(obj any) {
			if pod, ok := kube.Deleted[*corev1.Pod](obj); ok {
				gone(pod)
			}
		},
	}
}

// nodeHandler turns changes of nodes into facts.
func (m *mind) nodeHandler() cache.ResourceEventHandler {
	seen := func(node *corev1.Node) {
		n := kube.PlacementNode(node)
		m.tell(context.Background(), func(now unit.Instant) { m.placer.NodeSeen(now, n) })
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { seen(obj.(*corev1.Node)) },
		UpdateFunc: func(_, after any) { seen(after.(*corev1.Node)) },
		DeleteFunc: func(obj any) {
			if node, ok := kube.Deleted[*corev1.Node](obj); ok {
				m.tell(context.Background(), func(now unit.Instant) { m.placer.NodeGone(now, node.Name) })
			}
		},
	}
}
