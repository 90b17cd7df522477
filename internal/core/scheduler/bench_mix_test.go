package scheduler

import (
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A mixture is a way in which pods, or changes between them, differ.
type mixture struct {
	name string
	// node changes the i-th node, pod the i-th pod; between is called before each pod.
	node    func(i int, n *Node)
	prepare func(p *Placer)
	pod     func(p *Placer, i int, x *Pod)
	between func(p *Placer, i int)
}

const mixKinds = 1000

// spreadByOwner makes x a pod of a ReplicaSet, which has the default spread constraints.
func spreadByOwner(x *Pod, kind int) {
	name := "rs-" + strconv.Itoa(kind)
	x.Labels, x.Owner = []Label{{Key: "app", Value: name}}, Owner{"ReplicaSet", name}
}

func replicaSets(n int) func(*Placer) {
	return func(p *Placer) {
		for k := range n {
			p.GroupSeen(1, replicaSet(k))
		}
	}
}

func replicaSet(kind int) Group {
	name := "rs-" + strconv.Itoa(kind)
	return Group{Kind: "ReplicaSet", Namespace: "d", Name: name,
		Selector: LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{name}}}}}
}

func kindOf(_ *Placer, i int, x *Pod) {
	k := i % mixKinds
	spreadByOwner(x, k)
	x.Requests = []Amount{{CPU, int64(50 + 50*(k%8))}, {Memory, int64(64+64*(k%4)) << 20}}
	x.IncomingLoad = Load{unit.MilliCPU(50 + 50*(k%8)), unit.Bytes(64+64*(k%4)) << 20}
	x.PlacedLoad = x.IncomingLoad
}

var mixes = []mixture{
	{name: "identical", pod: func(_ *Placer, _ int, x *Pod) { x.Labels = []Label{{Key: "app", Value: "web"}} }},
	{name: "kinds", prepare: replicaSets(mixKinds), pod: kindOf},
	{name: "kinds-own-requests", prepare: replicaSets(mixKinds), pod: func(_ *Placer, i int, x *Pod) {
		k := i % mixKinds
		spreadByOwner(x, k)
		x.Requests = []Amount{{CPU, int64(100 + k)}, {Memory, int64(64+k) << 20}}
		x.IncomingLoad = Load{unit.MilliCPU(100 + k), unit.Bytes(64+k) << 20}
		x.PlacedLoad = x.IncomingLoad
	}},
	{name: "own-requests", pod: ownRequests},
	{name: "own-requests-busy", prepare: unlikeLoads, pod: ownRequests},
	{name: "sets-one-by-one", prepare: replicaSets(mixKinds), pod: func(_ *Placer, i int, x *Pod) {
		spreadByOwner(x, i/15%mixKinds)
	}},
	{name: "own-job", pod: func(_ *Placer, i int, x *Pod) {
		job := strconv.Itoa(i)
		x.Labels = []Label{{Key: "app", Value: "job"}, {Key: "job", Value: job}}
		own := LabelSelector{Requirements: []Requirement{{Key: "job", Op: In, Values: []string{job}}}}
		x.PreferredAntiAffinity = []WeightedPodTerm{{100, PodTerm{
			Selector:          own,
			Namespaces:        []string{"d"},
			NamespaceSelector: LabelSelector{Nothing: true},
			TopologyKey:       hostKey,
		}}}
	}},
	{name: "own-claim", prepare: func(p *Placer) {
		p.StorageClassSeen(1, StorageClass{Name: "disk", Provisioner: "disk.example.com"})
	}, pod: func(p *Placer, i int, x *Pod) {
		name := strconv.Itoa(i)
		zone := &[]NodeTerm{{Labels: []Requirement{{Key: "zone", Op: In, Values: []string{strconv.Itoa(i % 3)}}}}}
		p.VolumeSeen(2, Volume{
			Name:           "pv-" + name,
			Class:          "disk",
			Affinity:       zone,
			Claimed:        true,
			ClaimNamespace: "d",
			ClaimName:      "c-" + name,
		})
		p.ClaimSeen(2, Claim{Namespace: "d", Name: "c-" + name, Class: "disk", Volume: "pv-" + name, Bound: true})
		x.Mounts = []Mount{{Claim: "c-" + name}}
	}},
	{name: "claim-to-be-made", prepare: func(p *Placer) { limitedDisks(p, false) }, pod: claimToBeMade},
	{
		name:    "capacities",
		prepare: func(p *Placer) { limitedDisks(p, true) },
		pod:     claimToBeMade,
		between: func(p *Placer, i int) {
			p.CapacitySeen(2, capacityOf("node-"+strconv.Itoa(i%5000), int64(unit.GiB)-int64(i)))
		},
	},
	{name: "racks", node: func(i int, n *Node) {
		n.Labels = append(n.Labels, Label{Key: "rack", Value: strconv.Itoa(i / 2)})
	}, prepare: replicaSets(mixKinds), pod: func(p *Placer, i int, x *Pod) {
		kindOf(p, i, x)
		own := LabelSelector{Requirements: []Requirement{{Key: "app", Op: In, Values: []string{x.Labels[0].Value}}}}
		x.Spread = []SpreadConstraint{
			{MaxSkew: 1, TopologyKey: "rack", Selector: own, MinDomains: 1},
			{MaxSkew: 5, TopologyKey: "zone", Hard: true, Selector: own, MinDomains: 1},
		}
	}},
	{name: "doubled-hosts", node: func(i int, n *Node) {
		if i%100 == 1 {
			n.Labels[0].Value = "node-" + strconv.Itoa(i-1)
		}
	}, prepare: replicaSets(mixKinds), pod: kindOf},
	{name: "labels-change", prepare: replicaSets(mixKinds), pod: kindOf, between: func(p *Placer, i int) {
		for k := range 5 {
			n := benchNode((i*5 + k) % 1000)
			n.Labels = append(n.Labels, Label{Key: "load", Value: strconv.Itoa(i % 100)})
			p.NodeSeen(2, n)
		}
	}},
	{name: "selectors", prepare: replicaSets(mixKinds), pod: func(p *Placer, i int, x *Pod) {
		kindOf(p, i, x)
		x.NodeSelector = []Label{{Key: "zone", Value: strconv.Itoa(i % 3)}}
		x.Tolerations = []Toleration{{Key: "k" + strconv.Itoa(i%20), Exists: true}}
	}},
}

