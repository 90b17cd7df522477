package eviction

import "github.com/plimsoll-dev/plimsoll/internal/core/allocatable"

// Amount formats an amount of a signal as messages do: 100Mi, 1500.
func Amount(s allocatable.Signal, n int64) string { return printed(s, n) }
