package scheduler

import (
	"context"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// workQueue is a queue that keeps only the latest work per object. Workers process objects in the order in which they
// were added, never one object twice at the same time. Failed work is tried again after a pause, unless newer work was
// added. Work may be withdrawn. It is safe for concurrent use.
type workQueue[K comparable, V any] struct {
	mu      sync.Mutex      // guards all fields but ready
	pending map[K]work[V]   // the latest work per key that no worker has begun
	queued  map[K]bool      // the keys that are in order
	order   []K             // the keys to process; work that was withdrawn is not in pending any more
	doing   map[K]*doing    // work in progress
	retries map[K]*retry[V] // work that waits for its next try; these keys are not in pending
	ready   chan struct{}   // it has a value while order may have keys
}

// work is what to do, and how often it has failed.
type work[V any] struct {
	what  V
	tries int
}

// retry is failed work that waits for its next try.
type retry[V any] struct {
	work[V]
	timer *time.Timer
}

// retryFirst and retryMax limit the pause before failed work is tried again. It doubles with each failure. Chosen:
// retryFirst is the longest back-off of a pod, so the status of a pod whose binds fail is not written more often than
// the binds fail. With retryMax, a user sees why a pod waits at most a minute after the API server is available again.
// If the API server permanently refuses the conditions of a thousand pods, that causes 17 requests per second.
const (
	retryFirst = 10 * time.Second
	retryMax   = time.Minute
)

// doing is work that a worker has begun.
type doing struct {
	withdrawn chan struct{} // closed when the work is withdrawn
	once      sync.Once
	done      chan struct{} // closed when the worker has finished
}

func newWorkQueue[K comparable, V any]() *workQueue[K, V] {
	return &workQueue[K, V]{
		pending: map[K]work[V]{},
		queued:  map[K]bool{},
		doing:   map[K]*doing{},
		retries: map[K]*retry[V]{},
		ready:   make(chan struct{}, 1),
	}
}

// put sets the work for k. It replaces earlier work and does not block.
func (l *workQueue[K, V]) put(k K, v V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropRetry(k)
	l.set(k, work[V]{what: v})
}

// set makes w pending. It is queued unless a worker is busy with k. l.mu is held.
func (l *workQueue[K, V]) set(k K, w work[V]) {
	l.pending[k] = w
	if l.doing[k] == nil {
		l.enqueue(k)
	}
}

// dropRetry drops work that waits for its next try. l.mu is held.
func (l *workQueue[K, V]) dropRetry(k K) {
	if a := l.retries[k]; a != nil {
		a.timer.Stop()
		delete(l.retries, k)
	}
}

// enqueue adds k to the order. l.mu is held.
func (l *workQueue[K, V]) enqueue(k K) {
	if !l.queued[k] {
		l.queued[k] = true
		l.order = append(l.order, k)
	}
	l.signal()
}

func (l *workQueue[K, V]) signal() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// withdraw drops the pending work for k, and withdraws work in progress that was not sent yet. The returned channel is
// closed when the worker has finished; nil: no worker is busy with k.
func (l *workQueue[K, V]) withdraw(k K) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropRetry(k)
	delete(l.pending, k)
	d := l.doing[k]
	if d == nil {
		return nil
	}
	d.once.Do(func() { close(d.withdrawn) })
	return d.done
}

// take returns the next work and marks it as in progress. of is the context for its requests: they are withdrawn when
// the work is withdrawn (kube.Withdrawable).
func (l *workQueue[K, V]) take(ctx context.Context) (k K, w work[V], of context.Context, ok bool) {
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

// finish ends a try. If done is false, the work is tried again later.
func (l *workQueue[K, V]) finish(of context.Context, k K, w work[V], done bool) {
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
	pause := retryMax
	if w.tries < 3 { // the pause would exceed retryMax from the third retry on
		pause = min(retryFirst<<w.tries, retryMax)
	}
	w.tries++
	a := &retry[V]{work: w}
	l.retries[k] = a
	a.timer = time.AfterFunc(pause, func() { l.tryAgain(k, a) })
}

func (l *workQueue[K, V]) tryAgain(k K, a *retry[V]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retries[k] == a {
		delete(l.retries, k)
		l.set(k, a.work)
	}
}

// waiting returns how much work is pending or waits for its next try.
func (l *workQueue[K, V]) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending) + len(l.retries)
}

// run processes work with this many workers until ctx ends. do reports whether the work is done.
func (l *workQueue[K, V]) run(ctx context.Context, workers int, do func(context.Context, V) bool) {
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
