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
	// latest returns the API object to which the pod's status is written, as the watch last delivered it, and the latest
	// status. The object is nil if it does not exist (yet or any more). The phase is empty if there is no status yet.
	// Neither is modified after it was returned.
	latest func() (object *corev1.Pod, status corev1.PodStatus)

	// changed is when the status began to differ from the API's; zero: it does not differ. Guarded by the Reporter's mu.
	changed time.Time

	mu sync.Mutex // guards everything that follows; latest is not called with it
	// seen is the resourceVersion that the watch delivered last; empty: versions are not compared.
	seen string
	// written is the status that the API has, from the answer to the last write or from the object that replaced another
	// one. nil: the API has the status of the object that latest returns.
	written *corev1.PodStatus
	version string        // resourceVersion of the last write; empty: there was none
	writing chan struct{} // closed when the present write is over; nil: there is none
	again   bool          // another write was requested during the present one
}

// NewPod returns the handle of a pod; see Pod for latest.
func NewPod(uid types.UID, latest func() (object *corev1.Pod, status corev1.PodStatus)) *Pod {
	return &Pod{uid: uid, latest: latest}
}

// Seen is called when the watch has delivered a version of the object. If another client wrote it after this agent's
// last write, the API's status is that of the object, not the written one.
func (p *Pod) Seen(object *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = object.ResourceVersion
	if newer(p.seen, p.version) {
		p.written = nil
	}
}

// Replaced makes the pod's status be written to this object from now on, instead of the previous one. It is for mirror
// pods. Their versions are not compared, since only this agent writes the status of a mirror pod.
func (p *Pod) Replaced(object *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = ""
	p.written = &object.Status
	p.version = ""
}

// wrote stores the API's answer to a write of the status. The watch may have been faster than the answer, and may
// already have delivered a later write of another client.
func (p *Pod) wrote(answer *corev1.Pod) {
	status := answer.Status // a copy: a pointer into the answer would keep the whole pod in memory
	p.mu.Lock()
	defer p.mu.Unlock()
	p.written = &status
	p.version = answer.ResourceVersion
	if p.seen != "" && newer(p.seen, p.version) {
		p.written = nil
	}
}

// known returns the status that the API is known to have.
func (p *Pod) known(object *corev1.Pod) *corev1.PodStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.written != nil {
		return p.written
	}
	return &object.Status
}

// overwritten reports whether another client wrote the object last, and the object's status differs from the latest
// one.
func (p *Pod) overwritten() bool {
	object, status := p.latest()
	p.mu.Lock()
	written := p.written
	p.mu.Unlock()
	return written == nil && object != nil && status.Phase != "" && !sameStatus(object.Status, status)
}

// UpToDate reports whether the API is known to have the latest status, or has no object to write it to.
func (p *Pod) UpToDate() bool {
	object, status := p.latest()
	return object == nil || status.Phase == "" || sameStatus(*p.known(object), status)
}

// beginWrite begins a write of the status. There is one write per pod at a time: during another one it returns false,
// and then the latest status is written after that one.
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

// awaitWrite waits until the present write is over, and begins the last one.
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

// endWrite ends a write, and reports whether another one was requested meanwhile.
func (p *Pod) endWrite() (again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.writing)
	p.writing = nil
	return p.again
}

// newer reports whether version is later than the other one. Resource versions are growing numbers (KEP-5504); any
// other text counts as newer.
func newer(version, than string) bool {
	a, errA := strconv.ParseUint(version, 10, 64)
	b, errB := strconv.ParseUint(than, 10, 64)
	return errA != nil || errB != nil || a > b
}
