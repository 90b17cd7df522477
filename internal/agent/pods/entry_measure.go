package pods

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// What metrics show of an entry.

// ending returns the pod (nil: no source has it), and whether it is to end or has ended.
func (e *entry) ending() (pod *corev1.Pod, ends bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pod, e.stop != nil || ended(&e.status)
}

// wants returns the pod as it was last asked for; nil: it is new.
func (e *entry) wants() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.desired
}

// place is where an entry is, in the words of kubelet_working_pods.
type place struct {
	lifecycle, config string
	static, active    bool
	ephemeral         int // containers
}

func (e *entry) place() place {
	e.mu.Lock()
	defer e.mu.Unlock()
	p := place{lifecycle: "sync", config: "desired", static: e.source == sourceDirectory}
	p.active = e.pod != nil && translate.PodlifeTerminal(e.pod) == "" && !ended(&e.status)
	switch {
	case e.pod == nil:
		p.config = "runtime_only"
	case e.source == sourceGone:
		p.config = "orphan"
	}
	switch {
	case ended(&e.status):
		p.lifecycle = "terminated"
	case e.stop != nil || e.pod == nil:
		p.lifecycle = "terminating"
	}
	if e.pod != nil {
		p.ephemeral = len(e.pod.Spec.EphemeralContainers)
	}
	return p
}
