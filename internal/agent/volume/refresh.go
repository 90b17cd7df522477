package volume

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// refreshers is how many pods are refreshed at the same time. Chosen: one slow answer must not delay the others,
	// and a change of an object that every pod mounts must not take the whole machine.
	refreshers = 4

	// refreshMax bounds one pod's refresh, all API calls for its volumes together.
	refreshMax = 30 * time.Second

	// retryMin and retryMax bound the wait after a failed refresh, which doubles each time and has jitter. Chosen: the
	// kubelet retries with its resync every 1 to 1.5 min; a token of an hour must be renewed within the 12 min of its
	// last fifth.
	retryMin = 5 * time.Second
	retryMax = 2 * time.Minute

	// clockEvery is how often the calendar is compared with the tokens' lifetimes. A timer alone stops while the
	// machine is suspended, and does not see when the clock is set. Chosen: the shortest lifetime of a token is 10 min,
	// and a fifth of that is left when it is renewed.
	clockEvery = time.Minute

	// goneMin is how long an object of a running pod must be missing before that is logged as a warning: the objects of
	// a namespace that is being deleted disappear some moments before its pods. Chosen: the default termination grace
	// period of pods.
	goneMin = 30 * time.Second
)

// refresher refreshes the pods whose content may have changed. While the queue is empty, it has no goroutine.
type refresher struct {
	mu      sync.Mutex
	queue   []types.UID
	queued  map[types.UID]bool
	running int
}

// Changed means that an object that the pod references has changed: its volumes are updated in the background. It is
// for objectcache.New.
func (k *Manager) Changed(uid types.UID) {
	r := &k.refresher
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.queued[uid] || k.ctx.Err() != nil {
		return
	}
	if r.queued == nil {
		r.queued = map[types.UID]bool{}
	}
	r.queued[uid] = true
	r.queue = append(r.queue, uid)
	if r.running < refreshers {
		r.running++
		go k.work()
	}
}

// work refreshes pods until the queue is empty.
func (k *Manager) work() {
	r := &k.refresher
	for {
		r.mu.Lock()
		if len(r.queue) == 0 || k.ctx.Err() != nil {
			r.running--
			r.mu.Unlock()
			return
		}
		uid := r.queue[0]
		r.queue = r.queue[1:]
		delete(r.queued, uid)
		r.mu.Unlock()
		k.refresh(uid)
	}
}

// refresh updates the content of a pod's volumes. Volumes that SetUp has not set up yet are left to SetUp.
func (k *Manager) refresh(uid types.UID) {
	k.mu.Lock()
	s := k.byPod[uid]
	k.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.pod == nil {
		return
	}
	if latest := s.latest.Load(); latest != s.pod {
		s.pod = latest
		if err := k.Objects.Track(latest); err != nil {
			slog.Warn("volume: objects that a changed pod references are not watched", "pod", latest.Namespace+"/"+latest.Name,
				"uid", uid, "error", err)
		}
	}
	ctx, cancel := context.WithTimeout(k.ctx, refreshMax)
	defer cancel()
	var failures Failures
	for i := range s.pod.Spec.Volumes {
		v := &s.pod.Spec.Volumes[i]
		if !readOnly(v) || !s.ready[v.Name] {
			continue
		}
		if err := k.setUpContent(ctx, s, v); err != nil {
			failures = append(failures, Failure{v.Name, err})
		}
	}
	if failures == nil {
		s.missing = missing{}
	} else if k.ctx.Err() == nil {
		k.logFailures(s, failures)
	}
	k.schedule(s, failures)
}

// schedule arranges the next refresh that no change of an object causes: a token's renewal, or another try. Volumes
// that were never set up are retried by the caller of SetUp, which is notified by Changed too.
func (k *Manager) schedule(s *podState, failures Failures) {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	uid := s.pod.UID
	switch {
	case k.retriable(s, failures):
		wait := min(retryMin<<min(s.tries, 10), retryMax)
		s.tries++
		s.timer = time.AfterFunc(wait/2+rand.N(wait), func() { k.Changed(uid) })
		return
	case s.missing.since != 0 && !s.missing.warned:
		s.timer = time.AfterFunc(goneMin, func() { k.Changed(uid) })
		return
	}
	s.tries = 0
	if len(s.tokens) > 0 {
		k.awaitTokens(s)
	}
}

// awaitTokens arranges a refresh of the pod when one of its tokens must be renewed, and compares the clocks at
// intervals.
func (k *Manager) awaitTokens(s *podState) {
	now, wait := k.clock(), clockEvery
	for _, t := range s.tokens {
		if t.reached(now, t.renew) {
			wait = time.Second
		}
		wait = min(wait, max(t.renew-(now.since-t.got.since), time.Second))
	}
	uid := s.pod.UID
	var timer *time.Timer
	timer = time.AfterFunc(wait, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.gone || s.timer != timer || k.ctx.Err() != nil {
			return
		}
		now := k.clock()
		for _, t := range s.tokens {
			if t.reached(now, t.renew) {
				k.Changed(uid)
				return
			}
		}
		k.awaitTokens(s)
	})
	s.timer = timer
}

// missing tells that objects of a pod do not exist any more.
type missing struct {
	since  time.Duration // by the Manager's own clock; 0: nothing is missing
	warned bool          // a warning was logged
}

// logFailures logs what could not be updated. Objects that do not exist are not worth a warning while their pod may be
// about to be deleted too.
func (k *Manager) logFailures(s *podState, failures Failures) {
	level := slog.LevelWarn
	now := k.clock().since
	switch {
	case !failures.all(isGone):
		s.missing = missing{}
	case s.missing.since == 0:
		s.missing.since, level = now, slog.LevelDebug
	case s.missing.warned || s.pod.DeletionTimestamp != nil || now-s.missing.since < goneMin:
		level = slog.LevelDebug
	default:
		s.missing.warned = true
	}
	slog.Log(k.ctx, level, "volume: not refreshed; containers keep the present content",
		"pod", s.pod.Namespace+"/"+s.pod.Name, "uid", s.pod.UID, "error", failures)
}

// isGone reports whether an object does not exist, or cannot be created because its namespace is being deleted.
func isGone(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}

// retriable reports whether a volume that containers already use could not be refreshed for a reason that may pass with
// time. An object that does not exist is no such reason: its return is a change.
func (k *Manager) retriable(s *podState, failures Failures) bool {
	for _, f := range failures {
		var unsupported *UnsupportedError
		if s.ready[f.Volume] && !isGone(f.Err) && !errors.As(f.Err, &unsupported) {
			return true
		}
	}
	return false
}

// volumeNamed returns pod's volume of that name.
func volumeNamed(pod *corev1.Pod, name string) *corev1.Volume {
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Name == name {
			return &pod.Spec.Volumes[i]
		}
	}
	return nil
}
