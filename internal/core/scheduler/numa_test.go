package scheduler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// layoutOf returns the layout of a machine whose NUMA nodes have that many CPUs each. CPU 0 is reserved.
func layoutOf(tb testing.TB, nodes, cpus int, policy numa.Policy) *numa.Layout {
	m := machine.Machine{}
	m.NodeFS.Capacity = unit.GiB
	for n := range nodes {
		var set idset.Set
		for cpu := n * cpus; cpu < (n+1)*cpus; cpu++ {
			set = set.Union(idset.Of(cpu))
		}
		m.NUMANodes = append(m.NUMANodes, machine.NUMANode{ID: machine.NUMAID(n), CPUs: set, Memory: 16 * unit.GiB})
	}
	l, err := numa.New(m.Complete(), numa.Config{
		CPU:      numa.CPUConfig{Static: true, Reserved: idset.Of(0)},
		Memory:   numa.MemoryConfig{Static: true, Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: unit.GiB}}},
		Topology: numa.TopologyConfig{Policy: policy},
	})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// pinned requests exclusive CPUs and memory.
func pinned(cpus ...int) *numa.Pod {
	p := &numa.Pod{Guaranteed: true}
	for i, n := range cpus {
		p.Containers = append(p.Containers, numa.Container{
			Name:   fmt.Sprint("c", i),
			CPU:    unit.MilliCPU(n) * unit.CPU,
			Memory: []numa.MemoryRequest{{Bytes: unit.GiB}},
		})
	}
	return p
}

// randomReport returns a random report of a node's agent. Of the pods on the node, some have arrived, in any order. It
// may have other pods, too.
func (h *history) randomReport(node string) *numa.State {
	s := h.layouts[h.rng.IntN(len(h.layouts))].NewState()
	admit := func(p numa.Pod) {
		if offer, rejection := s.Offer(p, nil); rejection == nil {
			_ = s.Commit(offer)
		}
	}
	for _, p := range h.held(node) {
		if p.NUMA != nil && h.rng.IntN(2) == 0 {
			ask := *p.NUMA
			ask.UID = string(p.ID)
			admit(ask)
		}
	}
	if h.rng.IntN(2) == 0 {
		ask := *pinned(1)
		ask.UID = "stranger"
		admit(ask)
	}
	return s
}

// checkExpected compares the state of each node with a fresh one (the report, and all late pods added to it), and the
// kept verdicts with offers.
func (h *history) checkExpected() {
	c := h.placer.cluster
	refs := map[*numaVerdicts]int{}
	for r, b := range c.expected {
		if b == nil {
			continue
		}
		if b.trial != nil || len(b.inTrial) > 0 {
			h.t.Errorf("node %s: a trial left %v behind", c.name[r], b.inTrial)
		}
		plain := b.report.Fork()
		late := slices.Clone(c.podsOn[r])
		slices.SortFunc(late, func(a, b *placedPod) int { return int(a.order) - int(b.order) })
		for _, p := range late {
			if _, reported := b.report.Assignment(string(p.id)); p.class.numa == nil || reported || p.arrived {
				continue
			}
			if p.assigned != nil {
				plain.Adopt(*p.assigned)
			} else if offer, rejection := plain.Offer(p.class.numaPod(p.id), nil); rejection == nil && offer.Assignment.Owns() {
				_ = plain.Commit(offer)
			}
		}
		got, want := fmt.Sprint(c.computeNUMA(row(r), b).state.Assignments()), fmt.Sprint(plain.Assignments())
		if got != want {
			h.t.Errorf("node %s: the expected state is\n%s\nwant\n%s", c.name[r], got, want)
		}
		for _, v := range b.verdicts.byPod {
			h.verdicts[v.reason]++
		}
		refs[b.verdicts]++
	}
	for _, a := range c.numaVerdicts {
		if refs[a] != a.refs {
			h.t.Errorf("verdicts have %d refs, want %d", a.refs, refs[a])
		}
	}
	for key, k := range c.classes {
		if k.numa == nil {
			continue
		}
		for r, b := range c.expected {
			if b == nil {
				continue
			}
			kept := c.judgeNUMA(&demand{class: k}, row(r))
			if fresh := offerTo(b.state, &demand{class: k}); kept != fresh {
				h.t.Errorf("node %s, class %q: the kept verdict is %+v, an offer says %+v", c.name[r], key, kept, fresh)
			}
		}
	}
}

