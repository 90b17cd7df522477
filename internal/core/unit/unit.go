// Package unit holds the quantities that the core computes with. Each unit has its own type, so that the compiler
// rejects a mix-up.
//
// Bytes and MilliCPU are signed: a deficit is a negative quantity, not an overflow. Instant is monotonic, and only
// differences of Instants mean anything. Wall is calendar time: it is used for what the API publishes, and never for
// measuring durations. The package reads no clock: shells make Instants and Walls and pass them in.
//
// Do not use these types at the edge of the Kubernetes API. There resource.Quantity is used, and internal/kube
// translates.
package unit

import (
	"strconv"
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
func (b Bytes) String() string { return string(b.Append(nil)) }

// Append appends what String returns to text.
func (b Bytes) Append(text []byte) []byte {
	of, name := Bytes(1), ""
	switch {
	case b == 0:
	case b%TiB == 0:
		of, name = TiB, "Ti"
	case b%GiB == 0:
		of, name = GiB, "Gi"
	case b%MiB == 0:
		of, name = MiB, "Mi"
	case b%KiB == 0:
		of, name = KiB, "Ki"
	}
	return append(strconv.AppendInt(text, int64(b/of), 10), name...)
}

// MilliCPU is an amount of CPU in thousandths of one CPU.
type MilliCPU int64

// CPU is one whole CPU.
const CPU MilliCPU = 1000

// String prints m as Kubernetes does: 2, 1500m.
func (m MilliCPU) String() string { return string(m.Append(nil)) }

// Append appends what String returns to text.
func (m MilliCPU) Append(text []byte) []byte {
	if m%CPU == 0 {
		return strconv.AppendInt(text, int64(m/CPU), 10)
	}
	return append(strconv.AppendInt(text, int64(m), 10), 'm')
}

// Instant is a moment on a monotonic clock, in nanoseconds since an origin that the shell chose. The zero Instant means
// "no moment". Shells start their clocks above zero.
type Instant int64

// Add returns the instant d after t.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns the time from u to t.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// RoundUp returns t, or the first moment after it that is a multiple of step from the clock's origin.
func (t Instant) RoundUp(step time.Duration) Instant {
	s := Instant(step)
	return (t + s - 1) / s * s
}

// IsZero reports whether t means "no moment".
func (t Instant) IsZero() bool { return t == 0 }

// Earlier returns the earlier of t and u. The zero Instant counts as later than any moment. Wake-up times are merged
// with it.
func (t Instant) Earlier(u Instant) Instant {
	if t.IsZero() || (!u.IsZero() && u < t) {
		return u
	}
	return t
}

// Wall is a calendar moment in nanoseconds since the Unix epoch. The zero Wall means "never".
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

// Sub returns the calendar time from u to w. It is negative if the clock was set back in between.
func (w Wall) Sub(u Wall) time.Duration { return time.Duration(w - u) }
