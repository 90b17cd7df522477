// Package podfields says, for every field of a pod, how a node of this agent treats it: the field is carried out, the
// pod is rejected or held because of it, it is read from a pod that is already there, or it has no effect on a node by
// design.
//
// # Model
//
// rows.go has a row for every field of corev1.PodSpec and of all that it contains, otherrows.go one for every field of
// the metadata and the status. A test walks the types, so that a new k8s.io/api cannot bring a field that is silently
// ignored. A row says how the field is treated. If the field is carried out or read, the row also says what proves it:
// tests set the field, clear it, and fail if the result is the same. A test of translate checks that no translation
// reads fields without effect. docs/compatibility.md is generated from the rows of the specification.
//
// holds.go has the fields, and the values of fields, because of which a pod is held: none of its containers starts, and
// a condition and an Event say which field is the reason and what would help. Some of these fields can be carried out
// on some nodes (Abilities). The agent calls Holds before it starts anything and publishes Codes with its Node; the
// scheduler compares these with CodesOf a pod.
//
// # What it does not do
//
// It looks at one pod and nothing else. Upstream's reasons to reject a pod depend on the node; they are in
// core/admission (Suits). A claim's persistent volume is another object: the scheduler uses CodesOfVolume, and the
// agent checks the volume where it sets it up.
package podfields

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Hold is a field of a pod that this agent cannot carry out. The pod is held because of it.
type Hold struct {
	Code      string // what the node lacks, as in Codes
	Field     string // with the names of containers and volumes: spec.volumes[data].nfs
	Container string // the container that has the field; empty: the field belongs to the whole pod
	Why, Help string
}

// String returns the text for users.
func (h Hold) String() string { return fmt.Sprintf("%s: %s: %s", h.Field, h.Why, h.Help) }

// Holds returns the fields of a pod that this agent cannot carry out on a node, in the order of holds; none: the pod
// can run here.
func Holds(pod *corev1.Pod, node Abilities) []Hold {
	var out []Hold
	for hold, where := range found(pod) {
		if hold.carriedOut(node) {
			continue
		}
		out = append(out, Hold{Code: hold.code, Field: hold.field(where), Container: where.container, Why: hold.why,
			Help: hold.help})
	}
	return out
}

// Blocks returns the first hold that prevents one container of a pod from starting; nil: there is none.
func Blocks(pod *corev1.Pod, container string, node Abilities) *Hold {
	for _, r := range Holds(pod, node) {
		if r.Container == "" || r.Container == container {
			return &r
		}
	}
	return nil
}

// Text returns one message for several holds. It names the first few and the number of the others.
func Text(all []Hold) string {
	const most = 3 // an Event's message has at most 1 KiB
	var texts []string
	for _, r := range all[:min(len(all), most)] {
		texts = append(texts, r.String())
	}
	if more := len(all) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more fields", more))
	}
	return strings.Join(texts, "; ")
}

// carriedOut reports whether a node can carry the field out, so that it does not hold the pod.
func (h *hold) carriedOut(node Abilities) bool { return h.able != nil && h.able(node) }

// Codes returns the codes of all that a node cannot carry out, sorted.
func Codes(node Abilities) []string {
	var out []string
	for i := range holds {
		if !holds[i].carriedOut(node) {
			out = append(out, holds[i].code)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// CodesOf returns the codes of all holds that apply to a pod on some node, sorted. An agent that publishes one of them
// holds the pod. For most pods it is nil: no hold applies.
func CodesOf(pod *corev1.Pod) []string {
	var out []string
	for hold := range found(pod) {
		out = append(out, hold.code)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// place is where in a pod a hold applies. At most one of volume and container is set. kind is the list of containers
// that has the container.
type place struct{ kind, container, volume string }

// field returns the hold's path with the names of the container or volume where it applies.
func (h *hold) field(at place) string {
	switch {
	case at.container != "":
		return strings.Replace(h.path, "spec.containers[]", fmt.Sprintf("spec.%s[%s]", at.kind, at.container), 1)
	case at.volume != "":
		return strings.Replace(h.path, "spec.volumes[]", fmt.Sprintf("spec.volumes[%s]", at.volume), 1)
	}
	return h.path
}

// found yields the holds that apply to a pod. It runs for each pod that a scheduler receives: for most, none applies,
// and it allocates no memory.
func found(pod *corev1.Pod) iter.Seq2[*hold, place] {
	return func(yield func(*hold, place) bool) {
		s := &pod.Spec
		for i := range holds {
			if h := &holds[i]; !h.in(s, yield) {
				return
			}
		}
	}
}

// in yields the places of a pod where a hold applies. It returns false when yield returned false.
func (h *hold) in(s *corev1.PodSpec, yield func(*hold, place) bool) bool {
	if h.pod != nil && h.pod(s) && !yield(h, place{}) {
		return false
	}
	if h.volume != nil {
		for i := range s.Volumes {
			if v := &s.Volumes[i]; h.volume(v) && !yield(h, place{volume: v.Name}) {
				return false
			}
		}
	}
	if h.container == nil {
		return true
	}
	for kind, c := range containers(s) {
		if h.container(c) && !yield(h, place{kind: kind, container: c.Name}) {
			return false
		}
	}
	return true
}

// containers yields all containers of a pod with the name of their list.
func containers(s *corev1.PodSpec) iter.Seq2[string, *corev1.Container] {
	return func(yield func(string, *corev1.Container) bool) {
		for i := range s.InitContainers {
			if !yield("initContainers", &s.InitContainers[i]) {
				return
			}
		}
		for i := range s.Containers {
			if !yield("containers", &s.Containers[i]) {
				return
			}
		}
		for i := range s.EphemeralContainers {
			if !yield("ephemeralContainers", (*corev1.Container)(&s.EphemeralContainers[i].EphemeralContainerCommon)) {
				return
			}
		}
	}
}

// WhyHeld returns why pods with a field are held, and what would help; nil: they are not.
func WhyHeld(path string) []string {
	var out []string
	for i := range holds {
		if holds[i].path == path {
			out = append(out, holds[i].why+": "+holds[i].help)
		}
	}
	return out
}
