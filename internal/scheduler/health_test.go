package scheduler

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestHealthAfterAPause: an iteration that begins because of the timer counts like one that begins because of a fact.
func TestHealthAfterAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		c.refuses = true
		var hangs atomic.Bool
		release := make(chan struct{})
		m, _, stop := startPrepared(c, 10, func(m *loop) {
			m.lookUp = func(p corescheduler.Pod) *corev1.Pod {
				if hangs.Load() {
					<-release
				}
				return c.lookUp(p)
			}
		})
		defer stop()
		m.nodeHandler().OnAdd(testNode("n", "1"), true)
		m.submit(context.Background(), synced(m))
		c.add(m, testPod("p", "1"))
		elapse(100 * time.Millisecond) // its bind is refused
		m.nodeHandler().OnUpdate(testNode("n", "1"), testNode("n", "100m"))
		elapse(100 * time.Millisecond)
		hangs.Store(true)
		elapse(time.Second + stuckAfter)
		if m.o.Health.Alive() == nil {
			t.Error("alive although the iteration after the pause does not end")
		}
		close(release)
		elapse(time.Second)
	})
}

// TestHealth: a scheduler is alive before it runs, and while it works or waits, but not if an iteration does not end;
// it is ready when it has its first lists.
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
		m.submit(context.Background(), func(unit.Instant) { m.synced = true; h.synced.Store(true) })
		elapse(time.Hour)
		if h.Synced() != nil || h.Alive() != nil {
			t.Errorf("after an hour of waiting: %v, %v", h.Synced(), h.Alive())
		}
		release := make(chan struct{})
		m.submit(context.Background(), func(unit.Instant) { <-release })
		elapse(stuckAfter + time.Second)
		if h.Alive() == nil {
			t.Error("alive although one iteration does not end")
		}
		close(release)
		synctest.Wait()
		if h.Alive() != nil {
			t.Errorf("not alive although the iteration has ended: %v", h.Alive())
		}
	})
}
