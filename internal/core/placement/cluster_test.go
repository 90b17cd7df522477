package placement

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestHistories drives a Placer through random histories and checks after every step that
//   - the columns equal a fresh count over the nodes and pods that exist,
//   - no pod in the unschedulable pool fits on any node (no lost wake-up),
//   - no node is over-committed by a placement of ours (a pod bound by others may do that),
//
// and at the end, when every bind has succeeded, that no pod that fits somewhere is left pending.
func TestHistories(t *testing.T) {
	for seed := range uint64(120) {
		h := newHistory(t, seed)
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

// history is a random cluster: what is true, beside the Placer that is told about it.
type history struct {
	t      *testing.T
	rng    *rand.Rand
	placer *Placer
	now    unit.Instant
	nodes  map[string]Node
	pods   map[PodID]Pod // Node is set once the truth has them bound
	flight map[PodID]string
	made   int
}

func newHistory(t *testing.T, seed uint64) *history {
	return &history{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), placer: New(Options{Seed: seed}), now: unit.Instant(time.Hour),
		nodes: map[string]Node{}, pods: map[PodID]Pod{}, flight: map[PodID]string{},
	}
}

func (h *history) step() {
	h.now = h.now.Add(time.Duration(h.rng.IntN(1500)) * time.Millisecond)
	switch h.rng.IntN(12) {
	case 0, 1:
		n := h.randomNode()
		h.nodes[n.Name] = n
		h.placer.NodeSeen(h.now, n)
	case 2:
		if name, ok := pick(h.rng, h.nodes); ok {
			delete(h.nodes, name)
			h.placer.NodeGone(h.now, name)
		}
	case 3, 4, 5:
		p := h.randomPod()
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
	case 8, 9:
		h.place()
	default:
		if id, ok := pick(h.rng, h.flight); ok {
			h.land(id, h.rng.IntN(4))
		}
	}
}

func (h *history) place() {
	d, ok := h.placer.Next(h.now)
	if !ok || d.Failure != nil {
		return
	}
	if n := h.nodes[d.Node]; !roomy(n, h.held(d.Node), d.Pod) {
		h.t.Errorf("pod %s was placed on %s, which is over-committed by it", d.Pod.ID, d.Node)
	}
	h.flight[d.Pod.ID] = d.Node
}

// land lets a bind end: 0 refused, 1 lost without effect, 2 lost but done, 3 done.
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

// repeatOrChange tells again what is known, resizes a bound pod, or binds one behind the scheduler's back.
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
	} else if p.Node != "" && h.rng.IntN(2) == 0 {
		p.Requests = []Amount{{CPU, int64(h.rng.IntN(4) * 250)}, {Memory, int64(h.rng.IntN(4) * 250)}}
		h.pods[id] = p
	}
	h.placer.PodSeen(h.now, p)
}

func (h *history) settle() {
	for range 1000 {
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
	}
}

// held lists the pods that count on node: bound ones, and those the Placer assumes there.
func (h *history) held(node string) []Pod {
	var out []Pod
	for _, id := range slices.Sorted(maps.Keys(h.pods)) {
		p := h.pods[id]
		if held := h.placer.cluster.pods[id]; p.Node == node || p.Node == "" && held != nil && h.placer.cluster.name[held.row] == node {
			out = append(out, p)
		}
	}
	return out
}

func (h *history) check() {
	c := h.placer.cluster
	fresh := newCluster()
	for _, n := range h.nodes {
		fresh.setNode(n)
	}
	for id, held := range c.pods {
		fresh.setPod(id, c.name[held.row], fresh.compile(h.pods[id]), true)
		if p, ok := h.pods[id]; !ok || p.Node != "" && p.Node != c.name[held.row] {
			h.t.Errorf("pod %s counts on %q, the truth has %q (exists: %v)", id, c.name[held.row], p.Node, ok)
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
	for k := range h.placer.queue.waiting {
		for r := range c.name {
			if rule, _ := c.firstRejection(k, row(r), nil); c.seen[r] && rule == 0 {
				h.t.Errorf("class of %v waits although it fits on %s", sortedIDs(h.placer.queue.waiting[k]), c.name[r])
			}
		}
	}
}

// dump writes the rows of c in the order of names.
func dump(c *cluster) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(c.rows)) {
		r := c.rows[name]
		line := fmt.Sprintf("%s seen %v held %d/%d score %d %d ports %v cordon %v", name, c.seen[r], c.podsHeld[r], c.podsMax[r], c.scoreCPU[r], c.scoreMemory[r], len(c.ports[r]), c.unschedulable[r])
		for _, res := range slices.Sorted(maps.Keys(c.columns)) {
			i := c.columns[res]
			if c.allocatable[i][r] != 0 || c.requested[i][r] != 0 {
				line += fmt.Sprintf(" %s %d/%d", res, c.requested[i][r], c.allocatable[i][r])
			}
		}
		out = append(out, line)
	}
	return out
}

// roomy reports whether pods fit on n together in what the last of them asks for.
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
	n := Node{Name: fmt.Sprintf("n%d", h.rng.IntN(5)), PodsMax: int64(h.rng.IntN(6)), Unschedulable: h.rng.IntN(5) == 0}
	n.Allocatable = []Amount{{CPU, int64(h.rng.IntN(4) * 500)}, {Memory, int64(h.rng.IntN(4) * 500)}}
	if h.rng.IntN(3) == 0 {
		n.Allocatable = append(n.Allocatable, Amount{"example.com/gpu", int64(h.rng.IntN(3))})
	}
	if h.rng.IntN(3) == 0 {
		n.Taints = []Taint{{"t", "", NoSchedule}}
	}
	if h.rng.IntN(2) == 0 {
		n.Labels = []Label{{"disk", []string{"ssd", "hdd"}[h.rng.IntN(2)]}}
	}
	return n
}

func (h *history) randomPod() Pod {
	h.made++
	p := Pod{ID: PodID(fmt.Sprintf("p%d", h.made)), Priority: int32(h.rng.IntN(3)), Asked: Load{100, 200}, Held: Load{unit.MilliCPU(h.rng.IntN(200)), 200}}
	p.Requests = []Amount{{CPU, int64(h.rng.IntN(4) * 250)}, {Memory, int64(h.rng.IntN(4) * 250)}}
	switch h.rng.IntN(8) {
	case 0:
		p.Tolerations = []Toleration{{Key: "t", Exists: true}}
	case 1:
		p.NodeSelector = []Label{{"disk", "ssd"}}
	case 2:
		p.Ports = []HostPort{{AnyIP, "TCP", 80}}
	case 3:
		p.Requests = append(p.Requests, Amount{"example.com/gpu", 1})
	case 4:
		p.Gates = []string{"g"}
	}
	return p
}

// pick draws a key; the order of the draw is that of the sorted keys, so that a seed gives one history.
func pick[K ~string, V any](rng *rand.Rand, m map[K]V) (K, bool) {
	if len(m) == 0 {
		return "", false
	}
	return slices.Sorted(maps.Keys(m))[rng.IntN(len(m))], true
}
