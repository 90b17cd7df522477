//go:build e2e && lab

package lab

import (
	"fmt"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/lab"
)

// TestGuestsReachEachOther: guests of one Network reach each other at their addresses, also after one was switched off,
// but not while its cards are cut. A guest that is not in it reaches neither.
func TestGuestsReachEachOther(t *testing.T) {
	t.Parallel()
	var net lab.Network
	one := lab.Boot(t, "tiny", lab.Options{Name: "one", Network: &net})
	two := lab.Boot(t, "tiny", lab.Options{Name: "two", Network: &net})
	other := lab.Boot(t, "tiny", lab.Options{Name: "other"})
	// Nobody listens there. So whoever reaches the guest is refused by its kernel.
	reaches := func(from, to *lab.Guest) error {
		script := fmt.Sprintf("timeout 20 bash -c 'echo > /dev/tcp/%s/9'", to.IP)
		_, err := from.Output(t.Context(), "sh", "-c", script)
		if err != nil && strings.Contains(err.Error(), "Connection refused") {
			return nil
		}
		return fmt.Errorf("%s to %s at %s: %v", from.Name, to.Name, to.IP, err)
	}
	want := func(what string, from, to *lab.Guest, yes bool) {
		t.Helper()
		if err := reaches(from, to); (err == nil) != yes {
			t.Errorf("%s: reached: %v, want %v: %v", what, err == nil, yes, err)
		}
	}
	want("both are on", one, two, true)
	want("both are on", two, one, true)
	want("not in the network", other, one, false)
	want("not in the network", one, other, false)
	two.CutNetwork(t)
	want("cut", one, two, false)
	two.RestoreNetwork(t)
	want("restored", one, two, true)
	two.Kill()
	want("switched off", one, two, false)
	two.Restart(t)
	want("switched on again", one, two, true)
}