// ownRequests makes x request amounts that no pod before it requested.
func ownRequests(_ *Placer, i int, x *Pod) {
	cpu, memory := int64(100+i%997), int64(64<<20+i<<12)
	x.Requests = []Amount{{Resource: CPU, Value: cpu}, {Resource: Memory, Value: memory}}
	x.IncomingLoad = Load{unit.MilliCPU(cpu), unit.Bytes(memory)}
	x.PlacedLoad = x.IncomingLoad
}

// unlikeLoads puts a pod of a different size on each node, from a fraction of a percent to half of the node.
func unlikeLoads(p *Placer) {
	nodes, _, _ := p.Sizes()
	for i := range nodes {
		x := benchPod("size-" + strconv.Itoa(i))
		x.Node = "node-" + strconv.Itoa(i)
		cpu, memory := int64(100+i*7919%32000), (int64(1)<<28)+int64(i)*104729%128<<30
		x.Requests = []Amount{{Resource: CPU, Value: cpu}, {Resource: Memory, Value: memory}}
		x.PlacedLoad = Load{unit.MilliCPU(cpu), unit.Bytes(memory)}
		p.PodSeen(1, x)
	}
}

// limitedDisks limits each node to 100 attached volumes and, with capacities, publishes its storage capacity.
func limitedDisks(p *Placer, capacities bool) {
	const driver = "disk.example.com"
	p.DriverSeen(1, driver, capacities)
	p.StorageClassSeen(1, StorageClass{Name: "disk", Provisioner: driver, Driver: driver, Waits: true})
	nodes, _, _ := p.Sizes()
	for i := range nodes {
		name := "node-" + strconv.Itoa(i)
		p.NodeStorageSeen(1, NodeStorage{Node: name, Limits: map[string]int64{driver: 100}})
		if capacities {
			p.CapacitySeen(1, capacityOf(name, int64(unit.GiB)))
		}
	}
}

func capacityOf(node string, size int64) Capacity {
	here := LabelSelector{Requirements: []Requirement{{Key: hostKey, Op: In, Values: []string{node}}}}
	return Capacity{Namespace: "d", Name: node, Class: "disk", Nodes: &here, Size: size, Sized: true}
}

func claimToBeMade(p *Placer, i int, x *Pod) {
	name := "c-" + strconv.Itoa(i)
	p.ClaimSeen(2, Claim{Namespace: "d", Name: name, Class: "disk", Size: 1 << 20, Sized: true, Version: "1"})
	x.Mounts = []Mount{{Claim: name}}
}

// BenchmarkMix measures a pod from its addition to its bind, with different pods or nodes. Nodes have four pods each.
func BenchmarkMix(b *testing.B) {
	for _, m := range mixes {
		for _, nodes := range []int{5000, 50000} {
			b.Run(fmt.Sprintf("%s/%d", m.name, nodes), func(b *testing.B) {
				p := mixCluster(&m, nodes)
				i := 0
				one := func() {
					if m.between != nil {
						m.between(p, i)
					}
					x := benchPod("p" + strconv.Itoa(i))
					m.pod(p, i, &x)
					placeBound(b, p, x)
					i++
				}
				measure(b, 100, one)
			})
		}
	}
}

// placeBound adds a pod and shows it as bound where it is placed.
func placeBound(t testing.TB, p *Placer, x Pod) {
	t.Helper()
	p.PodSeen(2, x)
	d, _ := p.Next(2)
	if d.Node == "" {
		t.Fatalf("pod %s: %v", x.Name, d.Failure)
	}
	x.Node = d.Node
	p.PodSeen(2, x)
}

// measure reports the CPU time of one call, after some calls for the steady state.
func measure(b *testing.B, first int, one func()) {
	b.Helper()
	for range first {
		one()
	}
	b.ReportAllocs()
	before := cpuTime(b)
	for b.Loop() {
		one()
	}
	b.ReportMetric(float64(cpuTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// cpuTime returns the CPU time of the process, so that other work on the machine does not count.
func cpuTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func mixCluster(m *mixture, nodes int) *Placer {
	p := New(Options{})
	for i := range nodes {
		n := benchNode(i)
		if m.node != nil {
			m.node(i, &n)
		}
		p.NodeSeen(1, n)
		for k := range 4 {
			x := benchPod(fmt.Sprintf("old-%d-%d", i, k))
			x.Labels, x.Node = []Label{{Key: "app", Value: "old"}}, n.Name
			p.PodSeen(1, x)
		}
	}
	if m.prepare != nil {
		m.prepare(p)
	}
	return p
}

func benchNode(i int) Node {
	name := "node-" + strconv.Itoa(i)
	return Node{Name: name, PodsMax: 1 << 40, Labels: []Label{{Key: hostKey, Value: name},
		{Key: "zone", Value: strconv.Itoa(i % 3)}, {Key: "topology.kubernetes.io/zone", Value: strconv.Itoa(i % 3)}},
		Allocatable: []Amount{{CPU, 64000}, {Memory, int64(256 * unit.GiB)}}}
}
