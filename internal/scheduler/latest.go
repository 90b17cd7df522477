package scheduler

import (
	"context"
	"sync"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// latest is work about objects, of which only the latest matters: it is done in the order in which objects came, by a
// few workers, never twice about one object at the same time. Work may be withdrawn. It is safe for concurrent use.
type latest[K comparable, V any] struct {
	mu      sync.Mutex
	pending map[K]V
	queued  map[K]bool // those in order
	order   []K
	doing   map[K]*doing
	ready   chan struct{}
}

// doing is work that a worker has begun.
type doing struct {
	withdrawn chan struct{} // closed when it is not wanted any more
	once      sync.Once
	done      chan struct{} // closed at its end
}

func newLatest[K comparable, V any]() *latest[K, V] {
	return &latest[K, V]{pending: map[K]V{}, queued: map[K]bool{}, doing: map[K]*doing{}, ready: make(chan struct{}, 1)}
}

// put notes what to do about k, in place of what was to be done; it does not wait.
func (l *latest[K, V]) put(k K, v V) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending[k] = v
	if l.doing[k] == nil {
		l.enqueue(k)
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
	delete(l.pending, k)
	d := l.doing[k]
	if d == nil {
		return nil
	}
	d.once.Do(func() { close(d.withdrawn) })
	return d.done
}

// take begins the next work.
func (l *latest[K, V]) take(ctx context.Context) (k K, v V, of context.Context, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.order) > 0 {
		k, l.order = l.order[0], l.order[1:]
		delete(l.queued, k)
		if v, ok = l.pending[k]; !ok {
			continue // withdrawn
		}
		delete(l.pending, k)
		d := &doing{withdrawn: make(chan struct{}), done: make(chan struct{})}
		l.doing[k] = d
		if len(l.order) > 0 {
			l.signal()
		}
		return k, v, kube.Withdrawable(ctx, d.withdrawn), true
	}
	return k, v, nil, false
}

func (l *latest[K, V]) finish(k K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.doing[k]
	delete(l.doing, k)
	close(d.done)
	if _, again := l.pending[k]; again {
		l.enqueue(k)
	}
}

// waiting is how much is to be done.
func (l *latest[K, V]) waiting() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending)
}

// run lets so many workers do what is put, until ctx ends.
func (l *latest[K, V]) run(ctx context.Context, workers int, do func(context.Context, V)) {
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-l.ready:
				}
				for k, v, of, ok := l.take(ctx); ok; k, v, of, ok = l.take(ctx) {
					do(of, v)
					l.finish(k)
				}
			}
		})
	}
	all.Wait()
}
