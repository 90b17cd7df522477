package scheduler

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestHealth: a scheduler is alive before it runs and while it works or waits, not when one turn does not end; it is
// ready when it has its first lists.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := start(c, 10)
		defer stop()
		h := m.o.Health
		h.running.Store(true)
		if h.Synced() == nil {
			t.Error("ready before the first lists")
		}
		m.tell(context.Background(), func(unit.Instant) { m.synced = true; h.synced.Store(true) })
		elapse(time.Hour)
		if h.Synced() != nil || h.Alive() != nil {
			t.Errorf("waits for an hour: %v, %v", h.Synced(), h.Alive())
		}
		release := make(chan struct{})
		m.tell(context.Background(), func(unit.Instant) { <-release })
		elapse(stuckAfter + time.Second)
		if h.Alive() == nil {
			t.Error("alive, and one turn does not end")
		}
		close(release)
		synctest.Wait()
		if h.Alive() != nil {
			t.Errorf("goes on: %v", h.Alive())
		}
	})
}
