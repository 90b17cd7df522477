package kubeletconfig

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// FuzzAmounts reads reservations and thresholds: an accepted one can be subtracted, and the error names each other.
func FuzzAmounts(f *testing.F) {
	for _, seed := range []string{"500Mi", "250m", "1e3", "0.5", "10%", "0%", "100%", "-1", "9Ei", "1e18",
		"9223372036854775807", "NaN%", "1n", "", " 1", "0x10%", "9227000000000000000"} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		var p problems
		names := []string{"cpu", "memory", "ephemeral-storage", resourcePIDs}
		for _, name := range names {
			before := len(p)
			r := parseReserved("systemReserved", map[string]string{name: text}, &p)
			if r.CPU < 0 || r.Memory < 0 || r.EphemeralStorage < 0 || r.PIDs < 0 {
				t.Errorf("%s %q: below zero: %+v", name, text, r)
			}
			if taken := r != (allocatable.Reserved{}); taken && len(p) > before {
				t.Errorf("%s %q: taken and refused: %+v, %v", name, text, r, p[before:])
			}
		}
		before := len(p)
		got := parseThresholds("evictionHard", map[string]string{"memory.available": text}, &p)
		threshold, taken := got[allocatable.MemoryAvailable]
		if taken && len(p) > before {
			t.Errorf("%q: taken and refused: %+v, %v", text, threshold, p[before:])
		}
		if v := threshold.Value; v.Amount < 0 || v.Share < 0 || v.Share > 1 || v.Of(1<<40) < 0 {
			t.Errorf("%q: %+v", text, threshold)
		}
	})
}
