package numa

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestLikeness: States of one Layout that append the same likeness give every pod the same answer, whatever their
// history.
func TestLikeness(t *testing.T) {
	const seed, layouts, steps = 17, 60, 200
	met := 0
	for i := range layouts {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		w := newWorld(t, rng)
		seen := map[string]*State{}
		for range steps {
			w.next++
			if pod := w.anyPod(); pod != "" && rng.IntN(2) == 0 {
				w.release(pod)
			} else {
				w.admit()
			}
			key := string(w.s.AppendLikeness(nil))
			before := seen[key]
			if before == nil {
				seen[key] = w.s.Fork()
				continue
			}
			for range 3 {
				met++
				p := w.randomPod("asks")
				_, a := before.Offer(p, nil)
				_, b := w.s.Offer(p, nil)
				if said, says := told(a), told(b); said != says {
					t.Fatalf("seed %d layout %d: alike, but one says %q, the other %q", seed, i, said, says)
				}
			}
		}
	}
	if met < 1000 {
		t.Errorf("only %d questions to states that are alike: too few to mean anything", met)
	}
}

func told(r *Rejection) string {
	if r == nil {
		return ""
	}
	return fmt.Sprint(r.Reason, r.Message())
}
