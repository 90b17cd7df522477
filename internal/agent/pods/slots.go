package pods

import (
	"context"
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/fairqueue"
)

// Slots bound what the runtime works on at once. They are held for the runtime's own work, never for a user's code, nor
// for a grace period: whoever waits for those gives its slot back first.

// How long a call keeps its slot at most (chosen): a signal takes the runtime 10 to 30 ms, a removal a tenth of a
// second, both longer on a busy machine. What takes longer waits for something else: a process for the end of its
// grace, a removal for a process that does not die. Raised, calls that hang hold up others longer; lowered, more of
// them reach a slow runtime at once: signals, at most stopsAtOnce in each signalTime.
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

// startsLine has the slots of pods that start, and those who wait for one: namespaces take turns, so that nobody's pod
// waits for all those that another tenant has sent before.
type startsLine struct {
	mu   sync.Mutex
	all  int
	free int // while somebody waits: none
	line fairqueue.Line[chan struct{}]
}

func newStartsLine(slots int) *startsLine { return &startsLine{all: slots, free: slots} }

// held is how many slots are not free.
func (l *startsLine) held() int {
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

// pass gives a slot to somebody of another namespace, if one waits, and waits for the next.
func (l *startsLine) pass(ctx context.Context, namespace string) error {
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

// next gives a slot to whose turn it is. Caller holds mu.
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
	line  *startsLine
	held  bool
	since time.Time // when it was taken
}

// take has the slot for the next of a pod's starts. With an error there is none.
func (s *startSlot) take(ctx context.Context, namespace string) error {
	var err error
	switch {
	case !s.held:
		err = s.line.take(ctx, namespace)
	case time.Since(s.since) < slotTime:
		return nil
	default:
		err = s.line.pass(ctx, namespace)
	}
	s.held, s.since = err == nil, time.Now()
	return err
}

func (s *startSlot) release() {
	if s.held {
		s.line.give()
		s.held = false
	}
}
