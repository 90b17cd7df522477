//go:build e2e

package rig

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// stalledCounts is the part of a second that counts for a limit while the machine keeps its tasks waiting. Chosen: on
// two slow CPUs, beside guests of the lab, a container took 10 to 30 s to start, and limits of two minutes were too
// short for nine tests. Lowering it, a test that hangs on a busy machine fails later; raising it, one that is only slow
// fails.
const stalledCounts = 1.0 / 8

// Clock measures time for the limits of tests. A limit is what an idle machine may need. Of the time in which tasks
// waited for a CPU or for the disk, or in which the host took the CPUs away, only a part counts: so a test that is slow
// because the machine is busy goes on, and on an idle machine its limit is exact.
type Clock struct {
	began   time.Time
	stalled time.Duration
}

// StartClock starts a Clock.
func StartClock() Clock { return Clock{time.Now(), stalled()} }

// Elapsed is the time since the start, as every clock shows it.
func (c Clock) Elapsed() time.Duration { return time.Since(c.began) }

// Counted is the part of Elapsed that counts for a limit.
func (c Clock) Counted() time.Duration {
	elapsed := c.Elapsed()
	waited := min(elapsed, stalled()-c.stalled)
	return elapsed - time.Duration(float64(waited)*(1-stalledCounts))
}

// Limit returns a context that ends when limit counts since the start of the Clock.
func (c Clock) Limit(parent context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	go func() {
		defer cancel()
		for left := limit - c.Counted(); left > 0; left = limit - c.Counted() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(max(left, pollEvery)):
			}
		}
	}()
	return ctx, cancel
}

// AtMost fails the test if more than limit counted since the start.
func (c Clock) AtMost(t *testing.T, limit time.Duration, what string) {
	t.Helper()
	if counted := c.Counted(); counted > limit {
		t.Errorf("%s took %v, of which %v count; at most %v", what, c.Elapsed(), counted, limit)
	}
}

// stalled returns for how long, since the machine started, some task waited for a CPU or all waited for the disk
// (/proc/pressure, Documentation/accounting/psi.rst), and for how long the host took a CPU away (steal in /proc/stat,
// the average of all CPUs). What the kernel does not report counts as nothing.
func stalled() time.Duration {
	return pressure("cpu", "some") + pressure("io", "full") + stolen()
}

func pressure(resource, line string) time.Duration {
	text, err := os.ReadFile("/proc/pressure/" + resource)
	if err != nil {
		return 0
	}
	for each := range strings.Lines(string(text)) {
		var total int64 // microseconds
		if _, after, found := strings.Cut(each, "total="); found && strings.HasPrefix(each, line+" ") {
			fmt.Sscan(after, &total)
			return time.Duration(total) * time.Microsecond
		}
	}
	return 0
}

// userHZ is the unit of /proc/stat: proc_stat(5), USER_HZ, 100 on every platform that we build for.
const userHZ = 100

func stolen() time.Duration {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0
	}
	var steal int64
	cpus := 0
	for line := range bytes.Lines(text) {
		fields := strings.Fields(string(line))
		switch {
		case len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu"):
		case fields[0] == "cpu":
			steal, _ = strconv.ParseInt(fields[8], 10, 64)
		default:
			cpus++
		}
	}
	return time.Duration(steal) * time.Second / userHZ / time.Duration(max(cpus, 1))
}
