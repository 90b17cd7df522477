package explain

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
)

// TestTextShowsSwap: everything that a decision counted as available is printed, and swap only if it counted.
func TestTextShowsSwap(t *testing.T) {
	const told = "Of memory that is available, 137Mi is swap that pods may use.\n"
	for swap, want := range map[unit.Bytes]bool{137 * unit.MiB: true, 0: false} {
		threshold := eviction.Threshold{Signal: allocatable.AllocatableMemory,
			Value: allocatable.Threshold{Amount: int64(100 * unit.MiB)}, Text: "100Mi"}
		d := journal.Decision{
			Facts: eviction.Facts{Memory: eviction.NodeMemory{SwapFree: unit.GiB, SwapRoom: swap}},
			Decided: eviction.Decision{Met: []eviction.Met{{
				Threshold: threshold, Observation: eviction.Observation{Available: int64(90 * unit.MiB),
					Capacity: int64(unit.GiB)}, Amount: int64(100 * unit.MiB), Acts: true,
			}}},
		}
		detail, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		err = Journal{Node: "n", Records: []journal.Record{{Time: time.Unix(0, 0), Kind: journal.Eviction,
			Detail: detail}}}.table(&text)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text.String(), "allocatableMemory.available  100Mi      90Mi") ||
			strings.Contains(text.String(), told) != want {
			t.Errorf("swap %v: want %v of %q in\n%s", swap, want, told, &text)
		}
	}
}
