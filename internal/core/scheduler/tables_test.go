package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
)

// checkTables compares tables for every queued pod with the plain form.
func (h *history) checkTables() {
	c := h.placer.cluster
	for _, e := range h.placer.tryable() {
		id := e.pod.ID
		if c.nominations[id] != nil {
			continue
		}
		d := c.demandOf(e.class, e.who, e.pod.Owner)
		plain, fast := c.choosePlain(d, id), c.chooseByTables(d, id)
		// Nominated pods may change which rule rejects a row, and tables may report either rule.
		told := len(c.nominations) > 0 && d.volumes != nil || fmt.Sprint(plain.failure) == fmt.Sprint(fast.failure)
		if plain.row != fast.row || plain.score != fast.score || plain.feasible != fast.feasible || !told {
			h.t.Fatalf("pod %s: plain %+v %v, tables %+v %v", id, plain, plain.failure, fast, fast.failure)
		}
		h.sameChoice(d, id, plain, c.chooseByMasks(d, id))
		if plain.failure == nil {
			continue
		}
		h.checkCosts(d, id)
	}
}

// checkCosts compares the choice of victims with one among all rows, kept costs with fresh ones, and bounds with costs.
func (h *history) checkCosts(d *demand, id PodID) {
	c := h.placer.cluster
	d.costs.worth = d.costs.worth || h.rng.IntN(2) == 0
	if h.rng.IntN(4) == 0 {
		c.countTooLow(d, len(c.name)) // now it gets exact bounds
	}
	kept, whyKept := c.preempt(d, id)
	if !c.mayEvict(d) {
		return
	}
	bounds := c.boundsFor(d)
	for i := range c.name {
		if h.rng.IntN(2) == 0 {
			bounds.addBudgets(c, row(i))
		}
	}
	least := bounds.rows
	best, cheapest := row(noRow), preemptCost{}
	for i := range c.name {
		r := row(i)
		b, _ := c.costOn(d, id, r)
		if kept := &d.costs; kept.known.Has(r) && kept.rows[i] != b {
			h.t.Fatalf("pod %s: kept cost for %s %+v, fresh one %+v", id, c.name[r], kept.rows[i], b)
		}
		own := c.nominations[id] != nil && c.nominations[id].Row == r // bounds count the pod as nominated there
		if b.state == costHelps && !own && (least[i].state != costHelps || compareCosts(&least[i], &b) > 0) {
			h.t.Fatalf("pod %s: bound of %s %+v, cost %+v", id, c.name[r], least[i], b)
		}
		if order := compareCosts(&b, &cheapest); b.state == costHelps &&
			(best == noRow || order < 0 || order == 0 && c.winsTie(r, best, c.tieOffset(id))) {
			best, cheapest = r, b
		}
	}
	fresh, why := (*Preemption)(nil), whyKept
	if best != noRow {
		_, victims := c.costOn(d, id, best)
		fresh, why = c.preemptionOf(best, &cheapest, victims), ""
	}
	if fmt.Sprint(kept) != fmt.Sprint(fresh) || why != whyKept || best == noRow && why != h.whyNoPreemptionPlain(d, id) {
		h.t.Fatalf("pod %s: by bounds and kept costs %+v %q, by fresh ones %+v %q", id, kept, whyKept, fresh, why)
	}
}

// whyNoPreemptionPlain computes for each row separately why no eviction helps.
func (h *history) whyNoPreemptionPlain(d *demand, id PodID) string {
	c := h.placer.cluster
	reasons := map[string]int{}
	for i := range c.name {
		r := row(i)
		if !c.seen[r] {
			continue
		}
		helps, _ := c.mayHelp(d, id, r)
		switch {
		case !helps:
			reasons[reasonNotHelpful]++
		case !c.anyBelowOn(r, d.priority):
			reasons[reasonNoVictims]++
		default:
			for _, reason := range c.stillRejected(d, id, r) {
				reasons[reason]++
			}
		}
	}
	f := Failure{Nodes: c.seenCount, Reasons: reasons}
	return f.String()
}

// TestTablesAgree runs random histories with tables for every pod.
func TestTablesAgree(t *testing.T) {
	seeds := []uint64{5556514} // once, a kept cost was used after the last other domain, with a nominated pod, was gone
	seeds = append(seeds, seedsFrom(t, 1000, 30)...)
	for _, seed := range seeds {
		h := newHistory(t, seed)
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

// TestTreap compares treaps with sorted slices.
func TestTreap(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	const n = 200
	local, tieHash := make([]int32, n), make([]uint64, n)
	for i := range tieHash {
		tieHash[i] = rng.Uint64()
	}
	tree, root := newTreap(n), int32(nobody)
	in := map[int32]bool{}
	for range fewer(20000) {
		x := int32(rng.IntN(n))
		if in[x] {
			root = tree.remove(root, x, local, tieHash)
			delete(in, x)
		} else {
			local[x] = int32(rng.IntN(5))
			root = tree.insert(root, x, local, tieHash)
			in[x] = true
		}
		if len(in) == 0 {
			continue
		}
		sorted := slices.SortedFunc(maps.Keys(in), func(a, b int32) int {
			if before(local[a], tieHash[a], a, b, local, tieHash) {
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
			if local[y] == top && tieHash[y]-place < tieHash[best]-place {
				best = y
			}
		}
		if got := tree.from(root, top, place, local, tieHash); got != row(best) {
			t.Fatalf("from %d: %d, want %d", place, got, best)
		}
	}
}

// TestTablesAreNotReplacedForEachPod checks pods of more classes in rotation than may have tables, with few changes
// between them: they must not replace each other's tables for each pod.
func TestTablesAreNotReplacedForEachPod(t *testing.T) {
	const nodes, kinds = 1000, tablesMax + 1
	p := mixCluster(&mixture{prepare: replicaSets(kinds)}, nodes)
	built, pods := 0, 4*kinds*tablesAfter(nodes)
	had := map[*demand]*tables{}
	for i := range pods {
		x := benchPod("p" + strconv.Itoa(i))
		spreadByOwner(&x, i%kinds)
		p.PodSeen(2, x)
		if d, _ := p.Next(2); d.Node == "" {
			t.Fatal(d.Failure)
		}
		for d := range p.cluster.demands.all {
			if d.tables != nil && d.tables != had[d] {
				built++
			}
			had[d] = d.tables
		}
	}
	if built == 0 || built > pods/tablesAfter(nodes) {
		t.Errorf("%d tables were built for %d pods", built, pods)
	}
}
