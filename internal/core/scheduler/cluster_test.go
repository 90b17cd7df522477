package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// TestHistories drives a Placer through random histories and checks after every step that
//   - the columns equal a fresh count over the nodes and pods that exist,
//   - no pod in the unschedulable pool fits on any node (no lost wake-up),
//   - no node is over-committed by a placement of ours (a pod bound by others may do that),
//
// At the end, when every bind has succeeded, no pod that fits somewhere may be pending.
func TestHistories(t *testing.T) {
	for _, seed := range seedsFrom(t, 0, 60) {
		h := newHistory(t, seed)
		if h.decorated = seed%2 == 1; h.decorated {
			h.names = 1 // so that pods wait for one rule alone
		}
		for range 200 {
			h.step()
			h.check()
		}
		h.settle()
		h.check()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// fewer returns n, or a quarter of it under the race detector.
func fewer(n int) int {
	if racing {
		return n / 4
	}
	return n
}

// seedsFrom returns n seeds of histories, starting with first; under the race detector a quarter of them. PLIMSOLL_SEED
// and PLIMSOLL_SEEDS select other seeds and multiply their number (make histories).
func seedsFrom(t *testing.T, first uint64, n int) (seeds []uint64) {
	t.Helper()
	read := func(name string, otherwise uint64) uint64 {
		text := os.Getenv(name)
		if text == "" {
			return otherwise
		}
		x, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("read %s: %v", name, err)
		}
		return x
	}
	first += read("PLIMSOLL_SEED", 0)
	for i := range uint64(fewer(n)) * read("PLIMSOLL_SEEDS", 1) {
		seeds = append(seeds, first+i)
	}
	return seeds
}

// played is a test that prints the seed with each failure.
type played struct {
	*testing.T
	seed uint64
}

func (p played) Errorf(format string, args ...any) {
	p.Helper()
	p.T.Errorf("seed %d: "+format, append([]any{p.seed}, args...)...)
}

func (p played) Fatalf(format string, args ...any) {
	p.Helper()
	p.T.Fatalf("seed %d: "+format, append([]any{p.seed}, args...)...)
}

// history is a random cluster: the true state, and the Placer that receives it.
type history struct {
	t      played
	rng    *rand.Rand
	placer *Placer
	now    unit.Instant
	nodes  map[string]Node
	pods   map[PodID]Pod // Node is set when the API has them bound
	flight map[PodID]string
	made   int
	names  int // of nodes
	// outranked pods have lost their nomination to another pod.
	outranked map[PodID]bool
	stores    bool // with storage
	decorated bool // with all fields that rules read
	// overcommits says that the profile has no resource rule.
	overcommits bool

	layouts  []*numa.Layout
	verdicts map[string]int // of agents' offers, met in checks
}

func newHistory(t *testing.T, seed uint64) *history {
	return &history{
		t: played{t, seed}, rng: rand.New(rand.NewPCG(seed, 1)), placer: New(Options{Seed: seed}), now: unit.Instant(time.Hour),
		nodes: map[string]Node{}, pods: map[PodID]Pod{}, flight: map[PodID]string{}, names: 5, outranked: map[PodID]bool{},
		verdicts: map[string]int{},
		layouts:  []*numa.Layout{layoutOf(t, 1, 2, numa.PolicySingleNUMANode), layoutOf(t, 2, 2, numa.PolicySingleNUMANode), layoutOf(t, 2, 3, numa.PolicyRestricted)},
	}
}

// step makes one random change, and checks that it made only pods active that fit.
func (h *history) step() {
	q := h.placer.queue
	waiting := map[PodID]Pod{}
	for _, w := range h.placer.cluster.waits.of {
		for id, e := range w.pods {
			if h.placer.cluster.nominations[id] == nil { // who has one looks elsewhere when it comes to nothing
				waiting[id] = e.pod
			}
		}
	}
	what := h.happen()
	h.placer.evaluateWaiters(h.now)
	if h.rng.IntN(2) == 0 {
		h.seekAll()
	}
	if what == namespaceChanged || what == placed || what == placedToo {
		return // pods of the namespace have other identities now; or the room is taken again
	}
	for id, before := range waiting {
		e := q.find(id)
		if e == nil || e.Pool() != queue.Active && e.Pool() != queue.Backoff || !reflect.DeepEqual(e.pod, before) || h.outranked[id] {
			continue // gone, still waiting, or another pod than it was
		}
		c := h.placer.cluster
		d := c.demandOf(e.class, e.who, e.pod.Owner)
		fits := func(r row) bool { return c.seen[r] && c.feasible(d, id, r) }
		if !slices.ContainsFunc(slices.Collect(maps.Values(c.rows)), fits) && !(c.mayEvict(d) && c.evictsSomewhere(d, id)) {
			h.t.Errorf("pod %s was woken (step %d) although it fits nowhere", id, what)
		}
	}
}

// The kinds of changes.
const (
	placed           = 8
	placedToo        = 9
	namespaceChanged = 12
	storageChanged   = 13
)

func (h *history) happen() (what int) {
	h.now = h.now.Add(time.Duration(h.rng.IntN(1500)) * time.Millisecond)
	if h.stores && h.rng.IntN(2) == 0 {
		h.happenStorage()
		return storageChanged
	}
	if h.rng.IntN(8) == 0 {
		h.changeBudget()
	}
	what = h.rng.IntN(14)
	switch what {
	case namespaceChanged:
		team := []string{"red", "blue"}[h.rng.IntN(2)]
		h.placer.NamespaceSeen(h.now, []string{"x", "y"}[h.rng.IntN(2)], []Label{{Key: "team", Value: team}})
	case 13:
		name := fmt.Sprintf("n%d", h.rng.IntN(h.names))
		if h.rng.IntN(5) == 0 {
			h.placer.ReportGone(h.now, name)
		} else {
			h.placer.ReportSeen(h.now, name, h.randomReport(name))
		}
	case 0, 1:
		n := h.randomNode()
		if h.decorated {
			decorateNode(h.rng, &n)
			if was, known := h.nodes[n.Name]; known && h.rng.IntN(4) > 0 { // only one property changes
				field := h.rng.IntN(reflect.TypeFor[Node]().NumField())
				reflect.ValueOf(&was).Elem().Field(field).Set(reflect.ValueOf(n).Field(field))
				n = was
			}
		}
		h.nodes[n.Name] = n
		h.placer.NodeSeen(h.now, n)
	case 2:
		if name, ok := pick(h.rng, h.nodes); ok {
			delete(h.nodes, name)
			h.placer.NodeGone(h.now, name)
		}
	case 3, 4, 5:
		p := h.randomPod()
		if h.decorated {
			decoratePod(h.rng, &p)
		}
		h.pods[p.ID] = p
		h.placer.PodSeen(h.now, p)
	case 6:
		if id, ok := pick(h.rng, h.pods); ok {
			delete(h.pods, id)
			delete(h.flight, id)
			h.placer.PodGone(h.now, id)
		}
	case 7:
		h.repeatOrChange()
	case placed, placedToo:
		h.place()
	default:
		if id, ok := pick(h.rng, h.flight); ok {
			h.land(id, h.rng.IntN(4))
		}
	}
	return what
}

func (h *history) changeBudget() {
	b := Budget{Namespace: []string{"x", "y"}[h.rng.IntN(2)], Name: []string{"b0", "b1"}[h.rng.IntN(2)], Allowed: int32(h.rng.IntN(3))}
	b.Selector.Requirements = []Requirement{{Key: "app", Op: In, Values: []string{[]string{"web", "db"}[h.rng.IntN(2)]}}}
	if id, ok := pick(h.rng, h.pods); ok && h.rng.IntN(4) == 0 {
		b.Disrupted = []string{string(id)}
	}
	if h.rng.IntN(5) == 0 {
		h.placer.BudgetGone(h.now, b.Namespace, b.Name)
	} else {
		h.placer.BudgetSeen(h.now, b)
	}
}

// checkBudgets compares budgets' pods and numbers with a fresh count, and checks that no charges remain for pods that
// are gone, or that are no victims.
func (h *history) checkBudgets() {
	c := h.placer.cluster
	for _, in := range c.budgets.in {
		h.checkCharges(in)
		for _, b := range in.byName {
			if in.numbers.of[b.number] != b || b.of.budgets[b.place] != b || !b.of.selector.Equal(&b.Selector) {
				h.t.Errorf("budget %s is not where it should be", b.Name)
			}
		}
		for _, s := range in.bySelector {
			least := int32(anyNumber)
			for _, b := range s.budgets {
				least = min(least, b.left())
			}
			if len(s.budgets) == 0 || s.leastLeft() != least {
				h.t.Errorf("%d budgets with one selector allow %d at least, known: %d", len(s.budgets), least, s.leastLeft())
			}
		}
	}
	for who := range c.Identities() {
		known := budgetsOf(who)
		for _, b := range allBudgets(c, who.Namespace) {
			if in := len(who.Labels) > 0 && b.Selector.Matches(who.Labels); in != slices.Contains(known, b) {
				h.t.Errorf("pods with labels %v are in budget %s: %v, known: %v", who.Labels, b.Name, in, !in)
			}
		}
	}
	for _, pods := range c.podsOn {
		h.checkOverBudget(pods)
	}
}

func allBudgets(c *cluster, namespace string) []*budget {
	if in := c.budgets.in[namespace]; in != nil {
		return slices.Collect(maps.Values(in.byName))
	}
	return nil
}

// budgetsOf returns the budgets that are recorded for the pods of who.
func budgetsOf(who *census.Identity) (all []*budget) {
	for s := range dataOf(who).budgets.each {
		all = append(all, s.budgets...)
	}
	return all
}

func (h *history) checkCharges(in *budgetsIn) {
	c := h.placer.cluster
	charges, named := map[*budget]int32{}, map[string]int{}
	for id, x := range in.charged {
		w, pod := c.nominations[x.by], c.pods[id]
		if !x.ending && (pod == nil || w == nil || !slices.Contains(w.victims, id)) {
			h.t.Errorf("budgets are charged for pod %s (%v) by %s, which evicts %v", id, pod, x.by, w)
		}
		n := 0
		x.on.Each(func(number row) {
			n++
			b := in.numbers.of[number]
			charges[b]++
			if !x.ending && pod != nil && !slices.Contains(budgetsOf(pod.Who), b) {
				h.t.Errorf("budget %s is charged for pod %s, which it does not select", b.Name, id)
			}
		})
		if n != x.count || n == 0 {
			h.t.Errorf("pod %s is charged to %d budgets, known: %d", id, n, x.count)
		}
	}
	for _, b := range in.byName {
		if b.charges != charges[b] {
			h.t.Errorf("budget %s is charged for %d pods, known: %d", b.Name, charges[b], b.charges)
		}
		for _, pod := range b.Disrupted {
			named[pod]++
		}
	}
	if !maps.Equal(named, in.named) {
		h.t.Errorf("budgets name %v, known: %v", named, in.named)
	}
}

// checkOverBudget compares overBudget with each budget's own numbers.
func (h *history) checkOverBudget(pods []*placedPod) {
	c := h.placer.cluster
	for range 2 { // in two orders
		left := map[*budget]int32{}
		for i, over := range c.overBudget(pods) {
			pod, want, spent := pods[i], false, false
			for _, b := range allBudgets(c, pod.Who.Namespace) {
				charge := b.of.in.charged[pod.id]
				selects := len(pod.Who.Labels) > 0 && b.Selector.Matches(pod.Who.Labels)
				if !selects || slices.Contains(b.Disrupted, pod.name) || charge != nil && charge.on.Has(b.number) {
					continue
				}
				if _, known := left[b]; !known {
					left[b] = b.left()
				}
				left[b]--
				want, spent = want || left[b] < 0, spent || b.left() <= 0
			}
			if over != want || pod.isProtected() != spent {
				h.t.Errorf("pod %s, the %d. to be evicted, is over a budget: %v, spent: %v; want %v, %v",
					pod.id, i, over, pod.isProtected(), want, spent)
			}
		}
		pods = slices.Clone(pods)
		slices.Reverse(pods)
	}
}

func (h *history) place() {
	wished := slices.Collect(maps.Keys(h.placer.cluster.nominations))
	d, ok := h.placer.Next(h.now)
	for _, id := range wished {
		if h.placer.cluster.nominations[id] == nil {
			h.outranked[id] = true // another pod is nominated there: it must look elsewhere
		}
	}
	if ok && d.Preemption != nil {
		h.evict(d)
	}
	if !ok || d.Failure != nil {
		return
	}
	if n := h.nodes[d.Node]; !h.overcommits && !roomy(n, h.held(d.Node), d.Pod) {
		h.t.Errorf("pod %s was placed on %s, which is over-committed by it", d.Pod.ID, d.Node)
	}
	if d.Volumes == nil {
		h.flight[d.Pod.ID] = d.Node
	}
}

// evict continues evictions: they fail, are done at once, begin, or are still in progress.
func (h *history) evict(d Decision) {
	how := h.rng.IntN(4)
	if how == 0 {
		h.placer.Retry(h.now, d.Pod.ID)
	}
	for _, v := range d.Preemption.Victims {
		if v.Assumed && how > 1 && h.rng.IntN(2) == 0 {
			delete(h.flight, v.ID)
			h.placer.Bound(h.now, h.pods[v.ID], BindWithdrawn)
			continue
		}
		switch p := h.pods[v.ID]; how {
		case 1:
			delete(h.pods, v.ID)
			delete(h.flight, v.ID)
			h.placer.PodGone(h.now, v.ID)
		case 2:
			if p.Node != "" {
				p.Deleting, p.Preempted = true, true
				h.pods[v.ID] = p
				h.placer.PodSeen(h.now, p)
			}
		}
	}
}

// land ends a bind: 0 refused, 1 answer lost and not done, 2 answer lost but done, 3 done.
func (h *history) land(id PodID, how int) {
	p, node := h.pods[id], h.flight[id]
	delete(h.flight, id)
	switch how {
	case 0:
		h.placer.Bound(h.now, p, BindRefused)
	case 1:
		h.placer.Bound(h.now, p, BindLost)
	case 2, 3:
		bound := p
		bound.Node = node
		h.pods[id] = bound
		if how == 3 {
			h.placer.Bound(h.now, p, BindDone)
		} else {
			h.placer.Bound(h.now, p, BindLost)
		}
		h.placer.PodSeen(h.now, bound)
	}
}

// repeatOrChange repeats a fact, resizes a bound pod, or binds a pod as another scheduler would.
func (h *history) repeatOrChange() {
	id, ok := pick(h.rng, h.pods)
	if !ok {
		return
	}
	p := h.pods[id]
	if name, ok := pick(h.rng, h.nodes); ok && p.Node == "" && h.rng.IntN(3) == 0 {
		p.Node = name
		h.pods[id] = p
		delete(h.flight, id)
	} else if p.Node != "" && h.rng.IntN(3) == 0 {
		p.Deleting = true
		h.pods[id] = p
	} else if h.rng.IntN(4) == 0 {
		p.Labels = []Label{{Key: "app", Value: []string{"web", "db"}[h.rng.IntN(2)]}}
		if h.flight[id] == "" {
			h.pods[id] = p
		}
	} else if p.Node != "" && h.rng.IntN(2) == 0 {
		p.Requests = []Amount{{CPU, int64(h.rng.IntN(4) * 250)}, {Memory, int64(h.rng.IntN(4) * 250)}}
		h.pods[id] = p
	}
	h.placer.PodSeen(h.now, p)
}

func (h *history) settle() {
	for range 1000 {
		h.seekAll()
		h.place()
		for _, id := range slices.Sorted(maps.Keys(h.flight)) { // in order: a seed is one history
			h.land(id, 3)
		}
		h.now = h.now.Add(time.Second)
	}
	for id, p := range h.pods {
		if p.Node != "" || len(p.Gates) > 0 {
			continue
		}
		for _, v := range h.placer.Verdicts(p) {
			if v.Plugin == "" {
				h.t.Errorf("pod %s waits although it fits on %s", id, v.Node)
			}
		}
		if e := h.placer.queue.find(id); e.Pool() == queue.Unschedulable && h.placer.cluster.mayEvict(e.demand) && !h.placer.cluster.awaitsVictims(e.demand, id) {
			for _, x := range h.placer.Evictions(p) {
				h.t.Errorf("pod %s waits although evictions from %s would make room", id, x.Node)
			}
		}
	}
}

// held returns the pods that count on node: bound ones, and those that the Placer assumes there.
func (h *history) held(node string) []Pod {
	var out []Pod
	for _, id := range slices.Sorted(maps.Keys(h.pods)) {
		p := h.pods[id]
		if held := h.placer.cluster.pods[id]; p.Node == node || p.Node == "" && held != nil && h.placer.cluster.name[held.Row] == node {
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
			h.t.Errorf("pod %s counts on %q, the truth has %q (exists: %v)", id, c.name[held.Row], p.Node, ok)
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
	h.checkHolds()
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

// checkWaiting evaluates all waiting pods for all rows: the plain form of what hear and continueSearches find.
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
			h.t.Errorf("pod %s had been forgotten", e.ID)
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
			h.t.Fatalf("the counter of %v is not at its place with its aim", key)
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
			h.t.Errorf("counter %v: total %d, want %d, %d domains too many", key.What, k.Total, total, having)
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
			h.t.Errorf("ground: domain %d has %d rows, want %d", d, n, rows[k.Of.Topo.Value[d]])
		}
	}
	if k.Coverage.Domains != len(rows) || len(rows) > 0 && k.Fewest() != least {
		h.t.Errorf("ground: %d domains, fewest %d; want %d, %d", k.Coverage.Domains, k.Fewest(), len(rows), least)
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

// checkHolds checks that nothing remains for pods that are gone.
func (h *history) checkHolds() {
	c := h.placer.cluster
	assumed := 0
	for _, p := range c.pods {
		if !p.confirmed {
			assumed++
		}
	}
	if _, pods, n := h.placer.Sizes(); n != assumed || pods != len(c.pods) {
		h.t.Errorf("%d assumed of %d, want %d of %d", n, pods, assumed, len(c.pods))
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
		line := fmt.Sprintf("%s seen %v held %d/%d score %d %d ports %v cordon %v", name, c.seen[r], c.podCount[r], c.podsMax[r], c.scoreCPU[r], c.scoreMemory[r], len(c.ports[r]), c.unschedulable[r])
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

// roomy reports whether pods fit on n together, by the resources that the last of them requests.
func roomy(n Node, pods []Pod, last Pod) bool {
	taken, have := map[string]int64{}, map[string]int64{}
	for _, p := range pods {
		for _, a := range p.Requests {
			taken[a.Resource] += a.Value
		}
	}
	for _, a := range n.Allocatable {
		have[a.Resource] = a.Value
	}
	for _, a := range last.Requests {
		if a.Value > 0 && taken[a.Resource] > have[a.Resource] {
			return false
		}
	}
	return int64(len(pods)) <= n.PodsMax
}

func (h *history) randomNode() Node {
	n := Node{Name: fmt.Sprintf("n%d", h.rng.IntN(h.names)), PodsMax: int64(h.rng.IntN(6)), Unschedulable: h.rng.IntN(5) == 0}
	if h.stores && h.rng.IntN(4) == 0 {
		n.AgentLacks = []string{wellknown.LacksCSI, "volumes.nfs"}[h.rng.IntN(2):]
	}
	n.Allocatable = []Amount{{CPU, int64(h.rng.IntN(4) * 500)}, {Memory, int64(h.rng.IntN(4) * 500)}}
	if h.rng.IntN(3) == 0 {
		n.Allocatable = append(n.Allocatable, Amount{"example.com/gpu", int64(h.rng.IntN(3))})
	}
	if h.rng.IntN(3) == 0 {
		n.Taints = []Taint{{Key: "t", Value: "", Effect: NoSchedule}}
	}
	if h.rng.IntN(2) == 0 {
		n.Labels = []Label{{Key: "disk", Value: []string{"ssd", "hdd"}[h.rng.IntN(2)]}}
	}
	if h.rng.IntN(8) != 0 {
		n.Labels = append(n.Labels, Label{Key: hostKey, Value: n.Name}, Label{Key: "zone", Value: []string{"a", "b", "c"}[h.rng.IntN(3)]})
	}
	return n
}

func (h *history) randomPod() Pod {
	h.made++
	p := Pod{ID: PodID(fmt.Sprintf("p%d", h.made)), Priority: int32(h.rng.IntN(3)), IncomingLoad: Load{100, 200}, PlacedLoad: Load{unit.MilliCPU(h.rng.IntN(200)), 200}}
	p.Requests = []Amount{{CPU, int64(h.rng.IntN(4) * 250)}, {Memory, int64(h.rng.IntN(4) * 250)}}
	switch h.rng.IntN(8) {
	case 0:
		p.Tolerations = []Toleration{{Key: "t", Exists: true}}
	case 1:
		p.NodeSelector = []Label{{Key: "disk", Value: "ssd"}}
	case 2:
		p.Ports = []HostPort{{AnyIP, "TCP", 80}}
	case 3:
		p.Requests = append(p.Requests, Amount{"example.com/gpu", 1})
	case 4:
		p.Gates = []string{"g"}
	}
	if h.rng.IntN(3) == 0 {
		p.NUMA = pinned(1 + h.rng.IntN(3))
	}
	p.Name, p.Namespace = string(p.ID), []string{"x", "y"}[h.rng.IntN(2)]
	if h.stores {
		h.randomMounts(&p)
	}
	if h.rng.IntN(4) != 0 {
		p.Labels = []Label{{Key: "app", Value: []string{"web", "db"}[h.rng.IntN(2)]}}
	}
	key := func() string { return []string{hostKey, "zone", "disk"}[h.rng.IntN(3)] }
	app := func() LabelSelector {
		s := LabelSelector{}
		if h.rng.IntN(8) != 0 {
			s.Requirements = []Requirement{{Key: "app", Op: In, Values: []string{[]string{"web", "db"}[h.rng.IntN(2)]}}}
		}
		return s
	}
	term := func() PodTerm {
		t := PodTerm{Selector: app(), Namespaces: []string{p.Namespace}, NamespaceSelector: LabelSelector{Nothing: true}, TopologyKey: key()}
		if h.rng.IntN(4) == 0 {
			t.Namespaces, t.NamespaceSelector = nil, LabelSelector{Requirements: []Requirement{{Key: "team", Op: In, Values: []string{"red"}}}}
		}
		return t
	}
	for h.rng.IntN(3) == 0 {
		p.Spread = append(p.Spread, SpreadConstraint{MaxSkew: 1 + int32(h.rng.IntN(2)), TopologyKey: key(), Hard: h.rng.IntN(2) == 0, Selector: app(),
			MinDomains: 1 + int32(h.rng.IntN(2)), IgnoreAffinity: h.rng.IntN(4) == 0, HonorTaints: h.rng.IntN(3) == 0})
	}
	switch h.rng.IntN(9) {
	case 0:
		p.Affinity = append(p.Affinity, term())
	case 1:
		p.AntiAffinity = append(p.AntiAffinity, term())
	case 2:
		p.PreferredAffinity = append(p.PreferredAffinity, WeightedPodTerm{int64(1 + h.rng.IntN(100)), term()})
	case 3:
		p.PreferredAntiAffinity = append(p.PreferredAntiAffinity, WeightedPodTerm{int64(1 + h.rng.IntN(100)), term()})
	case 4:
		p.Affinity, p.PreferredAffinity = append(p.Affinity, term(), term()), []WeightedPodTerm{{5, term()}}
	}
	return p
}

const hostKey = "kubernetes.io/hostname"

// pick draws a key; the order of the draw is that of the sorted keys, so that a seed gives one history.
func pick[K ~string, V any](rng *rand.Rand, m map[K]V) (K, bool) {
	if len(m) == 0 {
		return "", false
	}
	return slices.Sorted(maps.Keys(m))[rng.IntN(len(m))], true
}
