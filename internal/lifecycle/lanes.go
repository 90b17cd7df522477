package lifecycle

import (
	"context"
	"sync"

	"github.com/plimsoll-dev/plimsoll/internal/core/throttle"
)

// A lane is a queue of writes of one kind. No lane waits behind another here: which write goes first is for the Gate to
// say, and it sees only what stands before it.
type lane struct {
	mu    sync.Mutex
	queue []func(context.Context)
	ready chan struct{} // as many tokens as there are writes queued, up to the number of workers
}

// lanes carry writes out, of each kind a bounded number at once.
type lanes map[throttle.Kind]*lane

func newLanes(workers int) lanes {
	l := lanes{}
	for _, kind := range []throttle.Kind{throttle.Mark, throttle.Readiness, throttle.Evict} {
		l[kind] = &lane{ready: make(chan struct{}, workers)}
	}
	return l
}

// put queues a write. It never waits.
func (l *lane) put(write func(context.Context)) {
	l.mu.Lock()
	l.queue = append(l.queue, write)
	l.mu.Unlock()
	select {
	case l.ready <- struct{}{}:
	default: // every worker has something to do already, and looks again when it is done
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

// work carries writes out, one after the other, until ctx ends.
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

// run works until ctx ends, and returns when all that was begun has ended.
func (l lanes) run(ctx context.Context) {
	var workers sync.WaitGroup
	for _, one := range l {
		for range cap(one.ready) {
			workers.Go(func() { one.work(ctx) })
		}
	}
	workers.Wait()
}
