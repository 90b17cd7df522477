package heap

import (
	"math/rand/v2"
	"slices"
	"testing"
)

type item struct{ key, place int }

// TestAgainstAPlainTwin adds, moves and removes random items, and compares with a list that is searched.
func TestAgainstAPlainTwin(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		byKey := func(a, b *item) int { return a.key - b.key }
		h := New(byKey, func(x *item) *int { return &x.place })
		items := make([]*item, 20)
		for i := range items {
			items[i] = new(item)
		}
		var in []*item
		for step := range 300 {
			x := items[rng.IntN(len(items))]
			if rng.IntN(3) > 0 {
				x.key = rng.IntN(50)
				h.Set(x)
				if !slices.Contains(in, x) {
					in = append(in, x)
				}
			} else {
				h.Remove(x)
				in = slices.DeleteFunc(in, func(y *item) bool { return x == y })
			}
			if h.Len() != len(in) || h.Has(x) != slices.Contains(in, x) {
				t.Fatalf("seed %d step %d: %d items, want %d; has it: %v", seed, step, h.Len(), len(in), h.Has(x))
			}
			if len(in) > 0 && h.First().key != slices.MinFunc(in, byKey).key {
				t.Fatalf("seed %d step %d: first is %d", seed, step, h.First().key)
			}
		}
		for last := -1; h.Len() > 0; {
			x := h.First()
			if x.key < last {
				t.Fatalf("seed %d: %d after %d", seed, x.key, last)
			}
			last = x.key
			h.Remove(x)
			if x.place != 0 {
				t.Fatalf("seed %d: removed and still at %d", seed, x.place)
			}
		}
	}
}
