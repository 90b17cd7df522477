// Package clock reads the time for shells and turns it into the times of the core.
//
// # Model
//
// A core counts time in Instants: nanoseconds of a monotonic clock with an arbitrary beginning, where zero means never.
// Each shell has one Clock. It shows Start when it is made, and counts on from there.
//
// # Invariants
//
//   - An Instant is above zero, whatever time it is made of.
//   - Now never goes back. Where the clock below it does, which a monotonic clock should not, time goes on from what
//     Now returned last: else everything that is due would wait until the clock is there again.
//   - A change of the wall clock does not move it.
//
// It makes no timers, and it stands still while the machine sleeps, as Go's monotonic clock does (CLOCK_MONOTONIC,
// clock_gettime(2)).
package clock

import (
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Start is what a new Clock shows. Chosen: above zero, and so far above it that the Instant of what happened just
// before is above zero too.
const Start = unit.Instant(time.Second)

// LongAgo is what a Clock shows at first that must tell the age of what was there before it, such as containers that an
// earlier agent started. Chosen: longer than anything runs.
const LongAgo = unit.Instant(20 * 365 * 24 * time.Hour)

// Clock counts time for one shell. It is safe for concurrent use.
type Clock struct {
	read func() time.Time

	mu   sync.Mutex   // guards what follows
	zero time.Time    // the time of Instant zero; later where the clock below went back
	last unit.Instant // what Now returned last
}

// New returns a Clock that shows Start now.
func New() *Clock { return From(time.Now, Start) }

// From returns a Clock that reads the time by read, whose times have monotonic readings, and shows start now: Start or
// LongAgo.
func From(read func() time.Time, start unit.Instant) *Clock {
	return &Clock{read: read, zero: read().Add(-time.Duration(start))}
}

// Now returns the Instant of now.
func (c *Clock) Now() unit.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Read under the lock: of two callers, one that read first and locked last would look like a clock that went back.
	now := unit.Instant(c.read().Sub(c.zero))
	if now < c.last {
		c.zero = c.zero.Add(-c.last.Sub(now))
		now = c.last
	}
	c.last = now
	return now
}

// Time returns the time that the Clock reads, with its monotonic reading.
func (c *Clock) Time() time.Time { return c.read() }

// Instant returns the Instant of t, at least 1.
func (c *Clock) Instant(t time.Time) unit.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.instant(t)
}

// At returns the time of an Instant.
func (c *Clock) At(i unit.Instant) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.zero.Add(time.Duration(i))
}

// instant is Instant. Caller holds mu.
func (c *Clock) instant(t time.Time) unit.Instant { return max(unit.Instant(t.Sub(c.zero)), 1) }
