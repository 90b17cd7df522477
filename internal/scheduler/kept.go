package scheduler

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// A KeptPod is the part of a pod's object that the informer's cache keeps: what Events and patches need. For 150,000
// pods, whole objects take ten times the memory of the Placer.
type KeptPod struct {
	metav1.ObjectMeta // namespace, name, UID, version, generation and deletion only
	profile           string
	node, nominated   string
	conditions        []corev1.PodCondition // those that a scheduler writes

	// fact is the translated pod, until the handler has passed it on. Only KeepPod and the handler use it.
	fact *corescheduler.Pod
}

// KeepPod converts the object of a pod to a KeptPod before the informer stores it.
func KeepPod(obj any) any {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return obj // it is a KeptPod already, or a tombstone (cache.DeletedFinalStateUnknown)
	}
	fact := translate.SchedulerPod(pod)
	k := &KeptPod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			ResourceVersion: pod.ResourceVersion, Generation: pod.Generation, DeletionTimestamp: pod.DeletionTimestamp,
		},
		profile:   pod.Spec.SchedulerName,
		node:      pod.Spec.NodeName,
		nominated: pod.Status.NominatedNodeName,
		fact:      &fact,
	}
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled || c.Type == corev1.DisruptionTarget {
			k.conditions = append(k.conditions, *c)
		}
	}
	return k
}

// Passed drops the translated pod. The handler calls it once it has passed the pod on.
func (k *KeptPod) Passed() { k.fact = nil }

// object returns the kept part as a Pod object.
func (k *KeptPod) object() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: k.ObjectMeta, Spec: corev1.PodSpec{NodeName: k.node, SchedulerName: k.profile},
		Status: corev1.PodStatus{Conditions: k.conditions, NominatedNodeName: k.nominated},
	}
}
