package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
)

// held returns the pods that count on node: bound ones, and those that the Placer assumes there.
func (h *history) held(node string) []Pod {
	var out []Pod
	for _, id := range slices.Sorted(maps.Keys(h.pods)) {
		p := h.pods[id]
		if held := h.placer.cluster.pods[id]; p.Node == node ||
			p.Node == "" && held != nil && h.placer.cluster.name[held.Row] == node {
			out = append(out, p)
		}
	}
	return out
}

func (h *history) check() {
	c := h.placer.cluster
	fresh := newCluster(0)
	for _, n := range h.nodes {
		fresh.setNode(n)
	}
	copyStorage(c, fresh)
	h.checkStorage()
	for id, held := range c.pods {
		p := h.pods[id]
		fresh.setPod(&p, c.name[held.Row], true)
		if p, ok := h.pods[id]; !ok || p.Node != "" && p.Node != c.name[held.Row] {
			h.t.Errorf("pod %s counts on %q, but is on %q (exists: %v)", id, c.name[held.Row], p.Node, ok)
		}
	}
	for id, p := range h.pods {
		if p.Node != "" && c.pods[id] == nil {
			h.t.Errorf("bound pod %s is not counted", id)
		}
	}
	if a, b := dump(c), dump(fresh); !slices.Equal(a, b) {
		h.t.Errorf("columns differ from a fresh count:\n%q\n%q", a, b)
	}
	h.checkCounters()
	h.checkExpected()
	h.checkWaiting()
	h.checkBudgets()
	h.checkReferences()
}

// tryable returns the pending pods that may be placed before the outcome of a bind is known, by ID.
func (p *Placer) tryable() []*entry {
	return slices.SortedFunc(func(yield func(*entry) bool) {
		for e := range p.queue.All() {
			if e.Pool() != queue.Binding && e.Pool() != queue.BindUnknown && !yield(e) {
				return
			}
		}
	}, func(a, b *entry) int { return cmp.Compare(a.ID, b.ID) })
}

// checkWaiting evaluates all waiting pods for all rows: the plain form of evaluateWaiters and continueSearches.
func (h *history) checkWaiting() {
	c := h.placer.cluster
	h.placer.evaluateWaiters(h.now)
	for _, w := range c.waits.of {
		for _, id := range sortedIDs(w.pods) {
			e := w.pods[id]
			d := c.demandOf(e.class, e.who, e.pod.Owner)
			for r := range c.name {
				if c.seen[r] && c.feasible(d, "", row(r)) {
					h.t.Errorf("pod %s waits although it fits on %s", id, c.name[r])
				}
				if !w.search.on && c.mayEvict(d) && !c.awaitsVictims(d, id) && c.makesRoom(d, id, row(r)) {
					h.t.Errorf("pod %s waits although evictions from %s would make room", id, c.name[r])
				}
			}
		}
	}
	for e := range h.placer.queue.All() {
		if e.flushed {
			h.t.Errorf("pod %s fit, and only the check of long-waiting pods found it", e.ID)
		}
	}
}

// seekAll continues searches until none is left.
func (h *history) seekAll() {
	for h.placer.evaluateWaiters(h.now); len(h.placer.cluster.waits.searching) > 0; h.placer.evaluateWaiters(h.now) {
		h.placer.searchDue = 0
		h.placer.continueSearches(h.now)
	}
}

// makesRoom reports whether evictions from row r make room.
func (c *cluster) makesRoom(d *demand, self PodID, r row) bool {
	b, _ := c.costOn(d, self, r)
	return b.state == costHelps
}

func (c *cluster) evictsSomewhere(d *demand, self PodID) bool {
	return slices.ContainsFunc(slices.Collect(maps.Values(c.rows)), func(r row) bool { return c.makesRoom(d, self, r) })
}

