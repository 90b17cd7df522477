package podentry

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// This file has what the sources deliver: the API, the directory of manifests, and the runtime for pods that neither
// has.

// FoundInRuntime is called for a pod that the runtime has and no source has delivered yet.
func (e *Entry) FoundInRuntime(who Identity, states map[string]int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unclaimed = who
	e.summary = states
	e.dirty.All = true
}

// FoundOutside is called for a pod that has remains outside the runtime only: directories, logs, a cgroup.
func (e *Entry) FoundOutside() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unclaimed = Identity{Name: string(e.uid)}
	e.source = sourceGone
	e.dirty.All = true
}

// Claim is called when a source has delivered the pod. It reports whether no source had it before.
func (e *Entry) Claim(static bool) (first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case static:
		e.source = sourceDirectory
	case e.source != sourceGone: // if it is gone, a delayed watch delivers it once more
		e.source = sourceAPI
	}
	return e.pod == nil
}

// MayBeStatic reports whether the pod is or may be static. known means that a source has the pod, so that may says
// whether it is. A pod that only the runtime has may be static.
func (e *Entry) MayBeStatic() (known, may bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pod != nil, e.pod == nil || e.source == sourceDirectory
}

// Set stores the pod's latest object and reports whether it changed in a way that the worker must observe.
func (e *Entry) Set(pod *corev1.Pod, now unit.Instant) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.pod
	e.desired = pod
	e.pod = e.allocated.In(pod)
	if e.allocated.Meets(pod) { // it has what it requests, so that no resize is pending any more
		e.pending = nil
		e.pendingSince = 0
	}
	if e.source != sourceDirectory { // a static pod's status is written to its mirror
		e.report.Seen(pod)
	}
	if pod.DeletionTimestamp != nil {
		e.mergeStop(now, translate.DeletionGrace(pod), podlife.StopOrder{Remove: true})
	}
	return old == nil || old.ResourceVersion != pod.ResourceVersion
}

// Vanish is called when the pod's object is gone.
func (e *Entry) Vanish(now unit.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.source = sourceGone
	e.mergeStop(now, e.grace(), podlife.StopOrder{Remove: true})
}

// Deletable reports whether the API has an object of the pod that the agent must delete once the pod has ended.
func (e *Entry) Deletable() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.source != sourceGone && e.source != sourceDirectory
}

// Image returns the pod's object in the API, which is the mirror of a static pod; nil: not delivered yet.
func (e *Entry) Image() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mirror != nil {
		return e.mirror
	}
	return e.pod
}

// MirrorUID returns the UID of the mirror of a static pod; empty: there is none.
func (e *Entry) MirrorUID() types.UID {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mirror == nil {
		return ""
	}
	return e.mirror.UID
}

// SetMirror stores the mirror of a static pod, to which its status is written. It reports whether it is another object
// than before.
func (e *Entry) SetMirror(mirror *corev1.Pod) (fresh bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fresh = e.mirror == nil || e.mirror.UID != mirror.UID
	if fresh {
		e.report.Replaced(mirror)
	}
	e.mirror = mirror
	return fresh
}
