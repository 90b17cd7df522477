package top

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// unknown stands for what is not known.
const unknown = "?"

// cpuText prints CPUs in at most five characters.
func cpuText(m unit.MilliCPU) string {
	switch n := float64(m) / float64(unit.CPU); {
	case m%unit.CPU == 0:
		return fmt.Sprint(int64(m / unit.CPU))
	case math.Abs(n) < 1:
		return fmt.Sprintf("%dm", int64(m))
	case math.Abs(n) < 100:
		return fmt.Sprintf("%.1f", n)
	default:
		return fmt.Sprintf("%.0f", n)
	}
}

// bytesText prints bytes in at most six characters.
func bytesText(b unit.Bytes) string {
	size, units := float64(b), "KMGTP"
	if math.Abs(size) < 1024 {
		return fmt.Sprint(int64(b))
	}
	at := -1
	for math.Abs(size) >= 999.5 && at < len(units)-1 {
		size /= 1024
		at++
	}
	if math.Abs(size) < 99.95 && size != math.Trunc(size) {
		return fmt.Sprintf("%.1f%ci", size, units[at])
	}
	return fmt.Sprintf("%.0f%ci", size, units[at])
}

// ageText prints a duration in at most four characters, up to 27 years.
func ageText(d time.Duration) string {
	switch d = max(d, 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// clean returns text that others wrote without control characters and characters that change the direction.
func clean(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == unicode.ReplacementChar {
			return ' '
		}
		return r
	}, text)
}

// levels are the heights of a sparkline's bars.
var levels = []rune("▁▂▃▄▅▆▇█")

// sparkline draws values between 0 and top, the newest last, in width characters. A negative value is a gap.
func sparkline(values []float64, top float64, width int) string {
	values = values[max(0, len(values)-max(width, 0)):]
	var out strings.Builder
	for _, v := range values {
		if v < 0 || math.IsNaN(v) {
			out.WriteByte(' ')
			continue
		}
		at := 0
		if top > 0 {
			at = int(math.Ceil(v/top*float64(len(levels)))) - 1
		}
		out.WriteRune(levels[min(max(at, 0), len(levels)-1)])
	}
	return out.String()
}

// loadLine draws what a node has of a resource as one bar: used, requested beyond that, free, reserved. The bar is all
// of capacity. What is used beyond the requests is used.
func loadLine(capacity, reserved, requested, used int64, width int) string {
	if capacity <= 0 || width <= 0 {
		return strings.Repeat(" ", max(width, 0))
	}
	cells := func(n int64) int {
		return min(max(int(math.Round(float64(n)/float64(capacity)*float64(width))), 0), width)
	}
	inUse := cells(used)
	asked := max(cells(requested), inUse)
	kept := min(cells(reserved), width-asked)
	return strings.Repeat("█", inUse) + strings.Repeat("▒", asked-inUse) + strings.Repeat("·", width-asked-kept) +
		strings.Repeat("╳", kept)
}
