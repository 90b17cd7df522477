package podlife

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Crash and retry back-off, upstream's curve: the first restart is immediate, then 10 s doubling to 5 min, and a
// container that ran twice the maximum starts afresh (kubelet: crash loop back-off; backOffPeriod, MaxContainerBackOff).
// Raising the base makes crash loops cheaper and recovery slower.
const (
	backoffBase  = 10 * time.Second
	backoffReset = 2
)

// BackoffMax is upstream's default ceiling; a node's configuration may lower it (crashLoopBackOff.maxContainerRestartPeriod).
const BackoffMax = 300 * time.Second

// crash is the memory of one container's exits.
type crash struct {
	id      string // of the exit already counted
	streak  int    // exits in a row without a long run between them
	readyAt unit.Instant
	delay   time.Duration
}

// note counts an exit once and returns the back-off that follows it.
func (c *crash) note(now unit.Instant, wall unit.Wall, ended Container, ceiling time.Duration) {
	if c.id == ended.ID {
		return
	}
	if ended.FinishedAt.Sub(ended.StartedAt) >= backoffReset*ceiling {
		c.streak = 0
	}
	c.id, c.delay = ended.ID, delayAfter(c.streak, ceiling)
	// A wall clock that stepped must neither stretch the wait nor make it negative.
	elapsed := min(max(wall.Sub(ended.FinishedAt), 0), c.delay)
	c.readyAt = now.Add(c.delay - elapsed)
	c.streak++
}

// delayAfter returns the wait before the restart that follows streak earlier ones.
func delayAfter(streak int, ceiling time.Duration) time.Duration {
	if streak == 0 {
		return 0
	}
	d := backoffBase
	for i := 1; i < streak && d < ceiling; i++ {
		d *= 2
	}
	return min(d, ceiling)
}

// trouble is the memory of an action that keeps failing.
type trouble struct {
	reason, message string
	tries           int
	retryAt         unit.Instant
	since           unit.Instant // of the latest failure
}

// shownFor is how long a failure is reported as itself before it is reported as a back-off. A pull that fails shows
// ErrImagePull, then ImagePullBackOff, as users know it; upstream changes with its next sync of the pod (1 to 2 s).
const shownFor = 2 * time.Second
