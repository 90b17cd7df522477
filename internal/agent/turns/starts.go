// Package turns makes the pods of a node wait for each other: it keeps the order in which they are judged (Order), and
// bounds how many start at the same time (Starts) and how many calls the runtime works on (Places).
//
// A worker holds a slot only while the runtime works, not while it waits for a user's code or a grace period. The
// package knows nothing of pods but their namespaces.
package turns

import (
	"context"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/fairqueue"
)

// Places bound how many calls of a kind are made at once.
type Places chan struct{}

// NewPlaces returns n places.
func NewPlaces(n int) Places { return make(Places, n) }

// Briefly makes a call in a place. The place is free again when the call has ended or has taken longer than work.
func (p Places) Briefly(ctx context.Context, work time.Duration, call func() error) error {
	select {
	case p <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	free := sync.OnceFunc(func() { <-p })
	defer free()
	defer time.AfterFunc(work, free).Stop()
	return call()
}

// Starts has the slots of pods that start, and the workers that wait for one. Namespaces take turns, so that a pod does
// not wait for all the pods that another tenant created before it.
type Starts struct {
	all int // never changes

	mu   sync.Mutex
	free int                            // guarded by mu; zero while a worker waits
	line fairqueue.Queue[chan struct{}] // guarded by mu; of those that wait: each is closed when its turn has come
	// busy is closed once the line is empty and the workers that had slots then, last of them, have given them back.
	// nil: no worker has waited since. Guarded by mu.
	busy chan struct{}
	last int
}

// NewStarts returns so many slots.
func NewStarts(slots int) *Starts { return &Starts{all: slots, free: slots} }

// Taken returns how many slots are not free.
func (l *Starts) Taken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all - l.free
}

// Busy returns nil if no start has to wait. Otherwise it returns a channel that is closed when that burst of starts is
// over, the last ones included: work that was put off until then must not slow them.
func (l *Starts) Busy() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy
}

// join is called when a worker joins the line. The caller holds mu.
func (l *Starts) join() {
	if l.busy == nil {
		l.busy = make(chan struct{})
	}
}

// gave is called when a worker has given its slot back, or has left the line. The caller holds mu.
func (l *Starts) gave() {
	if l.busy == nil || !l.line.Empty() {
		return
	}
	if l.last--; l.last <= 0 {
		close(l.busy)
		l.busy = nil
	}
}

// Slot returns a pod's place, which has no slot yet.
func (l *Starts) Slot() *Slot { return &Slot{line: l} }

// take waits for a slot.
func (l *Starts) take(ctx context.Context, namespace string) error {
	l.mu.Lock()
	if l.free > 0 {
		l.free--
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	l.line.Join(namespace, turn)
	l.join()
	l.mu.Unlock()
	return l.await(ctx, namespace, turn)
}

// yield gives a slot to a pod of another namespace, if one waits, and waits for the next.
func (l *Starts) yield(ctx context.Context, namespace string) error {
	l.mu.Lock()
	if !l.line.Others(namespace) {
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	l.line.Rejoin(namespace, turn)
	l.next()
	l.mu.Unlock()
	return l.await(ctx, namespace, turn)
}

// await waits for a turn. Its error means that the caller has no slot.
func (l *Starts) await(ctx context.Context, namespace string, turn chan struct{}) error {
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.line.Leave(namespace, turn) {
			l.next() // the turn came at the same moment
		} else {
			l.last = l.all + 1 // as next, and one more that gave nothing
			l.gave()
		}
		return ctx.Err()
	}
}

// give gives a slot back.
func (l *Starts) give() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next()
}

// next gives a free slot to the worker whose turn it is. The caller holds mu.
func (l *Starts) next() {
	if turn, ok := l.line.Next(); ok {
		close(turn)
		l.last = l.all // if the line is empty now, they all have slots
		return
	}
	l.free++
	l.gave()
}

// SlotTime is how long a pod keeps its slot while pods of other namespaces wait, even if it has more containers to
// start. Chosen: longer than a pod with a few containers takes on a busy machine, and far shorter than a pod with a
// hundred does.
const SlotTime = 5 * time.Second

// Slot is a worker's place among the pods that start at the same time. A pod keeps it from its sandbox to its last
// container, so that pods finish one after the other instead of all at the end, but not longer than SlotTime while
// others wait.
type Slot struct {
	line  *Starts // never changes
	taken bool
	since time.Time // when it was taken; read while it is
}

// Take waits until the pod has a slot for its next start. After an error it has none.
func (s *Slot) Take(ctx context.Context, namespace string) error {
	var err error
	switch {
	case !s.taken:
		err = s.line.take(ctx, namespace)
	case time.Since(s.since) < SlotTime:
		return nil
	default:
		err = s.line.yield(ctx, namespace)
	}
	s.taken = err == nil
	s.since = time.Now()
	return err
}

// Release gives the slot back, if there is one.
func (s *Slot) Release() {
	if s.taken {
		s.line.give()
		s.taken = false
	}
}
