package shrink

import (
	"slices"
	"testing"
)

func TestMap(t *testing.T) {
	m, gone := map[int]int{}, 0
	for i := range 3 * shrunkAfter {
		m[i] = i
	}
	was := m
	for i := range 3*shrunkAfter - 5 {
		delete(m, i)
		m = Map(m, &gone)
	}
	m[-1] = 1
	if _, same := was[-1]; same {
		t.Error("the map was not copied")
	}
	if len(m) != 6 || m[3*shrunkAfter-1] != 3*shrunkAfter-1 {
		t.Errorf("%d entries are left", len(m))
	}
}

func TestWithout(t *testing.T) {
	if got := Without([]string{"a", "b", "c", "b"}, "b"); !slices.Equal(got, []string{"a", "c"}) {
		t.Errorf("%v", got)
	}
}

func TestOldHalf(t *testing.T) {
	m := map[string]uint64{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
	OldHalf(m, func(used uint64) uint64 { return used })
	if len(m) != 2 || m["d"] != 4 || m["e"] != 5 {
		t.Errorf("%v", m)
	}
}
