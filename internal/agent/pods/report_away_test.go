package pods

import (
	"testing"
	"testing/synctest"
	"time"
)

// A server that does not answer is asked ever more rarely, by the whole node together, and at once again when it did.
func TestServerThatDoesNotAnswerIsLeftAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &reporter{}
		begun, asked := time.Now(), 0
		for time.Since(begun) < 2*time.Minute {
			if !p.allowed(t.Context()) {
				t.Fatal("not allowed though the context lives")
			}
			asked++
			p.answered(false)
			p.answered(false) // another writer's request failed at the same moment: noted once
		}
		// 0.5, 1, 2, 4, 8 and then 10 s apart on average: 17 in two minutes, between 11 and 34 with jitter.
		if asked < 11 || asked > 34 {
			t.Errorf("asked %d times in two minutes, want 11 to 34", asked)
		}
		p.allowed(t.Context())
		p.answered(true)
		p.answered(false)
		if wait := time.Until(p.until); wait > 2*awayMin {
			t.Errorf("after an answer the first wait is %v, want at most %v", wait, 2*awayMin)
		}
	})
}
