package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	corescheduler "github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// numaNode is a node whose agent admits pods as binds arrive, and reports later, or never.
type numaNode struct {
	encoder *topology.Encoder
	state   *numa.State
	onWay   int
}

// numaCluster is an API server with the agents of its nodes.
type numaCluster struct {
	*cluster
	mu      sync.Mutex
	nodes   map[string]*numaNode
	refused int
	publish func(*topology.Object)
}

func (c *numaCluster) bind(ctx context.Context, d corescheduler.Decision) (corescheduler.Outcome, error) {
	p, node := d.Pod, d.Node
	c.mu.Lock()
	n := c.nodes[node]
	n.onWay++
	if n.onWay > 1 {
		c.t.Errorf("%d binds of pods with exclusive resources to %s are in flight at once", n.onWay, node)
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		n.onWay--
		c.mu.Unlock()
	}()
	outcome, err := c.cluster.bind(ctx, d)
	pod := c.lookUp(p)
	c.cluster.mu.Lock()
	reports := c.rng.IntN(4) == 0
	c.cluster.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, here := n.state.Assignment(string(p.ID)); here || pod == nil || pod.Spec.NodeName != node {
		return outcome, err
	}
	offer, refusal := n.state.Offer(translate.NUMAPod(pod), nil)
	if refusal != nil {
		c.refused++
		c.t.Errorf("pod %s is rejected on %s: %s", p.Name, node, refusal.Message())
		return outcome, nil
	}
	if err := n.state.Commit(offer); err != nil {
		c.t.Error(err)
	}
	if reports {
		report := n.encoder.Encode(n.state)
		time.AfterFunc(200*time.Millisecond, func() { c.publish(report) })
	}
	return outcome, err
}

// TestPinnedPodsAreNeverRejected: a burst of pods that request whole CPUs of one NUMA node, faster than any report,
// with an API server that refuses some binds and loses answers. The agent admits every bound pod, until every node is
// full.
func TestPinnedPodsAreNeverRejected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &numaCluster{cluster: newCluster(t), nodes: map[string]*numaNode{}}
		api.trouble = true
		m, _, stop := start(api.cluster, 16)
		defer stop()
		m.api = api
		handler := m.reportHandler(context.Background())
		api.publish = func(o *topology.Object) { handler.OnUpdate(o, o) }
		for i := range 8 {
			name := fmt.Sprintf("n%d", i)
			m.nodeHandler().OnAdd(testNode(name, "15"), true)
			api.nodes[name] = newNUMANode(t, name)
			handler.OnAdd(api.nodes[name].encoder.Encode(api.nodes[name].state), true)
		}
		rng := rand.New(rand.NewPCG(5, 5))
		cpus := 0
		for i := range 60 {
			pod := testPod(fmt.Sprintf("p%d", i), "1")
			n := 1 + rng.IntN(3)
			cpus += n
			own := corev1.ResourceList{
				corev1.ResourceCPU:    *resource.NewQuantity(int64(n), resource.DecimalSI),
				corev1.ResourceMemory: resource.MustParse("1Gi"),
			}
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: own, Limits: own}
			api.add(m, pod)
		}
		m.submit(context.Background(), synced(m))
		elapse(5 * time.Minute)
		if m.binding != 0 || len(m.lines) > 0 {
			t.Errorf("%d binds are in flight, %d nodes have a line; want none", m.binding, len(m.lines))
		}
		waiting := 0
		for _, pod := range api.pods {
			if pod.Spec.NodeName != "" {
				continue
			}
			waiting++
			for name, n := range api.nodes {
				if _, refusal := n.state.Offer(translate.NUMAPod(pod), nil); refusal == nil {
					t.Errorf("pod %s waits although %s would take it", pod.Name, name)
				}
			}
		}
		if waiting == 0 || waiting > 10 {
			t.Errorf("%d of 60 pods wait; want few, because together they request %d CPUs of 120", waiting, cpus)
		}
	})
}

