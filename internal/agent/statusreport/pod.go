package statusreport

import (
	"context"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod is one pod as far as its status is written. Its methods may be called by any goroutine.
type Pod struct {
	uid types.UID // for messages
	// latest returns the object of the API to which the pod's status is written, as the API last showed it, and the
	// latest status. The object is nil where there is none, not yet or not any more; the phase of the status is empty
	// where there is none yet. Neither is modified once it was returned.
	latest func() (object *corev1.Pod, status corev1.PodStatus)

	// changed is when the status became another than the API has; zero: it is the same. Guarded by the Reporter's mu.
	changed time.Time

	mu sync.Mutex // guards everything that follows; latest is not called with it
	// seen is the resourceVersion of the object as the watch showed it last; empty: it is not compared.
	seen string
	// written is the status that the API has, as of the last write or of the object that replaced another one. nil: the
	// status of the object that latest returns is what the API has.
	written *corev1.PodStatus
	version string        // resourceVersion of the last write; empty: there was none
	writing chan struct{} // closed when the write that is under way is over. nil: none is
	again   bool          // another write was wanted meanwhile
}

// NewPod returns the handle of a pod; see Pod for latest.
func NewPod(uid types.UID, latest func() (object *corev1.Pod, status corev1.PodStatus)) *Pod {
	return &Pod{uid: uid, latest: latest}
}

// Seen says that the watch has shown the object in this version. If another client wrote it after the last write here,
// what was written is no longer what the API has.
func (p *Pod) Seen(object *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = object.ResourceVersion
	if newer(p.seen, p.version) {
		p.written = nil
	}
}

// Replaced says that the pod's status is written to this object from now on, in the place of the one before it. Its
// versions are not compared: only this agent writes the status of a mirror pod.
func (p *Pod) Replaced(object *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = ""
	p.written = &object.Status
	p.version = ""
}

// wrote notes the API's answer to a write of the status. The watch may have been faster than the answer, and have shown
// that another client has written since.
func (p *Pod) wrote(answer *corev1.Pod) {
	status := answer.Status // alone: a pointer into the answer would keep the whole pod
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written = &status
	p.version = answer.ResourceVersion
	if p.seen != "" && newer(p.seen, p.version) {
		p.written = nil
	}
}

// known is the status that the API is known to have.
func (p *Pod) known(object *corev1.Pod) *corev1.PodStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.written != nil {
		return p.written
	}
	return &object.Status
}

// overwritten reports whether another client wrote the object last, and its status is not the latest.
func (p *Pod) overwritten() bool {
	object, status := p.latest()
	p.mu.Lock()
	written := p.written
	p.mu.Unlock()
	return written == nil && object != nil && status.Phase != "" && !sameStatus(object.Status, status)
}

// beginWrite begins a write of the status, one per pod at a time. While another is under way it returns false, and what
// there is to write then is written after that.
func (p *Pod) beginWrite() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.writing != nil {
		p.again = true
		return false
	}
	p.writing = make(chan struct{})
	p.again = false
	return true
}

// awaitWrite begins the last write, when the one that is under way is over.
func (p *Pod) awaitWrite(ctx context.Context) error {
	for {
		p.mu.Lock()
		over := p.writing
		if over == nil {
			p.writing = make(chan struct{})
			p.again = false
			p.mu.Unlock()
			return nil
		}
		p.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// endWrite ends a write, and reports whether another one was wanted meanwhile.
func (p *Pod) endWrite() (again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.writing)
	p.writing = nil
	return p.again
}

// newer compares resource versions, which are numbers that grow (KEP-5504); anything else counts as newer.
func newer(version, than string) bool {
	a, errA := strconv.ParseUint(version, 10, 64)
	b, errB := strconv.ParseUint(than, 10, 64)
	return errA != nil || errB != nil || a > b
}
