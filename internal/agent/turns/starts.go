// Package turns says who goes next where pods of a node must wait for each other: in which order they are judged
// (Order), how many start at the same time (Starts), and how many calls the runtime works on (Places).
//
// A slot is taken for the runtime's own work, never for a user's code or a grace period: a worker gives its slot back
// before it waits for those. The package knows nothing of pods but their namespaces.
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

// Briefly makes a call in a place, which is free again when the call has ended or has taken longer than work.
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

// Starts has the slots of pods that start, and the workers that wait for one: namespaces take turns, so that no pod
// waits for all those that another tenant has sent before.
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

// Taken is how many slots are not free.
func (l *Starts) Taken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all - l.free
}

// Busy returns a channel that is closed when the starts are over of which some had to wait; nil: none has to. The last
// of them count too: what others put off until then must not slow them.
func (l *Starts) Busy() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.busy
}

// join is called when a worker joins the line. Caller holds mu.
func (l *Starts) join() {
	if l.busy == nil {
		l.busy = make(chan struct{})
	}
}

// gave is called when a worker has given its slot back, or has left the line. Caller holds mu.
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

// next gives a free slot to the worker whose turn it is. Caller holds mu.
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
// start. Chosen: above what a pod of some containers takes on a busy machine, and far below what one of a hundred does.
const SlotTime = 5 * time.Second

// Slot is a worker's place among the pods that start at the same time. A pod keeps it from its sandbox to its last
// container, so that pods finish one after the other instead of all at the end, but not longer than SlotTime while
// others wait.
type Slot struct {
	line  *Starts // never changes
	taken bool
	since time.Time // when it was taken; read while it is
}

// Take has the slot for the next of a pod's starts. With an error there is none.
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
