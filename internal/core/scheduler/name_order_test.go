package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestNameOrder: whatever nodes come and go, and however many of them before it is asked, byName has those that are
// present, in order, with their rows.
func TestNameOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	p := New(Options{})
	for round := range 400 {
		for range rng.IntN(2 * lateMax) {
			name := fmt.Sprintf("n%d", rng.IntN(150))
			if rng.IntN(2) == 0 {
				p.NodeSeen(1, Node{Name: name, PodsMax: 1})
			} else {
				p.NodeGone(1, name)
			}
		}
		var want []namedRow
		for name, r := range p.cluster.rows {
			if p.cluster.seen[r] {
				want = append(want, namedRow{name, r})
			}
		}
		slices.SortFunc(want, func(a, b namedRow) int {
			if a.name < b.name {
				return -1
			}
			return 1
		})
		if got := p.cluster.byName(); !slices.Equal(got, want) {
			t.Fatalf("round %d: %v, want %v", round, got, want)
		}
	}
}
