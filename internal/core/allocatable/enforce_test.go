package allocatable

import (
	"fmt"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// The two reservations of issue 3: 256 shares and 524288000 bytes, 1024 shares and 1073741824 bytes.
func TestReservedGroupsOfTheIssue(t *testing.T) {
	l, err := Compute(example(), Settings{
		System:  Reserved{CPU: 250, Memory: 500 * unit.MiB},
		Kube:    Reserved{CPU: 1000, Memory: unit.GiB, PIDs: 1000},
		MaxPods: 110,
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		group                 Group
		compressible, protect bool
		want                  string // shares, weight, bytes, memory.min, pids
	}{
		{SystemReserved, false, false, "256 10 524288000 absent kept"},
		{SystemReserved, true, true, "256 10 kept absent kept"},
		{SystemReserved, false, true, "256 10 524288000 500Mi kept"},
		{KubeReserved, false, false, "1024 39 1073741824 absent 1000"},
		{KubeReserved, true, false, "1024 39 kept absent kept"},
	} {
		v := l.EnforcedOn(c.group, c.compressible, c.protect)
		memory := "kept"
		if bytes, ok := v.Memory.Get(); ok {
			memory = fmt.Sprint(int64(bytes))
		}
		if got := fmt.Sprintf("%d %d %s %v %v", v.CPUShares.OrZero(), v.CPUShares.OrZero().Weight(), memory, v.MemoryMin,
			v.PIDs); got != c.want {
			t.Errorf("%s, compressible %v, protect %v: %s, want %s", c.group, c.compressible, c.protect, got, c.want)
		}
	}
	// Resources without a reservation are not changed.
	if l, err = Compute(example(), Settings{System: Reserved{EphemeralStorage: unit.GiB}}); err != nil {
		t.Fatal(err)
	}
	if v := l.EnforcedOn(SystemReserved, false, true); v.CPUShares.IsSet() || !v.Memory.IsKept() || !v.PIDs.IsKept() ||
		v.MemoryMin.IsSet() || v.HugePages != nil {
		t.Errorf("nothing reserved: %+v", v)
	}
}