// agents is a cluster with agents that admit pods, and a Placer. Binds to one node are sent one after another, as the
// shell does; reports and watches are late by any time. Pods end at any time.
type agents struct {
	t       *testing.T
	rng     *rand.Rand
	placer  *Placer
	now     unit.Instant
	nodes   []*agentNode
	pods    map[PodID]Pod
	made    int
	refused int
	bound   int
	// mute says that binds carry no berths.
	mute bool
}

type agentNode struct {
	name   string
	state  *numa.State
	binds  []Pod // sent or waiting to be sent, in order
	coming []Pod // bound, not yet admitted
	unseen []Pod // bound, not yet shown by the watch
	said   []*numa.State
	here   []Pod
	over   []Pod // ended, not yet shown by the watch
}

func newAgents(t *testing.T, seed uint64, policy numa.Policy, mute bool) *agents {
	a := &agents{
		t:      t,
		rng:    rand.New(rand.NewPCG(seed, 3)),
		placer: New(Options{Seed: seed}),
		now:    unit.Instant(time.Hour),
		pods:   map[PodID]Pod{},
		mute:   mute,
	}
	layouts := []*numa.Layout{layoutOf(t, 2, 4, policy), layoutOf(t, 4, 4, policy), layoutOf(t, 2, 8, policy)}
	for i := range 6 {
		n := &agentNode{name: fmt.Sprintf("n%d", i), state: layouts[i%3].NewState()}
		a.nodes = append(a.nodes, n)
		a.placer.NodeSeen(a.now, Node{
			Name:        n.name,
			PodsMax:     110,
			Allocatable: []Amount{{CPU, []int64{7, 15, 15}[i%3] * 1000}, {Memory, 64 << 30}},
		})
		a.placer.ReportSeen(a.now, n.name, n.state.Fork())
	}
	return a
}

func (a *agents) step() {
	if a.rng.IntN(4) == 0 {
		a.create()
	} else {
		a.pass()
	}
}

// pass makes something happen to some pods.
func (a *agents) pass() {
	a.now = a.now.Add(time.Duration(a.rng.IntN(500)) * time.Millisecond)
	n := a.nodes[a.rng.IntN(len(a.nodes))]
	switch a.rng.IntN(10) {
	case 0, 1, 2:
		if d, ok := a.placer.Next(a.now); ok && d.Failure == nil {
			at := slices.IndexFunc(a.nodes, func(n *agentNode) bool { return n.name == d.Node })
			if d.Pod.Berth = d.Berth; a.mute {
				d.Pod.Berth = nil
			}
			a.nodes[at].binds = append(a.nodes[at].binds, d.Pod)
		}
	case 3, 4:
		a.bind(n)
	case 5:
		a.admit(n)
	case 6:
		if len(n.unseen) > 0 {
			a.placer.PodSeen(a.now, n.unseen[0])
			n.unseen = n.unseen[1:]
		}
	case 7:
		if len(n.said) > 0 && a.rng.IntN(2) == 0 {
			a.placer.ReportSeen(a.now, n.name, n.said[0])
			n.said = n.said[1:]
		} else {
			n.said = append(n.said, n.state.Fork())
		}
	case 8:
		a.end(n)
	case 9:
		if len(n.over) > 0 {
			a.placer.PodGone(a.now, n.over[0].ID)
			n.over = n.over[1:]
		}
	}
}

func (a *agents) create() {
	a.made++
	p := Pod{ID: PodID(fmt.Sprintf("p%d", a.made))}
	cpus := 0
	if a.rng.IntN(5) > 0 {
		var each []int
		for range 1 + a.rng.IntN(2) {
			each = append(each, 1+a.rng.IntN(3))
			cpus += each[len(each)-1]
		}
		p.NUMA = pinned(each...)
	}
	p.Requests = []Amount{{CPU, int64(cpus) * 1000}, {Memory, 1 << 30}}
	p.Name, p.Namespace = string(p.ID), "x"
	a.pods[p.ID] = p
	a.placer.PodSeen(a.now, p)
}

// bind ends the first bind to n. If the API server refuses it, those behind it are withdrawn.
func (a *agents) bind(n *agentNode) {
	if len(n.binds) == 0 {
		return
	}
	p := n.binds[0]
	if a.rng.IntN(8) == 0 {
		for _, p := range n.binds {
			a.placer.Bound(a.now, p, BindRefused)
		}
		n.binds = nil
		return
	}
	n.binds = n.binds[1:]
	p.Node = n.name
	n.coming, n.unseen = append(n.coming, p), append(n.unseen, p)
	a.placer.Bound(a.now, p, BindDone)
	a.bound++
}

