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
		t.Error("it has given no room back")
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