func newNUMANode(t *testing.T, name string) *numaNode {
	m := machine.Machine{}
	m.NodeFS.Capacity = unit.GiB
	for i := range 2 {
		n := machine.NUMANode{ID: machine.NUMAID(i), Memory: 32 * unit.GiB}
		for cpu := 8 * i; cpu < 8*i+8; cpu++ {
			n.CPUs = n.CPUs.Union(idset.Of(cpu))
		}
		m.NUMANodes = append(m.NUMANodes, n)
	}
	m = m.Complete()
	config := numa.Config{
		CPU:      numa.CPUConfig{Static: true, Reserved: idset.Of(0)},
		Topology: numa.TopologyConfig{Policy: numa.PolicySingleNUMANode},
	}
	layout, err := numa.New(m, config)
	if err != nil {
		t.Fatal(err)
	}
	encoder, err := topology.NewEncoder(name, m, config)
	if err != nil {
		t.Fatal(err)
	}
	return &numaNode{encoder: encoder, state: layout.NewState()}
}

// TestLines: of the binds to one node of pods that get something from the agent, one is in flight; the next is sent
// when it has succeeded, and those behind it are withdrawn when it has failed. Other nodes, and other pods, do not
// wait.
func TestLines(t *testing.T) {
	l := nodeBinds{}
	first, others := pinned("first", "n"), []placed{pinned("second", "n"), pinned("third", "n"), pinned("fourth", "n")}
	if !l.enter(first) || !l.enter(pinned("elsewhere", "m")) {
		t.Error("the first bind to a node waits")
	}
	for _, p := range others {
		if l.enter(p) {
			t.Errorf("%s is sent before the first is answered", p.Pod.ID)
		}
	}
	if !l.enter(placed{Decision: corescheduler.Decision{Node: "n"}}) {
		t.Error("a bind of a pod without such requests waits")
	}
	next, withdrawn := l.leave(first, corescheduler.BindDone)
	if len(next) != 1 || next[0].Pod.ID != "second" || len(withdrawn) > 0 {
		t.Fatalf("after a successful bind, %v are sent and %v withdrawn", next, withdrawn)
	}
	for _, outcome := range []corescheduler.Outcome{
		corescheduler.BindRefused, corescheduler.BindLost, corescheduler.BindWithdrawn,
	} {
		l := nodeBinds{}
		for _, p := range others {
			l.enter(p)
		}
		next, withdrawn = l.leave(others[0], outcome)
		if len(next) > 0 || len(withdrawn) != 2 || len(l) > 0 || !l.enter(first) {
			t.Errorf("after outcome %v, %v are sent and %v withdrawn", outcome, next, withdrawn)
		}
	}
	if next, _ := l.leave(pinned("elsewhere", "m"), corescheduler.BindDone); len(next) > 0 ||
		!l.enter(pinned("later", "m")) {
		t.Errorf("an empty line is kept: %v", l)
	}
}

// pinned is a decision for a pod that gets something from the agent of its node.
func pinned(name, node string) placed {
	p := asking(name, node)
	p.Berth = numa.Berth{{Container: "main"}}
	return p
}

// asking is a decision for a pod that requests something from the agent and gets nothing.
func asking(name, node string) placed {
	return placed{Decision: corescheduler.Decision{Node: node, Pod: corescheduler.Pod{
		ID: corescheduler.PodID(name), NUMA: &numa.Pod{},
	}}}
}

// TestLinesOfPodsThatGetNothing: the binds of such pods are sent together. A bind of a pod that gets something waits
// for them, and later binds wait for it, in order.
func TestLinesOfPodsThatGetNothing(t *testing.T) {
	names := func(of []placed) (out []string) {
		for _, p := range of {
			out = append(out, string(p.Pod.ID))
		}
		return out
	}
	l := nodeBinds{}
	for _, name := range []string{"a", "b", "c"} {
		if !l.enter(asking(name, "n")) {
			t.Errorf("%s waits", name)
		}
	}
	for _, p := range []placed{pinned("d", "n"), asking("e", "n"), asking("f", "n"), pinned("g", "n")} {
		if l.enter(p) {
			t.Errorf("%s is sent together with others", p.Pod.ID)
		}
	}
	for _, c := range []struct {
		end     placed
		outcome corescheduler.Outcome
		next    []string
		dropped []string
	}{
		{end: asking("b", "n")},
		{end: asking("a", "n")},
		{end: asking("c", "n"), next: []string{"d"}},
		{end: pinned("d", "n"), next: []string{"e", "f"}},
		{end: asking("e", "n"), outcome: corescheduler.BindRefused, dropped: []string{"g"}},
		{end: asking("f", "n")},
	} {
		if c.outcome == 0 {
			c.outcome = corescheduler.BindDone
		}
		next, dropped := l.leave(c.end, c.outcome)
		if !slices.Equal(names(next), c.next) || !slices.Equal(names(dropped), c.dropped) {
			t.Errorf("after %s, %v are sent and %v withdrawn; want %v and %v", c.end.Pod.ID, names(next), names(dropped), c.next,
				c.dropped)
		}
	}
	if len(l) > 0 {
		t.Errorf("an empty line is kept: %v", l)
	}
}