// admit makes the agent admit the pod that came first.
func (a *agents) admit(n *agentNode) {
	if len(n.coming) == 0 {
		return
	}
	p := n.coming[0]
	n.coming = n.coming[1:]
	if p.NUMA == nil {
		return
	}
	ask := *p.NUMA
	ask.UID, ask.Berth = string(p.ID), p.Berth
	offer, rejection := n.state.Offer(ask, nil)
	if rejection != nil {
		a.refused++
		if !a.mute {
			a.t.Errorf("pod %s is rejected on %s: %s", p.ID, n.name, rejection.Message())
		}
		a.placer.PodGone(a.now, p.ID)
		n.unseen = slices.DeleteFunc(n.unseen, func(q Pod) bool { return q.ID == p.ID })
		return
	}
	if err := n.state.Commit(offer); err != nil {
		a.t.Fatal(err)
	}
	n.here = append(n.here, p)
}

// end ends a pod. Its agent releases its resources before the API shows the end.
func (a *agents) end(n *agentNode) {
	if len(n.here) == 0 {
		return
	}
	i := a.rng.IntN(len(n.here))
	p := n.here[i]
	n.here = slices.Delete(n.here, i, i+1)
	n.unseen = slices.DeleteFunc(n.unseen, func(q Pod) bool { return q.ID == p.ID })
	n.state.Release(string(p.ID))
	n.over = append(n.over, p)
}

// TestAgentsNeverReject checks that no agent rejects a pod that was bound to its node, whatever reports say and when,
// whatever the API server refuses, and whichever pods end meanwhile. That is what berths are for: without them, an
// agent with more free CPUs than expected would assign others, and reject some later pods.
func TestAgentsNeverReject(t *testing.T) {
	for _, policy := range []numa.Policy{numa.PolicySingleNUMANode, numa.PolicyRestricted} {
		bound, refused := map[bool]int{}, map[bool]int{}
		for _, seed := range seedsFrom(t, 0, 40) {
			for _, mute := range []bool{true, false} {
				a := newAgents(t, seed, policy, mute)
				for range 600 {
					a.step()
				}
				if t.Failed() {
					t.Fatalf("policy %v, seed %d", policy, seed)
				}
				bound[mute], refused[mute] = bound[mute]+a.bound, refused[mute]+a.refused
			}
		}
		t.Logf("%v: %d pods bound, none rejected; without berths %d of %d", policy, bound[false], refused[true], bound[true])
		if bound[false] < fewer(1000) {
			t.Errorf("%v: %d pods bound: too few for a test", policy, bound[false])
		}
	}
}

