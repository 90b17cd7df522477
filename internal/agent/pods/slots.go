package pods

import (
	"context"
	"sync"
	"time"
)

// Slots bound what the runtime works on at once. They are held for the runtime's own work, never for a user's code, nor for a
// grace period: whoever waits for those gives its slot back first.

// How long a call keeps its slot at most (chosen): a signal takes the runtime 10 to 30 ms, a removal a tenth of a second, both longer
// on a busy machine. What takes longer waits for something else: a process for the end of its grace, a removal for a process that
// does not die. Raised, calls that hang hold up others longer; lowered, more of them reach a slow runtime at once: signals, at most
// stopsAtOnce in each signalTime.
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

// startSlot is a worker's place among the pods that start at the same time. A pod keeps it from its sandbox to its last
// container, so that pods finish one after the other instead of all at the end.
type startSlot struct {
	slots chan struct{}
	held  bool
}

func (s *startSlot) take(ctx context.Context) error {
	if s.held {
		return nil
	}
	select {
	case s.slots <- struct{}{}:
		s.held = true
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *startSlot) release() {
	if s.held {
		<-s.slots
		s.held = false
	}
}
