package pods

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// reporter writes pod statuses to the API server. Per pod only the latest counts: while a write waits its turn, newer
// statuses replace older ones. Changes that somebody waits for (Running, ready, ended) go before those that only
// show progress, which in a burst are often overtaken and never written.
type reporter struct {
	r *Runner

	mu     sync.Mutex
	urgent []*entry
	later  []*entry
	queued map[*entry]bool // true: urgent
	away   time.Duration   // how long the server is left alone after it did not answer; zero: it answers
	until  time.Time       // nothing is written before
	wake   chan struct{}
}

// Writers at the same time, and how long one write may take. Four saturate a control plane on two cores (chosen).
const (
	reportWriters = 4
	reportTimeout = 30 * time.Second
)

// progressDelay is how long a status waits that only shows progress. A pod whose image is here runs before it is over and
// costs one write in place of three (measured 2026-11-20: bind to Running takes 0.16 s); raising it makes slow starts
// look stuck for longer.
const progressDelay = time.Second

// A status that the server answered with an error is tried again after reportRetry, one that it refuses after
// refusedRetry. While the server does not answer at all, the node asks it once per awayMin, doubling to awayMax, for all
// of its pods together: a server that returns meets one request from each node, not one from each pod.
const (
	reportRetry  = time.Second
	refusedRetry = 30 * time.Second
	awayMin      = 500 * time.Millisecond
	awayMax      = 10 * time.Second
)

func newReporter(r *Runner) *reporter {
	return &reporter{r: r, queued: map[*entry]bool{}, wake: make(chan struct{}, reportWriters)}
}

// enqueue has e's latest status written: at once, or if it only shows progress, after progressDelay.
func (p *reporter) enqueue(e *entry) {
	e.mu.Lock()
	urgent := !onlyProgress(&e.status)
	e.mu.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	was, queued := p.queued[e]
	switch {
	case urgent && !was:
		p.queued[e] = true
		p.urgent = append(p.urgent, e) // a second place in line is harmless: taking it clears queued
		p.rouse()
	case !queued:
		p.queued[e] = false
		time.AfterFunc(progressDelay, func() { p.promote(e) })
	}
}

// promote puts an entry in line whose progress nobody overtook.
func (p *reporter) promote(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if urgent, queued := p.queued[e]; queued && !urgent {
		p.later = append(p.later, e)
		p.rouse()
	}
}

// rouse wakes a writer. It never waits: a full channel means that all of them are being woken.
func (p *reporter) rouse() {
	select {
	case p.wake <- struct{}{}:
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
			if list[i].State.Terminated != nil || w != nil && w.Reason != "ContainerCreating" && w.Reason != "PodInitializing" {
				return false
			}
		}
	}
	return true
}

func (p *reporter) take() *entry {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, line := range []*[]*entry{&p.urgent, &p.later} {
		for len(*line) > 0 {
			e := (*line)[0]
			*line = (*line)[1:]
			if _, queued := p.queued[e]; queued {
				delete(p.queued, e)
				return e
			}
		}
	}
	return nil
}

func (p *reporter) run(ctx context.Context) {
	var writers sync.WaitGroup
	for range reportWriters {
		writers.Go(func() { p.write(ctx) })
	}
	writers.Wait()
}

