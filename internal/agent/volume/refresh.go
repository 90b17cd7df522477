package volume

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// refreshers is how many pods are refreshed at once. Chosen: one slow answer must not hold up the others, and a
	// change of an object that every pod mounts must not take the machine.
	refreshers = 4

	// refreshMax bounds one pod's refresh: the API calls of its volumes together.
	refreshMax = 30 * time.Second

	// retryMin and retryMax bound the wait after a failed refresh, doubled each time and jittered. Chosen: the kubelet
	// retries with its resync every 1 to 1.5 min; a token must be renewed within the 12 min of an hour's last fifth.
	retryMin = 5 * time.Second
	retryMax = 2 * time.Minute
)

// refresher works off the pods whose content may have changed. Idle, it has no goroutine.
type refresher struct {
	mu      sync.Mutex
	queue   []types.UID
	queued  map[types.UID]bool
	running int
}

// Changed says that an object which the pod names has changed: its volumes are brought up to date in the background.
// It is what objects.New wants to call.
func (k *Keeper) Changed(uid types.UID) {
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
func (k *Keeper) work() {
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

// refresh brings the content of a pod's volumes up to date. Volumes that SetUp has not made yet are SetUp's business.
func (k *Keeper) refresh(uid types.UID) {
	k.mu.Lock()
	s := k.places[uid]
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
		k.Objects.Track(latest)
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
	if failures != nil && k.ctx.Err() == nil {
		logStale(s.pod, failures)
	}
	k.schedule(s, failures)
}

// schedule arranges the next refresh that no change of an object will set off: a token's renewal, or another try.
// Failures of volumes that were never set up are the caller's of SetUp to retry, and it is told by Changed too.
func (k *Keeper) schedule(s *place, failures Failures) {
	if s.timer != nil {
		s.timer.Stop()
		s.timer = nil
	}
	var wait time.Duration
	switch {
	case k.retriable(s, failures):
		wait = min(retryMin<<min(s.tries, 10), retryMax)
		wait = wait/2 + rand.N(wait)
		s.tries++
	default:
		s.tries = 0
		next := time.Time{}
		for _, t := range s.tokens {
			if next.IsZero() || t.renew.Before(next) {
				next = t.renew
			}
		}
		if next.IsZero() {
			return
		}
		wait = max(time.Until(next), time.Second)
	}
	uid := s.pod.UID
	s.timer = time.AfterFunc(wait, func() { k.Changed(uid) })
}

// retriable reports whether a volume that containers already see could not be refreshed for a reason that time may
// mend. An object that does not exist is not one: its return is a change.
func (k *Keeper) retriable(s *place, failures Failures) bool {
	for _, f := range failures {
		var unsupported *UnsupportedError
		if s.ready[f.Volume] && !apierrors.IsNotFound(f.Err) && !errors.As(f.Err, &unsupported) {
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
