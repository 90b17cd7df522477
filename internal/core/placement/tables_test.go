package placement

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

// checkTables holds what tables say about every queued pod to what the plain form says.
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
		h.checkBids(d, id)
	}
}

// checkBids holds the choice of whom to evict to one among all rows, asked afresh; bids that are kept to fresh ones;
// and bounds to bids.
func (h *history) checkBids(d *demand, id PodID) {
	c := h.placer.cluster
	d.bids.worth = d.bids.worth || h.rng.IntN(2) == 0
	kept, whyKept := c.preempt(d, id)
	if !c.mayEvict(d) {
		return
	}
	least := c.boundsFor(d)
	best, cheapest := row(noRow), bid{}
	for i := range c.name {
		r := row(i)
		b, _ := c.bidFor(d, id, r)
		if rows := d.bids.rows; len(rows) > i && rows[i].state != bidUnknown && rows[i] != b {
			h.t.Fatalf("pod %s: kept bid for %s %+v, fresh one %+v", id, c.name[r], rows[i], b)
		}
		if b.state == bidGood && (least[i].state != bidGood || compareBids(&least[i], &b) > 0) {
			h.t.Fatalf("pod %s: bound of %s %+v, bid %+v", id, c.name[r], least[i], b)
		}
		if order := compareBids(&b, &cheapest); b.state == bidGood && (best == noRow || order < 0 || order == 0 && c.winsTie(r, best, c.turnOf(id))) {
			best, cheapest = r, b
		}
	}
	fresh, why := (*Preemption)(nil), whyKept
	if best != noRow {
		_, victims := c.bidFor(d, id, best)
		fresh, why = c.preemptionOf(best, &cheapest, victims), ""
	}
	if fmt.Sprint(kept) != fmt.Sprint(fresh) || why != whyKept || best == noRow && why != c.hopelessByRow(d, id) {
		h.t.Fatalf("pod %s: by bounds and kept bids %+v %q, by fresh ones %+v %q", id, kept, whyKept, fresh, why)
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