// TestGuaranteedPodsDoNotQueue: binds to a node whose agent, such as upstream's kubelet, reports no NUMA nodes are sent
// together, also those of pods that would get exclusive CPUs elsewhere.
func TestGuaranteedPodsDoNotQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		m, _, stop := start(c, 8)
		defer stop()
		slow := &slowBinds{cluster: c}
		m.api = slow
		m.nodeHandler().OnAdd(testNode("n", "64"), true)
		for i := range 8 {
			pod := testPod(fmt.Sprintf("p%d", i), "1")
			own := corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("1"),
				corev1.ResourceMemory: resource.MustParse("1Gi"),
			}
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: own, Limits: own}
			c.add(m, pod)
		}
		m.submit(context.Background(), synced(m))
		elapse(time.Minute)
		slow.counts.Lock()
		defer slow.counts.Unlock()
		if slow.most != 8 {
			t.Errorf("%d binds were in flight at once, want 8", slow.most)
		}
	})
}

// slowBinds is an API server that takes a second per bind, and counts the binds in flight.
type slowBinds struct {
	*cluster
	counts    sync.Mutex
	now, most int
}

func (s *slowBinds) bind(ctx context.Context, d corescheduler.Decision) (corescheduler.Outcome, error) {
	count := func(n int) {
		s.counts.Lock()
		defer s.counts.Unlock()
		s.now += n
		s.most = max(s.most, s.now)
	}
	count(1)
	defer count(-1)
	time.Sleep(time.Second)
	return s.cluster.bind(ctx, d)
}

// TestReportsThatGo: when the report of a node is deleted, or belongs to another reporter, pods are placed there
// without regard to NUMA. Before that, the node rejected them because its agent would have.
func TestReportsThatGo(t *testing.T) {
	for how, happens := range map[string]func(h cache.ResourceEventHandler, o *topology.Object){
		"deleted": func(h cache.ResourceEventHandler, o *topology.Object) { h.OnDelete(o) },
		"its end missed": func(h cache.ResourceEventHandler, o *topology.Object) {
			h.OnDelete(cache.DeletedFinalStateUnknown{Key: o.Name, Obj: o})
		},
		"another's": func(h cache.ResourceEventHandler, o *topology.Object) {
			other := &topology.Object{}
			other.Name = o.Name
			h.OnUpdate(o, other)
		},
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				m, _, stop := start(c, 10)
				defer stop()
				node := newNUMANode(t, "n")
				report := node.encoder.Encode(node.state)
				h := m.reportHandler(context.Background())
				m.nodeHandler().OnAdd(testNode("n", "15"), true)
				h.OnAdd(report, true)
				m.submit(context.Background(), synced(m))
				pod := testPod("p", "1")
				own := corev1.ResourceList{ // more CPUs than a NUMA node has
					corev1.ResourceCPU: resource.MustParse("10"), corev1.ResourceMemory: resource.MustParse("1Gi"),
				}
				pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: own, Limits: own}
				c.add(m, pod)
				elapse(time.Minute)
				if on := c.where(pod); on != "" {
					t.Fatalf("it is on %s, whose agent would reject it", on)
				}
				happens(h, report)
				elapse(time.Second)
				if on := c.where(pod); on != "n" {
					t.Errorf("it is on %q", on)
				}
			})
		})
	}
}
