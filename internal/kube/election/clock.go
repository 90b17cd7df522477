package election

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// SinceBoot is how long ago the machine was booted, what it slept included (CLOCK_BOOTTIME, clock_gettime(2)). Go's own
// monotonic clock stands still while it sleeps. Neither is set by anybody, and a process that is stopped by a signal
// stops neither.
func SinceBoot() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", err)) // Linux has it since 2.6.39
	}
	return time.Duration(now.Nano())
}
