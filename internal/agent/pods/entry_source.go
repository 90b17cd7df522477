package pods

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// What the sources say of a pod: the API, the directory of manifests, and the runtime where neither has it.

// foundInRuntime is a pod that the runtime has, and no source yet.
func (e *entry) foundInRuntime(who identity, states map[string]int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unclaimed = who
	e.summary = states
	e.dirty.All = true
}

// foundOutside is a pod of which there are remains outside the runtime only: directories, logs, a cgroup.
func (e *entry) foundOutside() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.unclaimed = identity{name: string(e.uid)}
	e.source = sourceGone
	e.dirty.All = true
}

// claim notes that a source has the pod, and reports whether none had before.
func (e *entry) claim(static bool) (first bool) {
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

// mayBeStatic reports whether the pod is static, as far as is known: one that only the runtime knows may be one, too.
// known says that it is.
func (e *entry) mayBeStatic() (known, may bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.pod != nil, e.pod == nil || e.source == sourceDirectory
}

// set gives the entry its latest object and says whether it changed in a way that a worker must look at.
func (e *entry) set(pod *corev1.Pod, now unit.Instant) (changed bool) {
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

// vanish says that the pod's object is gone.
func (e *entry) vanish(now unit.Instant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.source = sourceGone
	e.mergeStop(now, e.grace(), podlife.StopOrder{Remove: true})
}

// deletable reports whether the API has an object of the pod that the agent is to delete once the pod has ended.
func (e *entry) deletable() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.source != sourceGone && e.source != sourceDirectory
}

// image is the pod as the API has it: of a static pod its mirror; nil: not seen yet.
func (e *entry) image() *corev1.Pod {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mirror != nil {
		return e.mirror
	}
	return e.pod
}

func (e *entry) mirrorUID() types.UID {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mirror == nil {
		return ""
	}
	return e.mirror.UID
}

// setMirror is the API's image of a static pod, to which its status is written. It reports whether that is another
// object than before.
func (e *entry) setMirror(mirror *corev1.Pod) (fresh bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	fresh = e.mirror == nil || e.mirror.UID != mirror.UID
	if fresh {
		e.report.Replaced(mirror)
	}
	e.mirror = mirror
	return fresh
}