func (p *reporter) write(ctx context.Context) {
	for {
		if !p.allowed(ctx) {
			return
		}
		if e := p.take(); e != nil {
			p.one(ctx, e)
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
	}
}

// allowed waits while the server is left alone; false means that ctx ended.
func (p *reporter) allowed(ctx context.Context) bool {
	for {
		p.mu.Lock()
		wait := time.Until(p.until)
		p.mu.Unlock()
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
func (p *reporter) answered(yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if yes {
		p.away = 0
		return
	}
	if time.Now().Before(p.until) {
		return // another writer noted it
	}
	p.away = min(max(2*p.away, awayMin), awayMax)
	// The jitter keeps a fleet's nodes from returning in step.
	p.until = time.Now().Add(p.away/2 + rand.N(p.away))
}

// beginWrite begins a write of the status, one per pod at a time. While another is under way it returns false, and what there is to
// write then is written after that.
func (e *entry) beginWrite() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.writing != nil {
		e.rewrite = true
		return false
	}
	e.writing, e.rewrite = make(chan struct{}), false
	return true
}

// awaitWrite begins the last write, when the one that is under way is over.
func (e *entry) awaitWrite(ctx context.Context) error {
	for {
		e.mu.Lock()
		over := e.writing
		if over == nil {
			e.writing, e.rewrite = make(chan struct{}), false
			e.mu.Unlock()
			return nil
		}
		e.mu.Unlock()
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// endWrite ends a write, and has the latest status written if somebody wanted that meanwhile.
func (p *reporter) endWrite(e *entry) {
	e.mu.Lock()
	close(e.writing)
	again := e.rewrite
	e.writing = nil
	e.mu.Unlock()
	if again {
		p.enqueue(e)
	}
}

// one writes e's status, or puts it back for later.
func (p *reporter) one(ctx context.Context, e *entry) {
	if !e.beginWrite() {
		return // a writer must not wait for the one that is at it: others have something to say, too
	}
	defer p.endWrite(e)
	pod, status, ok := p.r.reportable(e)
	if !ok {
		return
	}
	err := p.say(ctx, e, pod, status)
	var answer apierrors.APIStatus
	p.answered(err == nil || errors.As(err, &answer))
	switch {
	case err == nil, ctx.Err() != nil:
	case apierrors.IsNotFound(err):
		// The object is gone; the watch will say so.
	case apierrors.IsConflict(err):
		// Another pod of that name, which the watch will tell, or too many writers at once.
		p.r.log(e).Debug("status not written, trying again if the pod is still there", "err", err)
		time.AfterFunc(refusedRetry, func() { p.enqueue(e) })
	case refused(err), apierrors.IsForbidden(err):
		p.r.log(e).Error("the API server refuses the status", "err", err)
		time.AfterFunc(refusedRetry, func() { p.enqueue(e) })
	case answer != nil:
		p.r.log(e).Warn("status not written, trying again", "err", err)
		time.AfterFunc(reportRetry+rand.N(reportRetry), func() { p.enqueue(e) })
	default:
		p.r.log(e).Debug("the API server does not answer, status kept", "err", err)
		p.enqueue(e)
	}
}

// reportable returns the object to write e's status to. A static pod has its mirror's; before the mirror exists there is
// nothing to write to.
func (r *Runner) reportable(e *entry) (pod *corev1.Pod, status corev1.PodStatus, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.pod == nil || e.gone || e.forgotten || e.status.Phase == "" {
		return nil, status, false
	}
	pod = e.pod
	if e.static {
		if pod = e.mirror; pod == nil {
			return nil, status, false
		}
	}
	return pod, *e.status.DeepCopy(), true
}

// known is the status that the API is known to have.
func (e *entry) known(pod *corev1.Pod) *corev1.PodStatus {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.written != nil {
		return e.written
	}
	return &pod.Status
}

// say writes the status, and where the server refuses it, what others wait for most: phase, reason and conditions, without what is
// new of containers, whose texts are users'. That the whole was refused is an error all the same.
func (p *reporter) say(ctx context.Context, e *entry, pod *corev1.Pod, status corev1.PodStatus) error {
	err := p.patch(ctx, e, pod, status)
	if !refused(err) {
		return err
	}
	known := e.known(pod)
	status.InitContainerStatuses, status.ContainerStatuses = known.InitContainerStatuses, known.ContainerStatuses
	status.EphemeralContainerStatuses = known.EphemeralContainerStatuses
	if again := p.patch(ctx, e, pod, status); again != nil {
		p.r.log(e).Debug("nor does the API server take the status without its containers", "err", again)
	}
	return err
}

// refused reports whether the server will never take what it was sent. What is too large for etcd is an internal error to it.
func refused(err error) bool {
	large := apierrors.IsInternalError(err) && (strings.Contains(err.Error(), "too large") || strings.Contains(err.Error(), "larger than max"))
	return large || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// patch writes the status unless the server is known to have it.
func (p *reporter) patch(ctx context.Context, e *entry, pod *corev1.Pod, status corev1.PodStatus) error {
	known := e.known(pod)
	if sameStatus(*known, status) {
		return nil
	}
	body, err := patchBody(pod, *known, status)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	answer := &corev1.Pod{}
	if err := p.r.Client.Patch(ctx, kube.Pods, pod.Namespace, pod.Name, types.StrategicMergePatchType, body, answer, "status"); err != nil {
		return fmt.Errorf("write status of %s: %w", e.name(), err)
	}
	e.wrote(answer)
	return nil
}

// remove writes the last status and deletes the object with no grace: the pod has ended here. A status that the server refuses must
// not keep the pod for ever.
func (p *reporter) remove(ctx context.Context, e *entry, pod *corev1.Pod) error {
	if err := e.awaitWrite(ctx); err != nil {
		return err
	}
	defer p.endWrite(e)
	if pod, status, ok := p.r.reportable(e); ok {
		switch err := p.say(ctx, e, pod, status); {
		case refused(err):
			p.r.log(e).Error("the API server refuses the last status; the pod goes without it", "err", err)
		case err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err):
			return err
		}
	}
	return p.r.deleteObject(ctx, pod)
}

// deleteObject deletes a pod of this node with no grace, and returns nil once the server no longer has it.
//
// For a node, "not found" alone does not mean that. Admission (NodeRestriction) looks the pod up in a cache that is behind while
// kube-apiserver or etcd start, and says of a pod that it does not know yet that there is none. So we look for ourselves.
func (r *Runner) deleteObject(ctx context.Context, pod *corev1.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	zero := int64(0)
	err := r.Client.Delete(ctx, kube.Pods, pod.Namespace, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &pod.UID},
	})
	if err == nil || !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return err
	}
	has, listErr := r.hasObject(ctx, pod)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	if has {
		return fmt.Errorf("delete pod %s/%s: it is there, yet the API server says: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// hasObject reports whether the API has that very pod. It lists the pods of this node, which the Node authorizer always lets a node
// do: a get of a pod that is gone is forbidden, because nothing relates the node to it any more.
func (r *Runner) hasObject(ctx context.Context, pod *corev1.Pod) (bool, error) {
	which := fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", r.Node), fields.OneTermEqualSelector("metadata.name", pod.Name))
	list := &corev1.PodList{}
	if err := r.Client.List(ctx, kube.Pods, pod.Namespace, metav1.ListOptions{FieldSelector: which.String()}, list); err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(p corev1.Pod) bool { return p.UID == pod.UID }), nil
}

// recheck has the status compared with the server's again, after somebody else may have written it.
func (p *reporter) recheck(e *entry) {
	e.mu.Lock()
	differs := e.written == nil && e.status.Phase != "" && !e.static && e.pod != nil && !sameStatus(e.pod.Status, e.status)
	e.mu.Unlock()
	if differs {
		p.enqueue(e)
	}
}
