package fleet

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// FuzzReadOrder: an order from the control socket is one to execute now, or an error.
func FuzzReadOrder(f *testing.F) {
	for _, text := range []string{"silence 3 for 1m", "at 5m silence 10%", "heal all", "kill n-1,n-2", "", " \n"} {
		cost.Attack(f, text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if o, err := readOrder(text); err == nil && o.At > 0 {
			t.Errorf("%q is taken for an order at %v", text, o.At)
		}
	})
}
