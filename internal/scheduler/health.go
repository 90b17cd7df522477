package scheduler

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// stuckAfter is how long one iteration of the scheduling loop (the waiting facts and one decision) may take before the
// scheduler counts as dead. Chosen: the longest measured decisions take a second, on 50,000 nodes; kubeadm's probe
// kills the process after another 80 s.
const stuckAfter = 30 * time.Second

// Health is the health of a scheduler, for probes. Make it with NewHealth and pass it to Run; any goroutine may read
// it. Before Run, the scheduler counts as healthy, because it may be waiting for leadership.
type Health struct {
	start time.Time
	// running is set when Run has begun, synced when all watches have delivered their first lists.
	running atomic.Bool
	synced  atomic.Bool
	// when the present iteration began, in nanoseconds after start, plus one; zero: the loop waits for a fact
	turn atomic.Int64
}

// NewHealth returns the Health of a scheduler that is not running yet.
func NewHealth() *Health { return &Health{start: time.Now()} }

// begins records that an iteration begins.
func (h *Health) begins() { h.turn.Store(int64(time.Since(h.start)) + 1) }

// waits records that the scheduling loop waits for a fact.
func (h *Health) waits() { h.turn.Store(0) }

// Alive returns an error if the scheduling loop is stuck.
func (h *Health) Alive() error {
	began := h.turn.Load()
	if at := time.Since(h.start) - time.Duration(began); began != 0 && at > stuckAfter {
		return fmt.Errorf("the scheduler has been at one decision for %v", at.Round(time.Second))
	}
	return nil
}

// Synced returns an error if the scheduler is running and does not have its first lists: until then it places nothing.
func (h *Health) Synced() error {
	if h.running.Load() && !h.synced.Load() {
		return errors.New("handlers are not fully synchronized: " +
			"the first lists of pods, nodes and what concerns them are not complete")
	}
	return nil
}
