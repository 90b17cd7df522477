package agent

import (
	"context"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/process"
)

// The agent works in bursts and is idle for hours in between. A while after its start, and then at intervals, it
// returns memory to the kernel that only the burst needed: freed heap, and code that ran once. One round costs 10 ms of
// CPU without pods. With a hundred pods with ten volumes each, garbage collection took 0.3 s in 150 s at rest, with a
// round each minute (a profile, 2026-11-28).
const (
	// trimFirst is chosen.
	trimFirst = 10 * time.Second
	// trimEvery is a little less than the two minutes after which Go's runtime collects garbage by itself (runtime,
	// forcegcperiod), so that there is one collection for both. Raising it, there are two; lowering it, as many as rounds.
	trimEvery = 2*time.Minute - trimQuiet
	// trimQuiet is how long no pod must have come, gone or changed before the memory that a burst needed is returned.
	// Chosen: longer than the time between two pods of a burst. With a shorter time, memory is returned in the middle of a
	// slow burst; with a longer one, the node lacks the memory for longer.
	trimQuiet = 5 * time.Second
)

// trimTimes says when unused memory is returned. The zero value has not seen any pod.
type trimTimes struct {
	version uint64    // of the pods, when due was called last
	busy    bool      // pods have changed since memory was returned last
	next    time.Time // when memory is returned at the latest
}

// due reports whether memory is to be returned now. version is the version of the pods. It is called once per
// trimQuiet.
func (t *trimTimes) due(now time.Time, version uint64) bool {
	changed := version != t.version
	t.version = version
	t.busy = t.busy || changed
	if now.Before(t.next) && (changed || !t.busy) {
		return false
	}
	t.busy = changed
	t.next = now.Add(trimEvery)
	return true
}

// trimMemory returns unused memory to the kernel at intervals, and when a burst is over, except while the agent's
// memory is locked.
func (a *Agent) trimMemory(ctx context.Context) error {
	ticker := time.NewTicker(trimQuiet)
	defer ticker.Stop()
	times := trimTimes{next: time.Now().Add(trimFirst)}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if !times.due(time.Now(), a.pods.Version()) {
			continue
		}
		if !a.guard.MemoryLocked() {
			debug.FreeOSMemory()
			if err := process.Trim(); err != nil {
				slog.Debug("unused memory not returned to the kernel", "err", err)
			}
		}
	}
}
