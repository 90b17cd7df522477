package rows

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestMask compares masks with sets of numbers.
func TestMask(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		a, b := map[Row]bool{}, map[Row]bool{}
		var m, o Mask
		for range rng.IntN(40) {
			r, s := Row(rng.IntN(200)), Row(rng.IntN(150))
			a[r], b[s] = true, true
			m, o = m.With(r), o.Put(s, true)
		}
		both := func(in bool) (out []Row) {
			for r := range Row(200) {
				if a[r] && b[r] == in {
					out = append(out, r)
				}
			}
			return out
		}
		rowsOf := func(m Mask) (out []Row) {
			m.Each(func(r Row) { out = append(out, r) })
			return out
		}
		if m.Count() != len(a) || m.None() != (len(a) == 0) {
			t.Fatalf("%d rows of %d", m.Count(), len(a))
		}
		only, less := m.CopyOf(nil), m.CopyOf(nil)
		only.Only(o)
		less.Less(o)
		if !slices.Equal(rowsOf(only), both(true)) || !slices.Equal(rowsOf(less), both(false)) {
			t.Fatalf("%v only, %v less; want %v and %v", rowsOf(only), rowsOf(less), both(true), both(false))
		}
		var met []Row
		m.Both(o, func(r Row) { met = append(met, r) })
		if !slices.Equal(met, both(true)) || m.Meets(o) != (len(met) > 0) || !only.Within(o) ||
			m.Within(o) != (len(both(false)) == 0) {
			t.Fatalf("met %v, meets %v, within %v", met, m.Meets(o), m.Within(o))
		}
		for r := range a {
			m.Clear(r)
		}
		if m.Unless(true); !m.None() {
			t.Fatal("the mask is not empty")
		}
	}
}

// TestChangeLog checks that each changed row is returned once, and that dropped changes are reported.
func TestChangeLog(t *testing.T) {
	var l ChangeLog
	for range 3 {
		l.AddRow()
	}
	l.Add(0)
	from := l.End()
	l.Add(2)
	l.Add(1)
	l.Add(2)
	var seen []Row
	next, ok := l.Since(from, func(r Row) { seen = append(seen, r) })
	if !ok || next != l.End() || !slices.Equal(seen, []Row{1, 2}) {
		t.Errorf("%v, %v", seen, ok)
	}
	for range changesMax {
		l.Add(0)
	}
	if _, ok := l.Since(from, func(Row) {}); ok {
		t.Error("dropped changes are reported as complete")
	}
}

// TestColumn checks that a cleared row is like a new one.
func TestColumn(t *testing.T) {
	var x Column[string]
	x.AddRow()
	x.AddRow()
	x[1] = "y"
	x.ClearRow(1)
	if len(x) != 2 || x[1] != "" {
		t.Errorf("%q", x)
	}
}
