package election

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// SinceBoot returns the time since the machine was booted, sleep included (CLOCK_BOOTTIME, clock_gettime(2)). Go's own
// monotonic clock stands still during sleep. Neither clock can be set, and neither stops while a signal stops the
// process.
func SinceBoot() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic(fmt.Sprintf("read CLOCK_BOOTTIME: %v", err)) // Linux has it since 2.6.39
	}
	return time.Duration(now.Nano())
}
