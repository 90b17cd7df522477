package idset

import (
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestParse(t *testing.T) {
	for text, want := range map[string][]int{
		"": nil, "\n": nil, "0": {0}, "0-3\n": {0, 1, 2, 3}, "0-1,4,6-7": {0, 1, 4, 6, 7},
		"7,1": {1, 7}, "1,1-2": {1, 2}, "63-64": {63, 64}, "8191": {8191},
		"62-129": span(62, 129), "0-63": span(0, 63), "64-127": span(64, 127), "5-5": {5},
	} {
		s, err := Parse(text)
		if got := slices.Collect(s.All()); err != nil || !slices.Equal(got, want) || s.Len() != len(want) ||
			s.IsEmpty() != (len(want) == 0) {
			t.Errorf("%q: %v, %v, want %v", text, got, err, want)
		}
		if !s.Equal(Of(want...)) {
			t.Errorf("%q: not equal to its ids", text)
		}
	}
	for text, reason := range map[string]string{
		"x": "not a number", "1-": "not a number", "-1": "not a number", "1,,2": "not a number", "1 2": "not a number",
		"3-1": "ends before", "8192": "above", "0-8192": "above", "0-99999999999": "not a number",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%q: %v, want %q", text, err, reason)
		}
	}
}

func span(first, last int) (ids []int) {
	for id := first; id <= last; id++ {
		ids = append(ids, id)
	}
	return ids
}

// TestParseBounds: no list gives a set of more than a kilobyte, and none has more entries than sets need.
func TestParseBounds(t *testing.T) {
	whole := strings.TrimSuffix(strings.Repeat("0-8191,", partsMax), ",")
	cost.Under(t, cost.Budget{Bytes: 2048, BytesPerByte: 1}, 0, func() {
		if s, err := Parse(whole); err != nil || s.Len() != Max+1 {
			t.Errorf("%d ids, %v", s.Len(), err)
		}
	})
	if _, err := Parse(whole + ",1"); err == nil || !strings.Contains(err.Error(), "more than 4096 entries") {
		t.Errorf("one entry more: %v", err)
	}
}

func TestString(t *testing.T) {
	for _, text := range []string{"", "0", "0-1", "0,2", "0-3,8,10-11", "62-65", "5,7,9"} {
		s, err := Parse(text)
		if err != nil || s.String() != text {
			t.Errorf("%q became %q, %v", text, s.String(), err)
		}
	}
}

func TestMinusAndHas(t *testing.T) {
	s := Of(0, 1, 2, 64, 70).Minus(Of(1, 70, 1000))
	if s.String() != "0,2,64" || !s.Has(64) || s.Has(70) || s.Has(-1) || s.Has(9999) {
		t.Errorf("got %s", s)
	}
	if d := s.Minus(s); !d.IsEmpty() || !d.Equal(Set{}) {
		t.Errorf("s minus s is %s", d)
	}
}

// TestAlgebra compares the set operations with operations on single ids.
func TestAlgebra(t *testing.T) {
	sets := []Set{{}, Of(0), Of(1, 63, 64), Of(0, 64, 200), Of(200), Of(0, 1, 2, 3, 128)}
	for _, a := range sets {
		for _, b := range sets {
			var union, both, minus Set
			for id := range 256 {
				if a.Has(id) || b.Has(id) {
					union.add(id)
				}
				if a.Has(id) && b.Has(id) {
					both.add(id)
				}
				if a.Has(id) && !b.Has(id) {
					minus.add(id)
				}
			}
			if !a.Union(b).Equal(union) || !a.Intersect(b).Equal(both) || !a.Minus(b).Equal(minus) {
				t.Errorf("%v and %v: union %v, intersection %v, difference %v", a, b, a.Union(b), a.Intersect(b), a.Minus(b))
			}
		}
	}
	if (Set{}).Lowest() != -1 || Of(70, 200).Lowest() != 70 {
		t.Error("the lowest id is wrong")
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"0-3,8", "", "1-", "8191", "62-129", "3-1", "0,0,0"} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		cost.Under(t, cost.Budget{}, len(text), func() { _, _ = Parse(text) })
		s, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(s.String())
		if err != nil || !again.Equal(s) {
			t.Errorf("%q became %q became %q, %v", text, s, again, err)
		}
	})
}
