package scheduler

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestRunChecksLeadBeforeWrites: a process that may not lead any more sends no binds, victim conditions, deletions or
// pod conditions, whatever it had decided and however long that waited.
func TestRunChecksLeadBeforeWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		full := testNode("full", "1")
		full.Labels = map[string]string{"on": "full"}
		w.put("nodes", full)
		w.put("nodes", testNode("n", "20"))
		w.put("pods", onNode(wirePod("low", "1", 1), "full"))
		var deposed atomic.Bool
		_, stop := startRun(w, Options{Leads: func() bool { return !deposed.Load() }})
		defer stop()
		elapse(time.Second)
		deposed.Store(true)
		w.put("pods", wirePod("p", "1", 5))
		high := wirePod("high", "1", 10)
		high.Spec.NodeSelector = full.Labels
		w.put("pods", high)
		w.put("pods", wirePod("big", "1000", 0))
		elapse(time.Hour)
		w.mu.Lock()
		for what, n := range w.asked {
			if !strings.Contains(what, "events") && n > 0 {
				t.Errorf("%s was asked for %d times", what, n)
			}
		}
		w.mu.Unlock()
		deposed.Store(false) // as after a suspend: the Lease was renewed
		elapse(retryMax + time.Second)
		w.eachBoundOnce(2)
		if why := w.why("big"); !strings.Contains(why, "Insufficient cpu") {
			t.Errorf("the condition of the big pod: %s", why)
		}
	})
}

// TestRunChecksLeadBeforeSending: requests that waited in the throttle, or for a retry, when the process lost the
// leadership are not sent.
func TestRunChecksLeadBeforeSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWire(t)
		full := testNode("full", "1")
		full.Labels = map[string]string{"on": "full"}
		w.put("nodes", full)
		w.put("nodes", testNode("n", "20"))
		w.put("pods", onNode(wirePod("low", "1", 1), "full"))
		var deposed atomic.Bool
		_, stop := startRun(w, Options{Leads: func() bool { return !deposed.Load() }})
		defer stop()
		elapse(time.Second)
		w.during(func(context.Context, string) wireFate { return wireFate{code: http.StatusTooManyRequests} })
		for i := range 20 {
			w.put("pods", wirePod(fmt.Sprint("p", i), "1", 5))
		}
		high := wirePod("high", "1", 10)
		high.Spec.NodeSelector = full.Labels
		w.put("pods", high)
		elapse(100 * time.Millisecond)
		deposed.Store(true)
		w.during(nil)
		before := w.writes()
		elapse(time.Hour)
		if after := w.writes(); before == 0 || after != before {
			t.Errorf("%d writes were sent before, %d after", before, after-before)
		}
		deposed.Store(false)
		elapse(retryMax + time.Second)
		w.eachBoundOnce(21)
	})
}

// writes returns the number of write requests, without those for Events.
func (w *wire) writes() (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for what, asked := range w.asked {
		if !strings.Contains(what, "events") {
			n += asked
		}
	}
	return n
}
