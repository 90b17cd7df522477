package scheduler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// numaNode is a node whose agent lets pods in as binds reach it, and reports later, or never.
type numaNode struct {
	encoder *topology.Encoder
	state   *numa.State
	onWay   int
}

// numaCluster is an API server and the agents behind it.
type numaCluster struct {
	*cluster
	mu      sync.Mutex
	nodes   map[string]*numaNode
	refused int
	publish func(*topology.Object)
}

func (c *numaCluster) bind(ctx context.Context, d placement.Decision) (placement.Outcome, error) {
	p, node := d.Pod, d.Node
	c.mu.Lock()
	n := c.nodes[node]
	n.onWay++
	if n.onWay > 1 {
		c.t.Errorf("%d binds of pods with resources of their own are on their way to %s at once", n.onWay, node)
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
	if _, here := n.state.Assignment(string(p.ID)); here || pod.Spec.NodeName != node {
		return outcome, err
	}
	offer, refusal := n.state.Offer(kube.NUMAPod(pod), nil)
	if refusal != nil {
		c.refused++
		c.t.Errorf("pod %s is refused on %s: %s", p.Name, node, refusal.Message())
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

// TestPinnedPodsAreNeverRefused: a burst of pods that want whole CPUs of one NUMA node, faster than any report, through an API
// that refuses some binds and loses answers: what is bound, the agent lets in, until every node is as full as can be.
func TestPinnedPodsAreNeverRefused(t *testing.T) {
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
			own := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(n), resource.DecimalSI), corev1.ResourceMemory: resource.MustParse("1Gi")}
			pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: own, Limits: own}
			api.add(m, pod)
		}
		m.tell(context.Background(), synced(m))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		bound := 0
		for _, pod := range api.pods {
			if pod.Spec.NodeName != "" {
				bound++
			}
		}
		if free := 8*15 - cpus; bound != 60 && free > 0 {
			t.Errorf("%d of 60 pods are bound, with %d CPUs more than they ask for", bound, free)
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
	config := numa.Config{CPU: numa.CPUConfig{Static: true, Reserved: idset.Of(0)}, Topology: numa.TopologyConfig{Policy: numa.PolicySingleNUMANode}}
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
