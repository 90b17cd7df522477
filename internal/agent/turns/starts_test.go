package turns

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A tenant sends a hundred pods, or one of a hundred containers; another's pod does not wait for them.
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
				time.Sleep(time.Second) // what the runtime takes
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

// Pods that no longer want to start, as their turns come, lose no slot.
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

// Whoever gives way to starts learns when no pod waits for a slot any more: all have one, or have given up.
func TestStartsThatWaitAreSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		line := NewStarts(1)
		first := line.Slot()
		if err := first.Take(t.Context(), "a"); err != nil || line.Waiting() != nil {
			t.Fatalf("one has the only slot (%v), and one is said to wait", err)
		}
		for _, givesUp := range []bool{false, true} {
			ctx, cancel := context.WithCancel(t.Context())
			go func() {
				second := line.Slot()
				defer second.Release()
				if err := second.Take(ctx, "b"); (err != nil) != givesUp {
					t.Error(err)
				}
			}()
			synctest.Wait()
			calm := line.Waiting()
			if calm == nil {
				t.Fatal("one waits, and none is said to")
			}
			if givesUp {
				cancel()
			} else {
				first.Release()
			}
			synctest.Wait()
			select {
			case <-calm:
			default:
				t.Errorf("none waits any more (gave up: %t), and nobody is told", givesUp)
			}
			if line.Waiting() != nil {
				t.Errorf("none waits any more (gave up: %t), and one is said to", givesUp)
			}
			if err := first.Take(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
	})
}
