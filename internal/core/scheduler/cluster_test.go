package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestHistories drives a Placer through random histories and checks after every step that
//   - the columns equal a fresh count over the nodes and pods that exist,
//   - no pod in the unschedulable pool fits on any node (no notification was lost),
//   - no placement over-commits a node (a pod bound by another scheduler may do that),
//
// At the end, when every bind has succeeded, no pod that fits somewhere may be pending.
func TestHistories(t *testing.T) {
	for _, seed := range seedsFrom(t, 0, 60) {
		h := newHistory(t, seed)
		if h.decorated = seed%2 == 1; h.decorated {
			h.names = 1 // so that a waiting pod is rejected by one rule only
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
	verdicts map[string]int // how often checks met each verdict of NUMA rules
}

func newHistory(t *testing.T, seed uint64) *history {
	return &history{
		t:      played{t, seed},
		rng:    rand.New(rand.NewPCG(seed, 1)),
		placer: New(Options{Seed: seed}),
		now:    unit.Instant(time.Hour),
		nodes:  map[string]Node{}, pods: map[PodID]Pod{}, flight: map[PodID]string{}, names: 5, outranked: map[PodID]bool{},
		verdicts: map[string]int{},
		layouts: []*numa.Layout{
			layoutOf(t, 1, 2, numa.PolicySingleNUMANode), layoutOf(t, 2, 2, numa.PolicySingleNUMANode),
			layoutOf(t, 2, 3, numa.PolicyRestricted),
		},
	}
}

// step makes one random change, and checks that all pods that became active fit.
func (h *history) step() {
	q := h.placer.queue
	waiting := map[PodID]Pod{}
	for _, w := range h.placer.cluster.waits.of {
		for id, e := range w.pods {
			if h.placer.cluster.nominations[id] == nil { // a nominated pod is also tried again if its preemption has failed
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
		return // the pods have other identities now, or the room is taken again
	}
	for id, before := range waiting {
		e := q.find(id)
		if e == nil || e.Pool() != queue.Active && e.Pool() != queue.Backoff || !reflect.DeepEqual(e.pod, before) ||
			h.outranked[id] {
			continue // it is gone, still waits, or is another pod now
		}
		c := h.placer.cluster
		d := c.demandOf(e.class, e.who, e.pod.Owner)
		fits := func(r row) bool { return c.seen[r] && c.feasible(d, id, r) }
		if !slices.ContainsFunc(slices.Collect(maps.Values(c.rows)), fits) && !(c.mayEvict(d) && c.evictsSomewhere(d, id)) {
			h.t.Errorf("pod %s became active (step %d) although it fits nowhere", id, what)
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

func (h *history) place() {
	wished := slices.Collect(maps.Keys(h.placer.cluster.nominations))
	d, ok := h.placer.Next(h.now)
	for _, id := range wished {
		if h.placer.cluster.nominations[id] == nil {
			h.outranked[id] = true // a pod of higher priority took its node: it is tried again
		}
	}
	if ok && d.Preemption != nil {
		h.evict(d)
	}
	if !ok || d.Failure != nil {
		return
	}
	if n := h.nodes[d.Node]; !h.overcommits && !roomy(n, h.held(d.Node), d.Pod) {
		h.t.Errorf("pod %s was placed on %s and over-commits it", d.Pod.ID, d.Node)
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

// land ends a bind. how: 0 refused, 1 the answer is lost and the pod not bound, 2 the answer is lost and the pod bound,
// 3 bound.
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
		for _, id := range slices.Sorted(maps.Keys(h.flight)) { // in order, so that a seed always gives the same history
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
		if e := h.placer.queue.find(id); e.Pool() == queue.Unschedulable && h.placer.cluster.mayEvict(e.demand) &&
			!h.placer.cluster.awaitsVictims(e.demand, id) {
			for _, x := range h.placer.Evictions(p) {
				h.t.Errorf("pod %s waits although evictions from %s would make room", id, x.Node)
			}
		}
	}
}

const hostKey = "kubernetes.io/hostname"
