// Package statusreport writes the statuses of this node's pods to the API server (the kubelet's status manager).
//
// # Model
//
// The owner of a pod computes and stores its status. A Pod is the handle with which the reporter gets the latest one.
// Enqueue is called when the status has changed. Only the latest status of a pod is written: while a write waits, newer
// statuses replace older ones. Statuses that users and controllers wait for (the pod runs, is ready, has ended) are
// written before those that only show progress. In a burst the latter are often replaced and never written.
//
// A status is written as a patch: the difference from the status that the API is known to have. That is the answer to
// the last write, until the watch delivers a later version of the object; then it is that object's status.
//
// # Invariants
//
//   - There is one write per pod at a time. A second writer does not wait for the first: it requests that the latest
//     status is written after the first write. So a write that hangs delays its own pod only.
//   - Conditions that other clients own are never written.
//   - While the API server does not answer, it gets one request per interval for all pods together. If it answers with
//     an error, only that pod's write is tried again.
//   - Delete returns nil only when the API no longer has the object.
//
// # What it does not do
//
// It does not compute statuses (podstatus), and it does not decide when a pod may be deleted (core/podlife).
package statusreport

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/plimsoll-dev/plimsoll/internal/core/podlife"
	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

const (
	// writers is how many statuses are written at the same time. Chosen: four saturate a control plane on two cores.
	writers = 4
	// writeTimeout bounds one write (chosen).
	writeTimeout = 30 * time.Second
)

// progressDelay is how long a status waits that only shows progress. A pod whose image is on the node runs before the
// delay is over, and then costs one write instead of three (measured 2026-11-20: bind to Running takes 0.16 s). With a
// longer delay, slow starts look stuck for longer.
const progressDelay = time.Second

// busyDelay is how long such a status waits while pods wait for others to start. Then the machine is busy with the
// starts, and most of these pods run before the delay is over.
const busyDelay = throttle.BusyMax

// After an error of the server, a write is tried again after retryDelay; if the server refused the status, after
// refusedDelay. While the server does not answer at all, the node sends one request for all of its pods together, after
// awayMin, which doubles up to awayMax. So a server that returns gets one request from each node, not one from each
// pod. All are chosen.
const (
	retryDelay   = time.Second
	refusedDelay = 30 * time.Second
	awayMin      = 500 * time.Millisecond
	awayMax      = 10 * time.Second
)

// Reporter writes the statuses of one node's pods.
type Reporter struct {
	// Written is called when the API server has accepted a status, with the time since it changed. Optional; set before
	// Run.
	Written func(after time.Duration)

	// Busy reports whether pods wait for others to start. Optional; set before Run. It is called while mu is held.
	Busy func() bool

	client *kube.Client
	node   string
	wake   chan struct{} // wakes a writer

	mu sync.Mutex // guards everything that follows
	// queued are the pods whose status waits to be written; true: it is urgent. A pod that is not urgent is in neither
	// queue until its delay is over.
	queued map[*Pod]bool
	// urgent and later are queues, first come first served. take passes over a pod that is not in queued any more: it was
	// written meanwhile.
	urgent []*Pod
	later  []*Pod
	away   time.Duration // the pause after the server did not answer; zero: it answers
	until  time.Time     // nothing is written before then
}

// New prepares a reporter for the pods of a node.
func New(client *kube.Client, node string) *Reporter {
	return &Reporter{client: client, node: node, queued: map[*Pod]bool{}, wake: make(chan struct{}, writers)}
}

// Run writes until ctx ends.
func (r *Reporter) Run(ctx context.Context) {
	var running sync.WaitGroup
	for range writers {
		running.Go(func() { r.write(ctx) })
	}
	running.Wait()
}

// Enqueue has the pod's latest status written: at once, or after progressDelay or busyDelay if it only shows progress.
func (r *Reporter) Enqueue(p *Pod) {
	_, status := p.latest()
	urgent := !onlyProgress(&status)
	r.mu.Lock()
	defer r.mu.Unlock()
	was, queued := r.queued[p]
	if p.changed.IsZero() {
		p.changed = time.Now()
	}
	switch {
	case urgent && !was:
		r.queued[p] = true
		r.urgent = append(r.urgent, p) // the pod may be in the queue already: take passes over the second entry
		r.rouse()
	case !queued:
		r.queued[p] = false
		time.AfterFunc(progressDelay, func() { r.promote(p) })
	}
}

// Recheck enqueues the pod if another client has written its object and the status there is not the latest.
func (r *Reporter) Recheck(p *Pod) {
	if p.overwritten() {
		r.Enqueue(p)
	}
}