// checkCounters compares every counter with a count over all pods and rows.
func (h *history) checkCounters() {
	c := h.placer.cluster
	keys := map[int32]int{}
	for _, list := range c.labels {
		for _, l := range list {
			keys[l.Key]++
		}
	}
	if !maps.Equal(keys, c.keys) {
		h.t.Fatalf("keys of labels are counted as %v, want %v", c.keys, keys)
	}
	for k := range c.Counters() {
		key := k.Of
		if !k.Listed() {
			h.t.Fatalf("the counter of %v is not at its index in the list of its pod set", key)
		}
		want, rows := map[int32]int32{}, map[int32]int32{}
		for r := range c.name {
			value, ok := c.TopologyValue(row(r), key.Topo.Key)
			if got := key.Topo.At(row(r)); ok != (got != census.NoDomain) || ok && key.Topo.Value[got] != value {
				h.t.Errorf("row %d (%s) is in domain %d", r, c.name[r], got)
			}
			if ok && (key.Scope == nil || key.Scope.Admits(&c.nodes, row(r))) {
				rows[value]++
				for _, p := range c.podsOn[r] {
					want[value] += counts(c, key, p)
				}
			}
		}
		total := int64(0)
		least := int32(math.MaxInt32)
		for value := range rows {
			total += int64(want[value])
			least = min(least, want[value])
		}
		having := 0
		k.Count.Each(func(d, n int32) {
			having++
			if value := key.Topo.Value[d]; n == 0 || want[value] != n {
				h.t.Errorf("counter %v: domain %d has %d pods, want %d", key.What, d, n, want[value])
			}
		})
		for _, n := range want {
			if n != 0 {
				having--
			}
		}
		if k.Total != total || having != 0 {
			h.t.Errorf("counter %v: total %d, want %d; %d domains with pods too many", key.What, k.Total, total, having)
		}
		h.checkCoverage(k, rows, least)
	}
}

// checkCoverage compares the coverage of a counter with a count of its rows, and its fewest with the smallest count.
func (h *history) checkCoverage(k *census.Counter, rows map[int32]int32, least int32) {
	if k.Of.Scope == nil {
		return
	}
	for d, n := range k.Coverage.Rows {
		if n != 0 && n != rows[k.Of.Topo.Value[d]] {
			h.t.Errorf("coverage: domain %d has %d rows, want %d", d, n, rows[k.Of.Topo.Value[d]])
		}
	}
	if k.Coverage.Domains != len(rows) || len(rows) > 0 && k.Fewest() != least {
		h.t.Errorf("coverage: %d domains, fewest pods %d; want %d, %d", k.Coverage.Domains, k.Fewest(), len(rows), least)
	}
}

// counts returns what pod p adds to a counter, by its definition.
func counts(c *cluster, key census.CounterKey, p *placedPod) int32 {
	switch key.What {
	case census.CountPods, census.CountLivePods:
		if key.Set.Has(c.Census, p.Who) && !(key.What == census.CountLivePods && p.Deleting) {
			return 1
		}
		return 0
	}
	n := int32(0)
	for _, t := range p.class.ownTerms {
		if t.Counter.Of == key {
			n += t.Weight
		}
	}
	return n
}

// checkReferences checks that nothing remains of pods that are gone.
func (h *history) checkReferences() {
	c := h.placer.cluster
	assumed := 0
	for _, p := range c.pods {
		if !p.confirmed {
			assumed++
		}
	}
	if _, pods, n := h.placer.Sizes(); n != assumed || pods != len(c.pods) {
		h.t.Errorf("%d of %d pods are assumed, want %d of %d", n, pods, assumed, len(c.pods))
	}
	refs := map[any]int{}
	hold := func(k *class, who *census.Identity) { refs[k]++; refs[who]++ }
	for _, p := range c.pods {
		hold(p.class, p.Who)
	}
	for _, w := range c.nominations {
		hold(w.class, w.Who)
	}
	for e := range h.placer.queue.All() {
		hold(e.class, e.who)
	}
	for _, k := range c.classes {
		if k.refs != refs[k] {
			h.t.Errorf("class has %d refs, want %d", k.refs, refs[k])
		}
	}
	for who := range c.Identities() {
		if who.Refs != refs[who] {
			h.t.Errorf("identity has %d refs, want %d", who.Refs, refs[who])
		}
	}
}

// dump returns the rows of c as text, in the order of names.
func dump(c *cluster) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(c.rows)) {
		r := c.rows[name]
		if !c.seen[r] && c.podCount[r] == 0 {
			continue // a pod is nominated there
		}
		line := fmt.Sprintf("%s seen %v held %d/%d score %d %d ports %v cordon %v", name, c.seen[r], c.podCount[r],
			c.podsMax[r], c.scoreCPU[r], c.scoreMemory[r], len(c.ports[r]), c.unschedulable[r])
		for _, res := range slices.Sorted(maps.Keys(c.columns.byName)) {
			i := c.columns.byName[res]
			if c.columns.has(i, r) != 0 || c.columns.takes(i, r) != 0 {
				line += fmt.Sprintf(" %s %d/%d", res, c.columns.takes(i, r), c.columns.has(i, r))
			}
		}
		out = append(out, line+c.storage.Describe(r, "d"))
	}
	return out
}
