package scheduler

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// stuckAfter is how long one iteration of the scheduling loop (the waiting facts and one decision) may take before the
// scheduler counts as dead. Chosen: the longest decision that was measured took a second, on 50,000 nodes. With
// kubeadm's probe, the process is killed after another 80 s.
const stuckAfter = 30 * time.Second

// Health is the health of a scheduler, for probes. Make it with NewHealth and pass it to Run; any goroutine may read
// it. Before Run, the scheduler counts as healthy, because it may be waiting for leadership.
type Health struct {
	start   time.Time   // when NewHealth was called
	running atomic.Bool // Run has begun
	synced  atomic.Bool // all watches have delivered their first lists
	// iteration is when the present iteration began, in nanoseconds after start, plus one. Zero: the loop waits for a
	// fact.
	iteration atomic.Int64
}

// NewHealth returns the Health of a scheduler that is not running yet.
func NewHealth() *Health { return &Health{start: time.Now()} }

// begins records that an iteration begins.
func (h *Health) begins() { h.iteration.Store(int64(time.Since(h.start)) + 1) }

// waits records that the scheduling loop waits for a fact.
func (h *Health) waits() { h.iteration.Store(0) }

// Alive returns an error if the scheduling loop is stuck.
func (h *Health) Alive() error {
	began := h.iteration.Load()
	if at := time.Since(h.start) - time.Duration(began); began != 0 && at > stuckAfter {
		return fmt.Errorf("the scheduler has been at one decision for %v", at.Round(time.Second))
	}
	return nil
}

// Synced returns an error if the scheduler is running but does not have all first lists yet: until then it places
// nothing.
func (h *Health) Synced() error {
	if h.running.Load() && !h.synced.Load() {
		return errors.New("handlers are not fully synchronized: " +
			"the first lists of pods, nodes and what concerns them are not complete")
	}
	return nil
}