// promote puts a pod into the queue when its delay is over, unless its status was written meanwhile. While the node is
// busy, the pod waits longer.
func (r *Reporter) promote(p *Pod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if urgent, queued := r.queued[p]; queued && !urgent {
		if r.Busy != nil && r.Busy() && time.Since(p.changed) < busyDelay {
			time.AfterFunc(progressDelay, func() { r.promote(p) })
			return
		}
		r.later = append(r.later, p)
		r.rouse()
	}
}

// rouse wakes a writer. It never waits: if the channel is full, all writers are being woken.
func (r *Reporter) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// onlyProgress reports whether a status only shows that the pod is starting.
func onlyProgress(s *corev1.PodStatus) bool {
	if s.Phase != corev1.PodPending {
		return false
	}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			w := list[i].State.Waiting
			if list[i].State.Terminated != nil || w != nil && w.Reason != podlife.ReasonContainerCreating &&
				w.Reason != podlife.ReasonPodInitializing {
				return false
			}
		}
	}
	return true
}

// take takes the next pod out of the queues; nil: there is none.
func (r *Reporter) take() *Pod {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, line := range []*[]*Pod{&r.urgent, &r.later} {
		for len(*line) > 0 {
			p := (*line)[0]
			*line = (*line)[1:]
			if _, queued := r.queued[p]; queued {
				delete(r.queued, p)
				return p
			}
		}
	}
	return nil
}

func (r *Reporter) write(ctx context.Context) {
	for {
		if !r.allowed(ctx) {
			return
		}
		if p := r.take(); p != nil {
			r.one(ctx, p)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
	}
}

// allowed waits until a request may be sent; false means that ctx ended.
func (r *Reporter) allowed(ctx context.Context) bool {
	for {
		r.mu.Lock()
		wait := time.Until(r.until)
		r.mu.Unlock()
		if wait <= 0 {
			return ctx.Err() == nil
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

// answered records whether the server answered.
func (r *Reporter) answered(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if yes {
		r.away = 0
		return
	}
	if time.Now().Before(r.until) {
		return // another writer has recorded it
	}
	r.away = min(max(2*r.away, awayMin), awayMax)
	// The jitter keeps the nodes of a cluster from sending requests at the same moment.
	r.until = time.Now().Add(r.away/2 + rand.N(r.away))
}

// endWrite ends a write, and has the latest status written if another write was requested meanwhile.
func (r *Reporter) endWrite(p *Pod) {
	if again := p.endWrite(); again {
		r.Enqueue(p)
	}
}

// one writes the pod's latest status, or enqueues the pod again after an error.
func (r *Reporter) one(ctx context.Context, p *Pod) {
	if !p.beginWrite() {
		return // a writer must not wait for another one's write, since other pods wait for it
	}
	defer r.endWrite(p)
	object, status := p.latest()
	if object == nil || status.Phase == "" {
		return
	}
	changed := r.takeChange(p)
	err := r.writeOrReduce(ctx, p, object, status)
	r.countWrite(p, changed, err)
	var answer apierrors.APIStatus
	r.answered(err == nil || errors.As(err, &answer))
	log := logOf(p, object)
	switch {
	case err == nil, ctx.Err() != nil:
	case apierrors.IsNotFound(err):
		// The object is gone; the watch will deliver that.
	case apierrors.IsConflict(err):
		// There is another pod of that name, which the watch will deliver, or too many clients wrote at once.
		log.Debug("status not written, trying again if the pod is still there", "err", err)
		time.AfterFunc(refusedDelay, func() { r.Enqueue(p) })
	case refused(err), apierrors.IsForbidden(err):
		log.Error("the API server refuses the status", "err", err)
		time.AfterFunc(refusedDelay, func() { r.Enqueue(p) })
	case answer != nil:
		log.Warn("status not written, trying again", "err", err)
		time.AfterFunc(retryDelay+rand.N(retryDelay), func() { r.Enqueue(p) })
	default:
		log.Debug("the API server does not answer, status kept", "err", err)
		r.Enqueue(p)
	}
}

// takeChange returns since when the API's status differs from the one that is being written, and resets that time;
// zero: it does not differ.
func (r *Reporter) takeChange(p *Pod) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := p.changed
	p.changed = time.Time{}
	return changed
}

// countWrite measures a write that was accepted. After a failed one, it restores the time that takeChange returned.
func (r *Reporter) countWrite(p *Pod, changed time.Time, err error) {
	if changed.IsZero() {
		return
	}
	if err == nil {
		if r.Written != nil {
			r.Written(time.Since(changed))
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	p.changed = changed
}

// refused reports whether the server will never accept what it was sent. If an object is too large for etcd, the server
// answers with an internal error.
func refused(err error) bool {
	large := apierrors.IsInternalError(err) &&
		(strings.Contains(err.Error(), "too large") || strings.Contains(err.Error(), "larger than max"))
	return large || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

func logOf(p *Pod, object *corev1.Pod) *slog.Logger {
	return slog.With("pod", object.Namespace+"/"+object.Name, "uid", p.uid)
}
