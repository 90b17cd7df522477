package turns

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurns: workers are admitted in the order in which their pods came, whatever the order in which the workers wait.
// If one never comes, the others wait patienceMax for it, once.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var line Order[*int]
		var mu sync.Mutex
		var order []int
		entries := make([]*int, 50)
		for i := range entries {
			entries[i] = new(int)
			line.Join(entries[i])
		}
		rng := rand.New(rand.NewPCG(1, 1))
		for i, e := range entries {
			if i == 20 {
				continue // its worker is stuck
			}
			late := time.Duration(rng.IntN(400)) * time.Millisecond
			go func() {
				time.Sleep(late)
				line.Await(e)
				defer line.Leave(e)
				mu.Lock()
				defer mu.Unlock()
				order = append(order, i)
			}()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if len(order) != len(entries)-1 || !slices.IsSorted(order[:20]) {
			t.Errorf("admitted: %v", order)
		}
		next := new(int)
		line.Join(next)
		began := time.Now()
		line.Await(next)
		if time.Since(began) != 0 {
			t.Errorf("the next waited for %v, though nobody is before it", time.Since(began))
		}
	})
}
