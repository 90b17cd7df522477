package scheduler

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// TestLatest: only the latest work per object is done, never two at once for one object. Withdrawn work is not done.
func TestLatest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := newWorkQueue[string, int]()
		var mu sync.Mutex
		var did []int
		busy, most := map[int]int{}, 0
		go l.run(ctx, 3, func(ctx context.Context, v int) bool {
			mu.Lock()
			if busy[v/100]++; busy[v/100] > 1 {
				t.Errorf("two workers at once for object %d", v/100)
			}
			n := 0
			for _, at := range busy {
				n += at
			}
			most = max(most, n)
			mu.Unlock()
			time.Sleep(time.Second)
			mu.Lock()
			defer mu.Unlock()
			busy[v/100]--
			if !kube.IsWithdrawn(ctx) {
				did = append(did, v)
			}
			return true
		})
		l.put("a", 100)
		synctest.Wait()
		l.put("a", 101)
		l.put("a", 102) // replaces 101, after 100
		l.put("b", 200)
		l.put("c", 300)
		l.put("d", 400) // all three workers are busy
		synctest.Wait()
		if l.withdraw("d") != nil {
			t.Error("d is being done")
		}
		l.put("d", 401)
		done := l.withdraw("c")
		<-done
		elapse(10 * time.Second)
		slices.Sort(did)
		if !slices.Equal(did, []int{100, 102, 200, 401}) {
			t.Errorf("did %v", did)
		}
		if most != 3 {
			t.Errorf("%d were done at once, want one for each worker", most)
		}
		cancel()
		synctest.Wait()
	})
}

// TestLatestInAnyOrder: whatever is put, withdrawn and fails, no two workers process one object at a time, and the
// latest work is done, unless it was withdrawn.
func TestLatestInAnyOrder(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			rng := rand.New(rand.NewPCG(seed, 0))
			l := newWorkQueue[int, int]()
			var mu sync.Mutex
			busy, did, last := map[int]bool{}, map[int]int{}, map[int]int{}
			go l.run(ctx, 2, func(_ context.Context, v int) bool {
				k := v / 1000
				mu.Lock()
				takes, done := time.Duration(rng.IntN(500))*time.Millisecond, rng.IntN(5) > 0
				if busy[k] {
					t.Errorf("seed %d: two workers at once for object %d", seed, k)
				}
				busy[k] = true
				mu.Unlock()
				time.Sleep(takes) // virtual
				mu.Lock()
				defer mu.Unlock()
				if busy[k] = false; done {
					did[k] = v
				}
				return done
			})
			for i := range 500 {
				mu.Lock()
				k, withdraws, wait := rng.IntN(4), rng.IntN(10) == 0, time.Duration(rng.IntN(200))*time.Millisecond
				v := 1000*k + i
				if last[k] = v; withdraws {
					delete(last, k)
				}
				mu.Unlock()
				if l.put(k, v); withdraws {
					l.withdraw(k)
				}
				if i%3 == 0 {
					elapse(wait)
				}
			}
			elapse(time.Hour)
			for k, v := range last {
				if did[k] != v {
					t.Errorf("seed %d: object %d: the latest work, %d, is not done, but %d is", seed, k, v, did[k])
				}
			}
			if l.waiting() > 0 {
				t.Errorf("seed %d: %d wait", seed, l.waiting())
			}
			cancel()
			synctest.Wait()
		})
	}
}

// TestLatestTriesAgain: failed work is tried again, after pauses that grow up to retryMax, unless newer work was added
// or it was withdrawn meanwhile.
func TestLatestTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := newWorkQueue[string, int]()
		var mu sync.Mutex
		tries := map[int]int{}
		go l.run(ctx, 2, func(_ context.Context, v int) bool {
			mu.Lock()
			defer mu.Unlock()
			tries[v]++
			return v == 2 || v == 5 && tries[v] > 1
		})
		l.put("a", 1)
		l.put("b", 3)
		l.put("c", 4)
		elapse(retryFirst / 2)
		if l.waiting() != 3 {
			t.Errorf("%d wait, want all that have failed", l.waiting())
		}
		elapse(retryFirst)
		mu.Lock()
		if tries[4] != 2 {
			t.Errorf("tried %d times, want a second time after the first pause", tries[4])
		}
		tries[1], tries[3], tries[4] = 1, 1, 1
		mu.Unlock()
		l.put("a", 2)
		l.withdraw("b")
		elapse(time.Hour)
		// At 0, 10, 30, 70 s, and then every minute.
		if l.waiting() != 1 {
			t.Errorf("%d wait, want the one that always fails", l.waiting())
		}
		if tries[1] != 1 || tries[2] != 1 || tries[3] != 1 || tries[4] < 60 || tries[4] > 63 {
			t.Errorf("tries %v; want one each for work that was replaced, done or withdrawn", tries)
		}
		l.put("d", 5)
		elapse(time.Hour)
		if l.waiting() != 1 {
			t.Errorf("%d wait, but the second try succeeded", l.waiting())
		}
		l.withdraw("c")
		if l.waiting() != 0 {
			t.Errorf("%d wait", l.waiting())
		}
		slow := make(chan struct{})
		m := newWorkQueue[string, int]()
		go m.run(ctx, 1, func(context.Context, int) bool {
			<-slow
			return false
		})
		m.put("a", 1)
		synctest.Wait()
		m.withdraw("a")
		close(slow)
		synctest.Wait()
		if m.waiting() != 0 {
			t.Error("work that was withdrawn while it was tried waits for its next try")
		}
		cancel()
		synctest.Wait()
	})
}
