package rows

import (
	"math/rand/v2"
	"testing"
)

// TestAmounts makes random changes and compares with a map: for resources that few rows have, that many have, and that
// change between these.
func TestAmounts(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var a Amounts
		want := map[Row]int64{}
		forms := map[bool]bool{}
		for range 2000 {
			among := [...]int32{3, 70, 1000}[r.IntN(3)]
			if r.IntN(20) == 0 { // nearly all rows lose their number
				for row := range want {
					if r.IntN(50) > 0 {
						a.Set(row, 0)
						delete(want, row)
					}
				}
			}
			row, value := Row(r.Int32N(among)), int64(r.IntN(4)-1)
			a.Set(row, value)
			if value == 0 {
				delete(want, row)
			} else {
				want[row] = value
			}
			forms[a.sparse != nil] = true
			if a.Rows() != len(want) || a.dense != nil && a.sparse != nil {
				t.Fatalf("seed %d: %d rows, want %d; both forms: %v", seed, a.Rows(), len(want), a.dense != nil && a.sparse != nil)
			}
		}
		for row := range Row(1100) {
			if got := a.At(row); got != want[row] {
				t.Fatalf("seed %d: row %d has %d, want %d", seed, row, got, want[row])
			}
		}
		seen := map[Row]int64{}
		if a.Few(func(row Row, value int64) { seen[row] = value }) && len(seen) != len(want) {
			t.Fatalf("seed %d: saw %d rows, want %d", seed, len(seen), len(want))
		}
		if !forms[true] || !forms[false] {
			t.Fatalf("seed %d: forms %v, want both", seed, forms)
		}
	}
}

// TestAmountsOfFewRows: ten thousand resources that one row each has take memory for one row each. A resource that all
// rows have is a slice.
func TestAmountsOfFewRows(t *testing.T) {
	var one, all Amounts
	one.Set(9_999, 5)
	if one.dense != nil || len(one.sparse) != 1 {
		t.Errorf("a slice of %d for one row", len(one.dense))
	}
	for row := range Row(10_000) {
		all.Set(row, 1)
	}
	if all.sparse != nil || len(all.dense) != 10_000 {
		t.Errorf("a map of %d for all rows", len(all.sparse))
	}
	for row := Row(9_999); row > 10; row-- {
		all.Set(row, 0)
	}
	if all.dense != nil || len(all.sparse) != 11 {
		t.Errorf("a slice of %d when eleven rows are left", len(all.dense))
	}
	for row := range Row(11) {
		all.Set(row, 0)
	}
	if all.dense != nil || all.Rows() != 0 {
		t.Errorf("a slice of %d for no row", len(all.dense))
	}
	for row := Row(9_999); row >= 0; row-- { // from the end: a map first
		all.Set(row, 1)
	}
	if all.sparse != nil {
		t.Error("a map for all rows")
	}
}
