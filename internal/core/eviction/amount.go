package eviction

import "github.com/plimsoll-dev/plimsoll/internal/core/allocatable"

// Amount prints an amount of what a signal is about as messages spell it: 100Mi, 1500.
func Amount(s allocatable.Signal, n int64) string { return printed(s, n) }
