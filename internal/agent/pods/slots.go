package pods

import (
	"context"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/fairqueue"
)

// Slots bound what the runtime works on at once. A slot is taken for the runtime's own work, never for a user's code or
// a grace period: a worker gives its slot back before it waits for those.

// How long a call keeps its slot at most (chosen): a signal takes the runtime 10 to 30 ms, a removal a tenth of a
// second, both longer on a busy machine. What takes longer waits for something else: a process for the end of its
// grace, a removal for a process that does not die. Raised, calls that hang delay others longer; lowered, more of them
// reach a slow runtime at once: signals, at most stopsAtOnce in each signalTime.
const (
	signalTime  = 250 * time.Millisecond
	removalTime = 10 * time.Second
)

// briefly makes a call in a slot, which is free again when the call has ended or has taken longer than work.
func briefly(ctx context.Context, slots chan struct{}, work time.Duration, call func() error) error {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	free := sync.OnceFunc(func() { <-slots })
	defer free()
	defer time.AfterFunc(work, free).Stop()
	return call()
}

// startsLine has the slots of pods that start, and the workers that wait for one: namespaces take turns, so that no pod
// waits for all those that another tenant has sent before.
type startsLine struct {
	all int // never changes

	mu   sync.Mutex
	free int                            // guarded by mu; zero while a worker waits
	line fairqueue.Queue[chan struct{}] // guarded by mu; of those that wait: each is closed when its turn has come
}

func newStartsLine(slots int) *startsLine { return &startsLine{all: slots, free: slots} }

// taken is how many slots are not free.
func (l *startsLine) taken() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all - l.free
}

// take waits for a slot.
func (l *startsLine) take(ctx context.Context, namespace string) error {
	l.mu.Lock()
	if l.free > 0 {
		l.free--
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	l.line.Join(namespace, turn)
	l.mu.Unlock()
	return l.await(ctx, namespace, turn)
}

// yield gives a slot to a pod of another namespace, if one waits, and waits for the next.
func (l *startsLine) yield(ctx context.Context, namespace string) error {
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
func (l *startsLine) await(ctx context.Context, namespace string, turn chan struct{}) error {
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		if !l.line.Leave(namespace, turn) {
			l.next() // the turn came at the same moment
		}
		return ctx.Err()
	}
}

// give gives a slot back.
func (l *startsLine) give() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next()
}

// next gives a slot to the worker whose turn it is. Caller holds mu.
func (l *startsLine) next() {
	if turn, ok := l.line.Next(); ok {
		close(turn)
	} else {
		l.free++
	}
}

// slotTime is after how long a pod that has more containers to start lets pods of other namespaces go first. Chosen:
// above what a pod of some containers takes on a busy machine, and far below what one of a hundred does.
const slotTime = 5 * time.Second

// startSlot is a worker's place among the pods that start at the same time. A pod keeps it from its sandbox to its last
// container, so that pods finish one after the other instead of all at the end, but not longer than slotTime while
// others wait.
type startSlot struct {
	line  *startsLine // never changes
	taken bool
	since time.Time // when it was taken; read while it is
}

// take has the slot for the next of a pod's starts. With an error there is none.
func (s *startSlot) take(ctx context.Context, namespace string) error {
	var err error
	switch {
	case !s.taken:
		err = s.line.take(ctx, namespace)
	case time.Since(s.since) < slotTime:
		return nil
	default:
		err = s.line.yield(ctx, namespace)
	}
	s.taken = err == nil
	s.since = time.Now()
	return err
}

func (s *startSlot) release() {
	if s.taken {
		s.line.give()
		s.taken = false
	}
}
