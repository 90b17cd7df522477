// Package unit holds the quantities the core reasons about, one type per unit, so that a number cannot be
// mistaken for another kind of number.
//
// Bytes and MilliCPU are signed: a deficit is a negative quantity, not an overflow. Instant is monotonic and only
// differences of it mean anything; Wall is the calendar, used for what the API publishes and never for measuring.
// The package reads no clock: shells make Instants and Walls and pass them in.
//
// Do not use it at the edge of the Kubernetes API: there resource.Quantity rules, and internal/kube translates.
package unit

import (
	"fmt"
	"time"
)

// Bytes is an amount of memory or storage.
type Bytes int64

// Binary multiples of Bytes.
const (
	KiB Bytes = 1 << (10 * (iota + 1))
	MiB
	GiB
	TiB
)

// String prints b in the largest binary unit that divides it, as Kubernetes' canonical form does: 1536Mi, 1Gi, 1000.
func (b Bytes) String() string {
	sign, n := "", b
	if n < 0 {
		sign, n = "-", -n
	}
	switch {
	case n == 0:
		return "0"
	case n%TiB == 0:
		return fmt.Sprintf("%s%dTi", sign, n/TiB)
	case n%GiB == 0:
		return fmt.Sprintf("%s%dGi", sign, n/GiB)
	case n%MiB == 0:
		return fmt.Sprintf("%s%dMi", sign, n/MiB)
	case n%KiB == 0:
		return fmt.Sprintf("%s%dKi", sign, n/KiB)
	}
	return fmt.Sprintf("%s%d", sign, n)
}

// MilliCPU is an amount of CPU in thousandths of one CPU.
type MilliCPU int64

// CPU is one whole CPU.
const CPU MilliCPU = 1000

// String prints m as Kubernetes does: 2, 1500m.
func (m MilliCPU) String() string {
	if m%CPU == 0 {
		return fmt.Sprintf("%d", m/CPU)
	}
	return fmt.Sprintf("%dm", int64(m))
}

// Instant is a moment on a monotonic clock, in nanoseconds since an origin the shell chose. The zero Instant means
// "no moment"; shells start their clocks above it.
type Instant int64

// Add returns the instant d after t.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// IsZero reports whether t is no moment at all.
func (t Instant) IsZero() bool { return t == 0 }

// Earlier returns the earlier of t and u, where the zero Instant is later than any moment.
// It is how wake-up times are merged.
func (t Instant) Earlier(u Instant) Instant {
	if t.IsZero() || (!u.IsZero() && u < t) {
		return u
	}
	return t
}

// Wall is a calendar moment in Unix nanoseconds. The zero Wall means "never".
type Wall int64

// WallOf converts a time.Time; the zero time is the zero Wall.
func WallOf(t time.Time) Wall {
	if t.IsZero() {
		return 0
	}
	return Wall(t.UnixNano())
}

// Time converts w back; the zero Wall is the zero time.
func (w Wall) Time() time.Time {
	if w == 0 {
		return time.Time{}
	}
	return time.Unix(0, int64(w)).UTC()
}

// Sub returns the time from u to w by the calendar, which a clock step can make negative.
func (w Wall) Sub(u Wall) time.Duration { return time.Duration(w - u) }
