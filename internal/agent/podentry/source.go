package podentry

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// What the sources say of a pod: the API, the directory of manifests, and the runtime where neither has it.

// FoundInRuntime is a pod that the runtime has, and no source yet.
func (e *Entry) FoundInRuntime(who Identity, states map[string]int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unclaimed = who
	e.summary = states
	e.dirty.All = true
}

// FoundOutside is a pod of which there are remains outside the runtime only: directories, logs, a cgroup.
func (e *Entry) FoundOutside() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unclaimed = Identity{Name: string(e.uid)}
	e.source = sourceGone
	e.dirty.All = true
}

// Claim notes that a source has the pod, and reports whether none had before.
func (e *Entry) Claim(static bool) (first bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case static:
		e.source = sourceDirectory
	case e.source != sourceGone: // else a watch that is behind shows it once more
		e.source = sourceAPI
	}
	return e.pod == nil
}

// MayBeStatic reports whether the pod is static, as far as is known: one that only the runtime knows may be one, too.
// known says that it is.
func (e *Entry) MayBeStatic() (known, may bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pod != nil, e.pod == nil || e.source == sourceDirectory
}

// Set gives the entry its latest object and says whether it changed in a way that a worker must look at.
func (e *Entry) Set(pod *corev1.Pod, now unit.Instant) (changed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.pod
	e.desired = pod
	e.pod = e.allocated.In(pod)
	if e.allocated.Meets(pod) { // it has what it asks for: a resize that was taken back waits no more
		e.pending = nil
		e.pendingSince = 0
	}
	if e.source != sourceDirectory { // else the status is written to the mirror
		e.report.Seen(pod)
	}
	if pod.DeletionTimestamp != nil {
		e.mergeStop(now, translate.DeletionGrace(pod), podlife.StopOrder{Remove: true})
	}
	return old == nil || old.ResourceVersion != pod.ResourceVersion
}

// Vanish says that the pod's object is gone.
func (e *Entry) Vanish(now unit.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.source = sourceGone
	e.mergeStop(now, e.grace(), podlife.StopOrder{Remove: true})
}

// Deletable reports whether the API has an object of the pod that the agent is to delete once the pod has ended.
func (e *Entry) Deletable() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.source != sourceGone && e.source != sourceDirectory
}

// Image is the pod as the API has it: of a static pod its mirror; nil: not seen yet.
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

// SetMirror is the API's image of a static pod, to which its status is written. It reports whether that is another
// object than before.
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
