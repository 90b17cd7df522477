package turns

import (
	"slices"
	"sync"
	"time"
)

// Order keeps pods in the order in which they came, and they are judged in that order. Pods that came together are
// judged in the order of core/admission. The order matters although each pod has its own worker: which CPUs, memory and
// devices are assigned to a pod depends on the pods before it, and the scheduler expects the order of its binds. The
// zero Order is empty. It is safe for concurrent use.
type Order[T comparable] struct {
	mu    sync.Mutex
	line  []T           // guarded by mu: pods that have come and were not judged yet, first come first
	moved chan struct{} // guarded by mu: closed when one leaves the line; nil: none waits
}

// patienceMax bounds the wait for pods that came before: a pod whose worker cannot go on must not delay all others.
// Chosen: longer than the runtime takes to answer what it has of a pod, and so short that users do not notice it.
const patienceMax = time.Second

// Join puts a pod at the end of the line.
func (t *Order[T]) Join(pod T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.line = append(t.line, pod)
}

// Leave takes a pod out of the line, if it is there.
func (t *Order[T]) Leave(pod T) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.line, pod); i >= 0 {
		t.line = slices.Delete(t.line, i, i+1)
		t.move()
	}
}

// Waiting returns the pods in the line, first come first.
func (t *Order[T]) Waiting() []T {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.line)
}

// move wakes the pods that wait. The caller holds mu.
func (t *Order[T]) move() {
	if t.moved != nil {
		close(t.moved)
		t.moved = nil
	}
}

// Await returns when no pod is before this one. A pod that does not leave the line in time loses its turn.
func (t *Order[T]) Await(pod T) {
	patience := time.NewTimer(patienceMax)
	defer patience.Stop()
	for {
		t.mu.Lock()
		before := slices.Index(t.line, pod)
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
			if before = slices.Index(t.line, pod); before > 0 {
				t.line = slices.Delete(t.line, 0, before)
				t.move()
			}
			t.mu.Unlock()
			return
		}
	}
}
