package scheduler

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// stuckAfter is how long the mind may be at one turn (the facts that wait, and a decision) before it counts as dead.
// Chosen: the longest decisions that were measured take a second, on 50,000 nodes; kubeadm's probe kills after another
// 80 s.
const stuckAfter = 30 * time.Second

// Health is what is known of a scheduler from outside: make one with NewHealth, give it to Run, ask it from anywhere.
// Before Run it is well, as one that waits to lead is.
type Health struct {
	start   time.Time
	running atomic.Bool
	synced  atomic.Bool
	turn    atomic.Int64 // when the turn began, in nanoseconds after start; zero: it waits for something to happen
}

// NewHealth returns the Health of a scheduler that does not run yet.
func NewHealth() *Health { return &Health{start: time.Now()} }

// begins notes that a turn begins.
func (h *Health) begins() { h.turn.Store(int64(time.Since(h.start)) + 1) }

// waits notes that the mind waits.
func (h *Health) waits() { h.turn.Store(0) }

// Alive is nil unless the mind stands still.
func (h *Health) Alive() error {
	began := h.turn.Load()
	if at := time.Since(h.start) - time.Duration(began); began != 0 && at > stuckAfter {
		return fmt.Errorf("the scheduler has been at one decision for %v", at.Round(time.Second))
	}
	return nil
}

// Synced is nil unless the scheduler runs and has not heard its first lists yet: until then it places nothing.
func (h *Health) Synced() error {
	if h.running.Load() && !h.synced.Load() {
		return errors.New("handlers are not fully synchronized: " +
			"the first lists of pods, nodes and what concerns them are not complete")
	}
	return nil
}
