package cgroup

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/psi"
)

// The limit is the limit of swap alone, although v1 has a limit of memory and swap together. If the kernel does not
// account for swap, usage is absent.
func TestSwap(t *testing.T) {
	limited, unlimited := unit.LimitTo(unit.Bytes(904)), unit.Unlimited[unit.Bytes]()
	for name, c := range map[string]struct {
		files  map[string]string
		change map[string]string
		used   unit.Amount[unit.Bytes]
		limit  unit.Limit[unit.Bytes]
	}{
		"v1": {v1Counters(),
			map[string]string{"memory/kubepods/podu/memory.memsw.limit_in_bytes": "5000\n"}, unit.Of[unit.Bytes](20), limited},
		"v1, no limit": {v1Counters(), nil, unit.Of[unit.Bytes](20), unlimited},
		"v1, memory limit is more": {v1Counters(),
			map[string]string{"memory/kubepods/podu/memory.memsw.limit_in_bytes": "4000\n"}, unit.Of[unit.Bytes](20),
			unit.LimitTo(unit.Bytes(0))},
		"v1, no accounting": {v1Counters(), map[string]string{"memory/kubepods/podu/memory.stat": "total_rss 1\n"},
			unit.Amount[unit.Bytes]{}, unit.Limit[unit.Bytes]{}},
		"v2": {v2Counters(), map[string]string{"kubepods/podu/memory.swap.max": "904\n"},
			unit.Of[unit.Bytes](20), limited},
		"v2, no limit": {v2Counters(), nil, unit.Of[unit.Bytes](20), unlimited},
	} {
		dir := t.TempDir()
		fill(t, dir, c.files)
		fill(t, dir, c.change)
		s, err := open(t, dir).Swap(counted)
		if err != nil || s.Used != c.used || s.Limit != c.limit {
			t.Errorf("%s: %v of %v, %v; want %v of %v", name, s.Used, s.Limit, err, c.used, c.limit)
		}
	}
}

func TestPressureOfAGroup(t *testing.T) {
	dir := t.TempDir()
	fill(t, dir, v2Counters())
	p, err := open(t, dir).Pressure(counted, "memory")
	if err != nil || p.Some.Total != 21*time.Microsecond || p.Full.Total != 17*time.Microsecond {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := open(t, dir).Pressure("/kubepods/gone", "cpu"); !errors.Is(err, psi.ErrNone) {
		t.Errorf("a group that is not there: %v", err)
	}
	v1 := t.TempDir()
	fill(t, v1, v1Counters())
	fill(t, filepath.Join(v1, "memory"), map[string]string{"kubepods/podu/memory.pressure": "some"})
	if _, err := open(t, v1).Pressure(counted, "memory"); !errors.Is(err, psi.ErrNone) {
		t.Errorf("v1: %v", err)
	}
}
