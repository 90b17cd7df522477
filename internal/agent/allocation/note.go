package allocation

import (
	"encoding/json"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// note is an allocation in an annotation of a pod's sandbox. It exists because an agent may die before it writes the
// status in the API. It has only amounts that a resize can change.
type note struct {
	Level      *corev1.ResourceRequirements           `json:"level,omitempty"`
	Containers map[string]corev1.ResourceRequirements `json:"containers,omitempty"`
}

// NoteOf returns the text of what is allocated to a pod; empty: nothing that can change.
func NoteOf(pod *corev1.Pod) string {
	n := note{Containers: map[string]corev1.ResourceRequirements{}}
	for name, r := range Of(pod).containers {
		if amounts := changeable(r); len(amounts.Requests)+len(amounts.Limits) > 0 {
			n.Containers[name] = amounts
		}
	}
	if pod.Spec.Resources != nil {
		level := changeable(*pod.Spec.Resources)
		n.Level = &level
	}
	if len(n.Containers) == 0 && n.Level == nil {
		return ""
	}
	text, err := json.Marshal(n)
	if err != nil {
		return "" // cannot happen: quantities and names can be encoded
	}
	return string(text)
}

// changeable returns the amounts of r that a resize can change.
func changeable(r corev1.ResourceRequirements) corev1.ResourceRequirements {
	return overridden(corev1.ResourceRequirements{}, r.Requests, r.Limits)
}

// noted decodes a note about a pod; nil: the text is not a note.
func noted(text string, pod *corev1.Pod) *Allocation {
	var n note
	if text == "" || json.Unmarshal([]byte(text), &n) != nil {
		return nil
	}
	a := Of(pod)
	for name, asked := range a.containers {
		a.containers[name] = overridden(asked, n.Containers[name].Requests, n.Containers[name].Limits)
	}
	if a.level != nil && n.Level != nil {
		level := overridden(*a.level, n.Level.Requests, n.Level.Limits)
		a.level = &level
	}
	return a
}

// Recovered returns what an earlier agent allocated to the pod: by its status, or if that says nothing yet, by the note
// in its sandbox's annotation.
func Recovered(pod *corev1.Pod, note string) *Allocation {
	shown := false
	for _, list := range translate.StatusLists(&pod.Status) {
		for i := range list {
			shown = shown || list[i].Resources != nil
		}
	}
	if a := noted(note, pod); a != nil && !shown {
		return a
	}
	return reported(pod)
}
