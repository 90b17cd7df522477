package podstatus

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
)

// Transient reports whether a condition of the agent exists only while it is true.
func Transient(t corev1.PodConditionType) bool {
	return t == corev1.PodResizePending || t == corev1.PodResizeInProgress
}

// Condition returns the status's condition of that type; nil: it has none.
func Condition(s corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	return find(s.Conditions, t)
}

func find(list []corev1.PodCondition, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range list {
		if list[i].Type == t {
			return &list[i]
		}
	}
	return nil
}

// conditions returns the conditions that the agent reports. Unchanged ones keep the transition times that they have in
// last.
func conditions(
	pod *corev1.Pod, now time.Time, last []corev1.PodCondition, ours []podlife.Condition,
) []corev1.PodCondition {
	var out []corev1.PodCondition
	for _, c := range ours {
		n := corev1.PodCondition{
			Type:               corev1.PodConditionType(c.Type),
			Status:             corev1.ConditionFalse,
			Reason:             c.Reason,
			Message:            c.Message,
			LastTransitionTime: metav1.NewTime(now).Rfc3339Copy(),
			ObservedGeneration: pod.Generation,
		}
		if c.True {
			n.Status = corev1.ConditionTrue
		}
		if c.Generation != 0 {
			n.ObservedGeneration = c.Generation
		}
		if old := find(last, n.Type); old != nil && old.Status == n.Status && (!Transient(n.Type) || old.Reason == n.Reason) {
			n.LastTransitionTime = old.LastTransitionTime
		}
		if n.Type == corev1.PodScheduled {
			if theirs := find(pod.Status.Conditions, n.Type); theirs != nil && theirs.Status == corev1.ConditionTrue {
				n = *theirs // the scheduler's
				n.ObservedGeneration = pod.Generation
			}
		}
		out = append(out, n)
	}
	return out
}

// WithOthers returns the agent's conditions, and those conditions in all that other writers own.
func WithOthers(ours, all []corev1.PodCondition) []corev1.PodCondition {
	out := slices.Clone(ours)
	for _, c := range all {
		if !Transient(c.Type) && find(ours, c.Type) == nil {
			out = append(out, c)
		}
	}
	return out
}
