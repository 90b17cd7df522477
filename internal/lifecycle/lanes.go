package lifecycle

import (
	"context"
	"sync"
)

// A lane is a queue of writes. A write in an earlier lane goes before all in later ones: a node is marked before the pods
// of another, because the scheduler avoids marked nodes, and a pod's readiness, which takes it out of Services, before
// evictions, which are not urgent.
type lane int

// The lanes, by urgency.
const (
	laneNodes lane = iota
	laneReadiness
	laneEvictions
	laneCount
)

// lanes carry writes out, a bounded number at once. The zero value is not ready: set work.
type lanes struct {
	mu     sync.Mutex
	queues [laneCount][]func(context.Context)
	wanted chan struct{} // as many tokens as there are writes queued, up to its capacity
}

func newLanes(workers int) *lanes { return &lanes{wanted: make(chan struct{}, workers)} }

// put queues a write. It never waits.
func (l *lanes) put(at lane, write func(context.Context)) {
	l.mu.Lock()
	l.queues[at] = append(l.queues[at], write)
	l.mu.Unlock()
	select {
	case l.wanted <- struct{}{}:
	default: // every worker has something to do already, and looks again when it is done
	}
}

func (l *lanes) take() func(context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at := range l.queues {
		if q := l.queues[at]; len(q) > 0 {
			first := q[0]
			q[0] = nil
			l.queues[at] = q[1:]
			return first
		}
	}
	return nil
}

// run works until ctx ends, and returns when all that was begun has ended.
func (l *lanes) run(ctx context.Context) {
	var workers sync.WaitGroup
	for range cap(l.wanted) {
		workers.Go(func() {
			for {
				select {
				case <-l.wanted:
				case <-ctx.Done():
					return
				}
				for write := l.take(); write != nil && ctx.Err() == nil; write = l.take() {
					write(ctx)
				}
			}
		})
	}
	workers.Wait()
}