// TestBurst sends many more pods than two nodes can hold at a time. They are placed as others end.
func TestBurst(t *testing.T) {
	const pods = 300
	seeds := fewer(8)
	refused := map[bool]int{}
	for seed := range uint64(seeds) {
		for _, mute := range []bool{true, false} {
			a := newAgents(t, seed, numa.PolicySingleNUMANode, mute)
			a.nodes = a.nodes[:2]
			for _, name := range []string{"n2", "n3", "n4", "n5"} {
				a.placer.NodeGone(a.now, name)
			}
			for i := range pods {
				p := Pod{
					ID:       PodID(fmt.Sprint("burst", i)),
					NUMA:     pinned(1 + i%3),
					Requests: []Amount{{CPU, int64(1+i%3) * 1000}, {Memory, 1 << 30}},
				}
				a.placer.PodSeen(a.now, p)
			}
			for steps := 0; a.bound < pods; steps++ {
				if steps > 1000*pods {
					t.Fatalf("seed %d: %d of %d pods bound", seed, a.bound, pods)
				}
				a.pass()
			}
			if refused[mute] += a.refused; t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	}
	t.Logf("%d pods passed through, none rejected; without berths %d", pods*seeds, refused[true])
	if refused[true] == 0 {
		t.Error("the burst shows nothing: agents reject no pod without berths either")
	}
}

// TestReportOfAnEarlierAgent checks that a report is not used while a kubelet runs the node, in whatever order
// the Node and the report are seen, and that it is used again when the agent is back.
func TestReportOfAnEarlierAgent(t *testing.T) {
	ours := Node{Name: "n", PodsMax: 10, Allocatable: []Amount{{CPU, 16000}}}
	kubelets := ours
	kubelets.OtherAgent = true
	full := layoutOf(t, 2, 8, numa.PolicySingleNUMANode).NewState()
	pod := func(id string) Pod {
		return Pod{ID: PodID(id), Name: id, NUMA: pinned(12), Requests: []Amount{{CPU, 12000}}} // more than one NUMA node has
	}
	fits := func(p *Placer, now unit.Instant, id string) bool {
		t.Helper()
		p.PodSeen(now, pod(id))
		d, ok := p.Next(now)
		if !ok {
			t.Fatalf("%s: no decision", id)
		}
		p.PodGone(now, PodID(id))
		return d.Failure == nil
	}
	for name, see := range map[string]func(*Placer){
		"the report first": func(p *Placer) { p.ReportSeen(1, "n", full); p.NodeSeen(1, kubelets) },
		"the Node first":   func(p *Placer) { p.NodeSeen(1, kubelets); p.ReportSeen(1, "n", full) },
		"given back": func(p *Placer) {
			p.NodeSeen(1, ours)
			p.ReportSeen(1, "n", full)
			p.NodeSeen(1, kubelets)
		},
		"the Node was created again": func(p *Placer) {
			p.ReportSeen(1, "n", full)
			p.NodeGone(1, "n")
			p.NodeSeen(1, kubelets)
		},
	} {
		p := New(Options{})
		see(p)
		if !fits(p, 2, "a") {
			t.Errorf("%s: the report is used", name)
		}
		p.NodeSeen(3, ours)
		if fits(p, 4, "b") {
			t.Errorf("%s: the agent is back, but its report is not used", name)
		}
		p.NodeSeen(5, kubelets)
		p.ReportGone(5, "n")
		p.NodeSeen(6, ours)
		if !fits(p, 7, "c") {
			t.Errorf("%s: a deleted report is used", name)
		}
	}
	// A pod that waits because of the report is tried again when the node is given back.
	p := New(Options{})
	p.NodeSeen(1, ours)
	p.ReportSeen(1, "n", full)
	p.PodSeen(1, pod("w"))
	if d, ok := p.Next(1); !ok || d.Failure == nil {
		t.Fatalf("%+v %v, want a pod that waits", d, ok)
	}
	p.NodeSeen(2, kubelets)
	if d, ok := p.Next(unit.Instant(time.Minute)); !ok || d.Node != "n" {
		t.Errorf("%+v %v, want the pod on the node", d, ok)
	}
}

// TestEvictionForNUMA checks that the victims are those whose CPUs are on one NUMA node.
func TestEvictionForNUMA(t *testing.T) {
	p := New(Options{})
	p.NodeSeen(1, Node{Name: "n", PodsMax: 10, Allocatable: []Amount{{CPU, 16000}}})
	state := layoutOf(t, 2, 8, numa.PolicySingleNUMANode).NewState()
	p.ReportSeen(1, "n", state)
	for i, cpus := range []int{3, 4, 4, 3} { // pods 0 and 1 are on NUMA node 0; 2 and 3 on node 1, where 1 CPU is left
		pod := Pod{
			ID:       PodID(fmt.Sprint("low", i)),
			Name:     fmt.Sprint("low", i),
			NUMA:     pinned(cpus),
			Requests: []Amount{{CPU, int64(cpus) * 1000}},
			Node:     "n",
			Started:  int64(10 - i),
		}
		p.PodSeen(1, pod)
	}
	// enough CPUs are free in total, but not on one NUMA node
	high := Pod{ID: "high", Name: "high", Priority: 5, NUMA: pinned(4), Requests: []Amount{{CPU, 2000}}}
	p.PodSeen(2, high)
	d, ok := p.Next(2)
	if !ok || d.Failure == nil || d.Preemption == nil {
		t.Fatalf("%+v", d)
	}
	if len(d.Preemption.Victims) != 1 {
		t.Errorf("victims %v, want one with enough CPUs on one NUMA node", d.Preemption.Victims)
	}
	for reason := range d.Failure.Reasons {
		if reason != "Resources cannot be allocated with Topology locality" {
			t.Errorf("reason %q", reason)
		}
	}
	p.PodGone(3, d.Preemption.Victims[0].ID)
	if d, ok := p.Next(3); !ok || d.Node != "n" {
		t.Errorf("after the eviction: %+v, %v", d, ok)
	}
	if v := p.Verdicts(Pod{ID: "x", NUMA: pinned(9), Requests: []Amount{{CPU, 1000}}}); !v[0].Final || v[0].Detail == "" {
		t.Errorf("a request for more than a NUMA node has: %+v, want a final verdict with numbers", v)
	}
}
