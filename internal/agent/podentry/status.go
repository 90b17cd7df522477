package podentry

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podstatus"
	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// This file has a pod's latest status, and the object that it is written to.

// LastStatus returns the status that was computed last; before the first, the status of the given version.
func (e *Entry) LastStatus(pod *corev1.Pod) corev1.PodStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.status.Phase == "" {
		return pod.Status
	}
	return e.status
}

// StatusChange is what a new status says and the previous one did not.
type StatusChange struct {
	Any     bool
	Started bool  // the pod runs for the first time on this node
	Resized int64 // generation of the resize that has been carried out; zero: none
}

// SetStatus stores a status that follows from a decision d on an observation o. pod is the version that the worker
// sees.
func (e *Entry) SetStatus(
	pod *corev1.Pod, status corev1.PodStatus, o podlife.Observation, d podlife.Status,
) (change StatusChange) {
	e.mu.Lock()
	defer e.mu.Unlock()
	runs := status.Phase == corev1.PodRunning
	change.Any = e.status.Phase == "" || !equality.Semantic.DeepEqual(e.status, status)
	change.Started = runs && !e.started && pod.Status.Phase == corev1.PodPending
	change.Resized = e.resized(o, d)
	e.status = status
	e.holding = holding{}
	e.started = e.started || runs
	return change
}

// resized records that a resize is complete, once a step has found nothing more to do. It returns the generation to
// report; zero: none. The caller holds mu.
func (e *Entry) resized(o podlife.Observation, s podlife.Status) int64 {
	generation := o.Resizing.Generation
	under := slices.ContainsFunc(
		s.Conditions, func(c podlife.Condition) bool { return c.Type == podlife.ResizeInProgress },
	)
	if generation == 0 || e.resizing != generation || under {
		return 0
	}
	e.resizing = 0
	if o.Stop != nil || s.Phase == podlife.Succeeded || s.Phase == podlife.Failed {
		return 0
	}
	return generation
}

// toReport returns the object that the pod's status is written to, and the latest status. For a static pod the object
// is its mirror; nil until the mirror exists. Statuses are replaced, never changed, so they may be shared.
func (e *Entry) toReport() (object *corev1.Pod, status corev1.PodStatus) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.pod == nil, e.source == sourceGone, e.phase == PhaseDropped:
		return nil, e.status
	case e.source == sourceDirectory:
		return e.mirror, e.status
	}
	return e.pod, e.status
}

// Current returns the pod with its latest status. Statuses are replaced, never changed, so it may be shared.
func (e *Entry) Current() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == nil {
		return nil
	}
	pod := *e.pod
	if e.status.Phase != "" {
		pod.Status = e.status
		pod.Status.Conditions = podstatus.WithOthers(e.status.Conditions, e.pod.Status.Conditions)
	}
	return &pod
}

// ContainerStatus returns the latest status of a container; nil: there is none yet.
func (e *Entry) ContainerStatus(name string) *corev1.ContainerStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, list := range translate.StatusLists(&e.status) {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
