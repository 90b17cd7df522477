package placement

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// checkTables holds what tables say about every queued pod to what the plain form says, and the bids kept in them to
// fresh ones.
func (h *history) checkTables() {
	c := h.placer.cluster
	for _, id := range slices.Sorted(maps.Keys(h.placer.queue.entries)) {
		e := h.placer.queue.entries[id]
		if c.wishes[id] != nil || e.pool == binding || e.pool == unsettled {
			continue
		}
		d := c.demandOf(e.class, e.who, e.pod.Owner)
		plain, fast := c.choosePlain(d, id), c.chooseFast(d, id)
		if plain.row != fast.row || plain.score != fast.score || plain.feasible != fast.feasible || fmt.Sprint(plain.failure) != fmt.Sprint(fast.failure) {
			h.t.Fatalf("pod %s: plain %+v %v, tables %+v %v", id, plain, plain.failure, fast, fast.failure)
		}
		h.sameChoice(d, id, plain, c.chooseBySurvey(d, id))
		if plain.failure == nil {
			continue
		}
		kept, whyKept := c.preempt(d, id)
		tables := d.tables
		d.tables = nil
		fresh, why := c.preempt(d, id)
		d.tables = tables
		if fmt.Sprint(kept) != fmt.Sprint(fresh) || why != whyKept {
			h.t.Fatalf("pod %s: kept bids %+v %q, fresh ones %+v %q", id, kept, whyKept, fresh, why)
		}
	}
}

// TestTablesAgree drives random histories with tables in use for every pod.
func TestTablesAgree(t *testing.T) {
	for seed := range uint64(30) {
		h := newHistory(t, 1000+seed)
		h.names = 12
		for range 150 {
			h.step()
			h.checkTables()
		}
		h.check()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestTreap holds treaps to sorted slices.
func TestTreap(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	const n = 200
	local, ring := make([]int32, n), make([]uint64, n)
	for i := range ring {
		ring[i] = rng.Uint64()
	}
	tree, root := newTreap(n), int32(nobody)
	in := map[int32]bool{}
	for range 20000 {
		x := int32(rng.IntN(n))
		if in[x] {
			root = tree.remove(root, x, local, ring)
			delete(in, x)
		} else {
			local[x] = int32(rng.IntN(5))
			root = tree.insert(root, x, local, ring)
			in[x] = true
		}
		if len(in) == 0 {
			continue
		}
		sorted := slices.SortedFunc(maps.Keys(in), func(a, b int32) int {
			if before(local[a], ring[a], a, b, local, ring) {
				return -1
			}
			return 1
		})
		if first := tree.first(root); first != sorted[0] {
			t.Fatalf("first %d, want %d", first, sorted[0])
		}
		place, top := rng.Uint64(), local[sorted[0]]
		best := sorted[0]
		for _, y := range sorted {
			if local[y] == top && ring[y]-place < ring[best]-place {
				best = y
			}
		}
		if got := tree.from(root, top, place, local, ring); got != row(best) {
			t.Fatalf("from %d: %d, want %d", place, got, best)
		}
	}
}
