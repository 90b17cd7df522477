package lifecycle

import (
	"context"
	"sync"

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
)

// A lane is the queue of writes of one kind. Lanes do not wait for each other. The Throttle decides which write goes
// next, and it sees only writes that wait at it. So each lane has some writes waiting there.
type lane struct {
	mu    sync.Mutex              // guards queue
	queue []func(context.Context) // oldest first
	ready chan struct{}           // as many tokens as writes are queued, up to the number of workers
}

// lanes execute writes, a bounded number of each kind at once.
type lanes map[throttle.Kind]*lane

func newLanes(workers int) lanes {
	l := lanes{}
	for _, kind := range []throttle.Kind{throttle.Mark, throttle.Readiness, throttle.Evict} {
		l[kind] = &lane{ready: make(chan struct{}, workers)}
	}
	return l
}

// put queues a write. It does not block.
func (l *lane) put(write func(context.Context)) {
	l.mu.Lock()
	l.queue = append(l.queue, write)
	l.mu.Unlock()
	select {
	case l.ready <- struct{}{}:
	default: // there are as many tokens as workers: each worker takes more writes when it has finished
	}
}

func (l *lane) take() func(context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.queue) == 0 {
		return nil
	}
	first := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	return first
}

// work executes writes, one after the other, until ctx ends.
func (l *lane) work(ctx context.Context) {
	for {
		select {
		case <-l.ready:
		case <-ctx.Done():
			return
		}
		for write := l.take(); write != nil && ctx.Err() == nil; write = l.take() {
			write(ctx)
		}
	}
}

// run executes writes until ctx ends, and returns when those that had begun have ended.
func (l lanes) run(ctx context.Context) {
	var workers sync.WaitGroup
	for _, one := range l {
		for range cap(one.ready) {
			workers.Go(func() { one.work(ctx) })
		}
	}
	workers.Wait()
}
