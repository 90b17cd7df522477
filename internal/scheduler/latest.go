package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// latest is work about objects, of which only the latest matters: it is done in the order in which objects came, by a
// few workers, never twice about one object at the same time. What was tried in vain is tried again after a pause, if
// nothing newer came meanwhile. Work may be withdrawn. It is safe for concurrent use.
type latest[K comparable, V any] struct {
	mu      sync.Mutex
	pending map[K]work[V]
	queued  map[K]bool // those in order
	order   []K
	doing   map[K]*doing
	later   map[K]*again[V] // of these none is pending
	ready   chan struct{}
}

// work is what to do, and how often it was tried in vain.
type work[V any] struct {
	what  V
	tries int
}

// again is work that waits for its next try.
type again[V any] struct {
	work[V]
	timer *time.Timer
}

// againFirst and againMax bound the pause before work is tried again, which doubles. Chosen: as long as the longest
// back-off of a pod, so that one whose binds fail is not written about more often than they do; and who looks why a pod
// waits sees it a minute after the API server is back at the latest. A server that refuses the conditions of a thousand
// pods for good is asked for 17 a second.
const (
	againFirst = 10 * time.Second
	againMax   = time.Minute
)

// doing is work that a worker has begun.
type doing struct {
	withdrawn chan struct{} // closed when it is not wanted any more
	once      sync.Once
	done      chan struct{} // closed at its end
}

func newLatest[K comparable, V any]() *latest[K, V] {
	return &latest[K, V]{
		pending: map[K]work[V]{}, queued: map[K]bool{}, doing: map[K]*doing{}, later: map[K]*again[V]{},
		ready: make(chan struct{}, 1),
	}
}

// put notes what to do about k, in place of what was to be done; it does not wait.
func (l *latest[K, V]) put(k K, v V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLater(k)
	l.wants(k, work[V]{what: v})
}

// wants lets a worker do w about k when none is at it. l.mu is held.
func (l *latest[K, V]) wants(k K, w work[V]) {
	l.pending[k] = w
	if l.doing[k] == nil {
		l.enqueue(k)
	}
}

// forgetLater ends what waits for its next try. l.mu is held.
func (l *latest[K, V]) forgetLater(k K) {
	if a := l.later[k]; a != nil {
		a.timer.Stop()
		delete(l.later, k)
	}
}

// enqueue lets a worker come to k. l.mu is held.
func (l *latest[K, V]) enqueue(k K) {
	if !l.queued[k] {
		l.queued[k] = true
		l.order = append(l.order, k)
	}
	l.signal()
}

func (l *latest[K, V]) signal() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// withdraw drops what was to be done about k, and what a worker has begun and not sent yet. The returned channel is
// closed when nobody is at it any more; nil: nobody is.
func (l *latest[K, V]) withdraw(k K) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgetLater(k)
	delete(l.pending, k)
	d := l.doing[k]
	if d == nil {
		return nil
	}
	d.once.Do(func() { close(d.withdrawn) })
	return d.done
}

// take begins the next work.
func (l *latest[K, V]) take(ctx context.Context) (k K, w work[V], of context.Context, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.order) > 0 {
		k, l.order = l.order[0], l.order[1:]
		delete(l.queued, k)
		if w, ok = l.pending[k]; !ok {
			continue // withdrawn
		}
		delete(l.pending, k)
		d := &doing{withdrawn: make(chan struct{}), done: make(chan struct{})}
		l.doing[k] = d
		if len(l.order) > 0 {
			l.signal()
		}
		return k, w, kube.Withdrawable(ctx, d.withdrawn), true
	}
	return k, w, nil, false
}

// finish ends a try, in vain unless done.
func (l *latest[K, V]) finish(of context.Context, k K, w work[V], done bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.doing[k]
	delete(l.doing, k)
	close(d.done)
	if _, newer := l.pending[k]; newer {
		l.enqueue(k)
		return
	}
	if done || of.Err() != nil || kube.IsWithdrawn(of) {
		return
	}
	pause := againMax
	if w.tries < 3 { // eight times the first is above againMax
		pause = min(againFirst<<w.tries, againMax)
	}
	w.tries++
	a := &again[V]{work: w}
	l.later[k] = a
	a.timer = time.AfterFunc(pause, func() { l.retry(k, a) })
}

func (l *latest[K, V]) retry(k K, a *again[V]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.later[k] == a {
		delete(l.later, k)
		l.wants(k, a.work)
	}
}

// waiting is how much is to be done.
func (l *latest[K, V]) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending) + len(l.later)
}

// run lets so many workers do what is put, until ctx ends. do says whether it is done.
func (l *latest[K, V]) run(ctx context.Context, workers int, do func(context.Context, V) bool) {
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-l.ready:
				}
				for k, w, of, ok := l.take(ctx); ok; k, w, of, ok = l.take(ctx) {
					l.finish(of, k, w, do(of, w.what))
				}
			}
		})
	}
	all.Wait()
}
