package pods

import (
	"slices"
	"sync"
	"time"
)

// turns has pods judged in the order in which they came; those that came together come in the order of core/admission
// (inOrder). Each has its own worker, and workers overtake each other; but which CPUs, memory and devices are assigned
// to a pod depends on those before it, and a scheduler that asked the same question for each of them asked in the order
// of its binds.
type turns struct {
	mu    sync.Mutex
	line  []*entry      // guarded by mu: pods that have come and were not judged yet, first come first
	moved chan struct{} // guarded by mu: closed when one leaves the line; nil: none waits
}

// turnPatience bounds the wait for pods that came before: one whose worker cannot get on must not delay all others.
// Chosen: longer than the runtime takes to say what it has of a pod, short enough to go unnoticed.
const turnPatience = time.Second

// join puts e at the end of the line.
func (t *turns) join(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = append(t.line, e)
}

// leave takes e out of the line, if it is there.
func (t *turns) leave(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.line, e); i >= 0 {
		t.line = slices.Delete(t.line, i, i+1)
		t.move()
	}
}

// move wakes those that wait. Caller holds mu.
func (t *turns) move() {
	if t.moved != nil {
		close(t.moved)
		t.moved = nil
	}
}

// await returns when no pod is before e. Those that do not get on in time lose their turns.
func (t *turns) await(e *entry) {
	patience := time.NewTimer(turnPatience)
	defer patience.Stop()
	for {
		t.mu.Lock()
		before := slices.Index(t.line, e)
		if before <= 0 {
			t.mu.Unlock()
			return
		}
		if t.moved == nil {
			t.moved = make(chan struct{})
		}
		moved := t.moved
		t.mu.Unlock()
		select {
		case <-moved:
		case <-patience.C:
			t.mu.Lock()
			if before = slices.Index(t.line, e); before > 0 {
				t.line = slices.Delete(t.line, 0, before)
				t.move()
			}
			t.mu.Unlock()
			return
		}
	}
}
