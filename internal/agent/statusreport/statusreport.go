// Package statusreport brings the statuses of this node's pods to the API server (the kubelet's status manager).
//
// # Model
//
// The owner of a pod computes its status and keeps it; a Pod here is the handle by which the reporter asks for the
// latest one. Enqueue says that it differs from the one before. Per pod only the latest status counts: while a write
// waits, newer statuses take the place of older ones. Statuses that users and controllers wait for (the pod runs, is
// ready, has ended) are written before those that only show progress. In a burst the latter are often overtaken and
// never written.
//
// A status is written as a patch: the difference from the status that the API is known to have. That is the answer to
// the last write, until the watch shows a version of the object from after it; then it is the object's own status.
//
// # Invariants
//
//   - One write per pod at a time. A writer that finds one under way leaves a mark instead of waiting, and the latest
//     status is written after the first. So a write that hangs holds up its own pod only.
//   - Conditions that others own are never written.
//   - An API server that does not answer is asked once per interval for all pods together. One that answers with an
//     error is asked again for that pod only.
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

// Writers at the same time, and how long one write may take. Four saturate a control plane on two cores (chosen).
const (
	writers      = 4
	writeTimeout = 30 * time.Second
)

// progressDelay is how long a status waits that only shows progress. A pod whose image is here runs before it is over
// and costs one write in place of three (measured 2026-11-20: bind to Running takes 0.16 s); raising it makes slow
// starts look stuck for longer.
const progressDelay = time.Second

// busyDelay is how long such a status waits while more pods want to start than may at the same time: the machine is
// busy with the starts then, and most of these pods run before it is over.
const busyDelay = throttle.BusyMax

// A status that the server answered with an error is tried again after retryDelay, one that it refuses after
// refusedDelay. While the server does not answer at all, the node asks it once per awayMin, doubling to awayMax, for
// all of its pods together: a server that returns meets one request from each node, not one from each pod.
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

	// Busy reports whether pods wait for others to start. Optional; set before Run. It is called with mu locked.
	Busy func() bool

	client *kube.Client
	node   string
	wake   chan struct{} // wakes a writer

	mu sync.Mutex // guards everything that follows
	// queued has the pods whose status waits to be written; true: it is urgent. A pod that is not urgent is in no line
	// until progressDelay is over.
	queued map[*Pod]bool
	// urgent and later are the lines, first come first served. A pod that is in a line and not in queued any more was
	// written meanwhile, and is passed over.
	urgent []*Pod
	later  []*Pod
	away   time.Duration // how long the server is left alone after it did not answer; zero: it answers
	until  time.Time     // nothing is written before
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

// Enqueue has the pod's latest status written: at once, or if it only shows progress, after progressDelay or busyDelay.
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
		r.urgent = append(r.urgent, p) // a second place in line is harmless: take passes over it
		r.rouse()
	case !queued:
		r.queued[p] = false
		time.AfterFunc(progressDelay, func() { r.promote(p) })
	}
}

// Recheck enqueues the pod if the API has another status than its latest, after another client may have written it.
func (r *Reporter) Recheck(p *Pod) {
	if p.overwritten() {
		r.Enqueue(p)
	}
}

// promote puts a pod in line whose progress nothing overtook, or lets it wait on while the node is busy.
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

// rouse wakes a writer. It never waits: a full channel means that all of them are being woken.
func (r *Reporter) rouse() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// onlyProgress reports whether a status says no more than that the pod is on its way.
func onlyProgress(s *corev1.PodStatus) bool {
	if s.Phase != corev1.PodPending {
		return false
	}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses} {
		for i := range list {
			w := list[i].State.Waiting
			if list[i].State.Terminated != nil || w != nil && w.Reason != podlife.ReasonContainerCreating && w.Reason != podlife.ReasonPodInitializing {
				return false
			}
		}
	}
	return true
}

// take takes the next pod out of the lines; nil: none waits.
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

// allowed waits while the server is left alone; false means that ctx ended.
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

// answered notes whether the server answered.
func (r *Reporter) answered(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if yes {
		r.away = 0
		return
	}
	if time.Now().Before(r.until) {
		return // another writer noted it
	}
	r.away = min(max(2*r.away, awayMin), awayMax)
	// The jitter keeps a fleet's nodes from returning in step.
	r.until = time.Now().Add(r.away/2 + rand.N(r.away))
}

// endWrite ends a write, and has the latest status written if another write was wanted meanwhile.
func (r *Reporter) endWrite(p *Pod) {
	if again := p.endWrite(); again {
		r.Enqueue(p)
	}
}

// one writes the pod's latest status, or puts it back for later.
func (r *Reporter) one(ctx context.Context, p *Pod) {
	if !p.beginWrite() {
		return // a writer must not wait for the one that is at it: others have something to say, too
	}
	defer r.endWrite(p)
	object, status := p.latest()
	if object == nil || status.Phase == "" {
		return
	}
	changed := r.takeChange(p)
	err := r.say(ctx, p, object, status)
	r.countWrite(p, changed, err)
	var answer apierrors.APIStatus
	r.answered(err == nil || errors.As(err, &answer))
	log := logOf(p, object)
	switch {
	case err == nil, ctx.Err() != nil:
	case apierrors.IsNotFound(err):
		// The object is gone; the watch will say so.
	case apierrors.IsConflict(err):
		// Another pod of that name, which the watch will show, or too many writers at once.
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

// takeChange returns since when the API lacks the status that is being written; zero: it lacks nothing. A change from
// now on is another one.
func (r *Reporter) takeChange(p *Pod) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	changed := p.changed
	p.changed = time.Time{}
	return changed
}

// countWrite measures a write that was accepted. After any other the API still lacks the status.
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

// refused reports whether the server will never take what it was sent. What is too large for etcd is an internal error
// to it.
func refused(err error) bool {
	large := apierrors.IsInternalError(err) &&
		(strings.Contains(err.Error(), "too large") || strings.Contains(err.Error(), "larger than max"))
	return large || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

func logOf(p *Pod, object *corev1.Pod) *slog.Logger {
	return slog.With("pod", object.Namespace+"/"+object.Name, "uid", p.uid)
}
