// Package clock reads the time for shells and translates it to the core's Instants.
//
// # Model
//
// The core counts time in Instants: nanoseconds of a monotonic clock with an arbitrary beginning, where zero means
// never. Each shell has one Clock. A new Clock shows Start and counts from there.
//
// # Invariants
//
//   - An Instant that a Clock returns is above zero, whatever the time.
//   - Now never goes back. If the clock below it does, which a monotonic clock should not, time continues from what Now
//     returned last. Otherwise everything that is due would wait until the clock has caught up.
//   - A change of the wall clock does not move it.
//
// A Clock makes no timers. Like Go's monotonic clock, it stands still while the machine sleeps (CLOCK_MONOTONIC,
// clock_gettime(2)).
package clock

import (
	"sync"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Start is what a new Clock shows. Chosen: so far above zero that the Instants of events just before are above zero,
// too.
const Start = unit.Instant(time.Second)

// LongAgo is what a new Clock shows if it must tell the age of what began before it, such as containers that an earlier
// agent started. Chosen: longer than anything runs.
const LongAgo = unit.Instant(20 * 365 * 24 * time.Hour)

// Clock counts time for one shell. It is safe for concurrent use.
type Clock struct {
	read func() time.Time

	mu   sync.Mutex   // guards what follows
	zero time.Time    // the time of Instant zero; it is moved if the clock below goes back
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
	// The clock is read under the lock. Otherwise, if one of two callers read first and locked last, the clock would seem
	// to have gone back.
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
