package podentry

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// This file has what metrics read of an entry.

// Ending returns the pod (nil: no source has it), and whether it has a stop order or has ended.
func (e *Entry) Ending() (pod *corev1.Pod, ends bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pod, e.stop != nil || ended(&e.status)
}

// Wants returns the pod as its source delivered it last; nil: no source has delivered it.
func (e *Entry) Wants() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.desired
}

// Place is the state of an entry, in the labels of kubelet_working_pods.
type Place struct {
	Lifecycle, Config string
	Static, Active    bool
	Ephemeral         int // containers
}

// Place returns the state of the entry.
func (e *Entry) Place() Place {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := Place{Lifecycle: "sync", Config: "desired", Static: e.source == sourceDirectory}
	p.Active = e.pod != nil && translate.PodlifeTerminal(e.pod) == "" && !ended(&e.status)
	switch {
	case e.pod == nil:
		p.Config = "runtime_only"
	case e.source == sourceGone:
		p.Config = "orphan"
	}
	switch {
	case ended(&e.status):
		p.Lifecycle = "terminated"
	case e.stop != nil || e.pod == nil:
		p.Lifecycle = "terminating"
	}
	if e.pod != nil {
		p.Ephemeral = len(e.pod.Spec.EphemeralContainers)
	}
	return p
}
