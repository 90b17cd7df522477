package turns

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A tenant creates a hundred pods, or one with a hundred containers: another tenant's pod does not wait for all of
// them.
func TestNamespacesTakeTurnsToStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := NewStarts(2)
		start := func(namespace string, containers int) {
			slot := line.Slot()
			defer slot.Release()
			for range containers {
				if err := slot.Take(t.Context(), namespace); err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second) // the runtime's work (virtual)
			}
		}
		for range 100 {
			go start("many", 1)
		}
		synctest.Wait()
		begun := time.Now()
		start("one", 2)
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("behind a hundred pods a start took %s, want its own 2 s and one of another", took)
		}
		time.Sleep(time.Minute)
		for range 2 {
			go start("large", 100)
		}
		synctest.Wait()
		begun = time.Now()
		start("one", 2)
		if took := time.Since(begun); took > SlotTime+3*time.Second {
			t.Errorf("behind a pod of a hundred containers a start took %s, want its own 2 s and %s", took, SlotTime)
		}
		time.Sleep(time.Hour)
		if n := line.Taken(); n != 0 {
			t.Errorf("%d slots are held by nobody", n)
		}
	})
}

// If pods give up as their turns come, no slot is lost.
func TestStartsThatAreGivenUpHoldNoSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := NewStarts(1)
		for i := range 100 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Second)
				defer cancel()
				slot := line.Slot()
				defer slot.Release()
				for ctx.Err() == nil {
					if err := slot.Take(ctx, []string{"a", "b", "c"}[i%3]); (err == nil) != slot.taken {
						t.Errorf("with the error %v a slot is taken: %t", err, slot.taken)
					}
					time.Sleep(SlotTime)
				}
			}()
		}
		time.Sleep(time.Hour)
		if n := line.Taken(); n != 0 {
			t.Errorf("%d slots are held by nobody", n)
		}
	})
}

// Busy's channel is closed when a burst of starts is over, whether its pods started or gave up. A later start that need
// not wait does not delay that.
func TestStartsThatWaitAreSeen(t *testing.T) {
	over := func(busy <-chan struct{}) bool {
		select {
		case <-busy:
			return true
		default:
			return false
		}
	}
	synctest.Test(t, func(t *testing.T) {
		line := NewStarts(2)
		take := func(ctx context.Context, s *Slot) {
			if err := s.Take(ctx, "a"); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
		for _, givesUp := range []bool{false, true} {
			first := line.Slot()
			second := line.Slot()
			third := line.Slot()
			fourth := line.Slot()
			take(t.Context(), first)
			take(t.Context(), second)
			if line.Busy() != nil {
				t.Fatal("two have the slots, and one is said to wait")
			}
			ctx, cancel := context.WithCancel(t.Context())
			go take(ctx, third)
			synctest.Wait()
			busy := line.Busy()
			if busy == nil {
				t.Fatal("one waits, and none is said to")
			}
			if givesUp {
				cancel()
				synctest.Wait()
			}
			first.Release() // the third gets its slot, or none does
			synctest.Wait()
			if over(busy) {
				t.Errorf("starts go on (gave up: %t), and are said to be over", givesUp)
			}
			second.Release()
			take(t.Context(), fourth)
			if !givesUp {
				third.Release()
			}
			if !over(busy) || line.Busy() != nil {
				t.Errorf("the starts that waited are over (gave up: %t), and nobody is told", givesUp)
			}
			fourth.Release()
			cancel()
			if n := line.Taken(); n != 0 {
				t.Errorf("%d slots are held by nobody", n)
			}
		}
	})
}
