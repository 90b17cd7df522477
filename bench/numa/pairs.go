package main

import (
	"fmt"
	"math"
	"reflect"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager/bitmask"
	"k8s.io/utils/cpuset"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func pairs(long bool) []pair {
	var out []pair
	for _, c := range []struct {
		nodes, resources int
		upstream         bool
		bar              time.Duration
	}{{2, 4, true, 0}, {4, 3, true, 0}, {4, 4, true, 0}, {8, 2, true, 0}, {8, 3, long, time.Millisecond},
		{8, 4, false, time.Millisecond}, {64, 4, false, 10 * time.Millisecond}} {
		for _, scarce := range []bool{false, true} {
			out = append(out, mergePair(c.nodes, c.resources, scarce, c.upstream, c.bar))
		}
	}
	for _, busy := range []int{0, 50} {
		for _, n := range []int{4, 48, 96} {
			out = append(out, choicePair(n, busy))
		}
	}
	return append(out, admitPair())
}

// mergePair: all masks are possible. Either the machine is empty, so that a preferred hint exists; or, scarce, each
// resource in turn has one full node and a need that one node could have met, so that for most resources none exists.
func mergePair(nodes, resources int, scarce, withUpstream bool, bar time.Duration) pair {
	var supplies []hints.Supply
	for r := range resources {
		s := hints.Supply{Need: 1}
		for n := range nodes {
			s.Total, s.Free = append(s.Total, 8), append(s.Free, 8)
			if scarce && n%resources != r {
				s.Free[n] = 1
			}
		}
		if scarce {
			s.Need = 2
		}
		supplies = append(supplies, s)
	}
	p := pair{
		name: fmt.Sprintf("best hint, %d NUMA nodes x %d resources, %s", nodes, resources,
			map[bool]string{false: "empty machine", true: "nothing agrees"}[scarce]),
		ours: func() { hints.Best(hints.PolicyRestricted, nil, nodes, supplies) },
	}
	if bar > 0 {
		p.bar = fmt.Sprintf("below %v and 1 MiB", bar)
		p.met = func(ours, _ sample) bool { return ours.time < bar && ours.bytes < 1<<20 }
	}
	if !withUpstream {
		p.without = notMeasured(nodes, resources)
		return p
	}
	info := &topologymanager.NUMAInfo{}
	for n := range nodes {
		info.Nodes = append(info.Nodes, n)
	}
	policy := topologymanager.NewRestrictedPolicy(info, topologymanager.PolicyOptions{})
	listed := hintsOf(supplies, nodes)
	p.upstream = func() { policy.Merge(logr.Discard(), listed) }
	if nodes < 8 || resources < 3 {
		want, _ := policy.Merge(logr.Discard(), listed)
		got, preferred, _ := hints.Best(hints.PolicyRestricted, nil, nodes, supplies)
		agree(p.name, got, want.NUMANodeAffinity.GetBits())
		agree(p.name, preferred, want.Preferred)
	}
	return p
}

// notMeasured says why upstream's merge is not measured: it checks every combination of one mask for each resource.
func notMeasured(nodes, resources int) string {
	combinations := math.Pow(math.Pow(2, float64(nodes))-1, float64(resources))
	return fmt.Sprintf("not run: %.1e combinations (8 nodes x 3 resources: %.1e)", combinations, math.Pow(255, 3))
}

func agree(what string, ours, upstream any) {
	if !reflect.DeepEqual(ours, upstream) {
		panic(fmt.Sprintf("%s: ours %v, upstream %v: nothing to compare", what, ours, upstream))
	}
}

// hintsOf writes supplies out as upstream's providers do: every mask with enough, preferred if no narrower mask could
// ever have enough, which here means one node.
func hintsOf(supplies []hints.Supply, nodes int) []map[string][]topologymanager.TopologyHint {
	var places []int
	for n := range nodes {
		places = append(places, n)
	}
	var out []map[string][]topologymanager.TopologyHint
	for _, s := range supplies {
		var hints []topologymanager.TopologyHint
		bitmask.IterateBitMasks(places, func(mask bitmask.BitMask) {
			var free int64
			for _, n := range mask.GetBits() {
				free += s.Free[n]
			}
			if free >= s.Need {
				hints = append(hints, topologymanager.TopologyHint{NUMANodeAffinity: mask, Preferred: mask.Count() == 1})
			}
		})
		out = append(out, map[string][]topologymanager.TopologyHint{"r": hints})
	}
	return out
}

// eightNodes is 2 sockets of 4 NUMA nodes of 32 cores of 2 threads: 512 CPUs.
func eightNodes() (machine.Machine, *topology.CPUTopology) {
	m := machine.Machine{Sockets: map[machine.SocketID]idset.Set{}}
	topo := &topology.CPUTopology{NumCPUs: 512, NumCores: 256, NumSockets: 2, NumNUMANodes: 8, NumUncoreCache: 2,
		CPUDetails: topology.CPUDetails{}}
	for n := range 8 {
		node := machine.NUMANode{ID: machine.NUMAID(n), Memory: 128 * unit.GiB}
		var cpus []int
		for core := range 32 {
			first, second := n*32+core, 256+n*32+core
			cpus = append(cpus, first, second)
			m.Cores = append(m.Cores, idset.Of(first, second))
			for _, cpu := range []int{first, second} {
				topo.CPUDetails[cpu] = topology.CPUInfo{NUMANodeID: n, SocketID: n / 4, CoreID: first, UncoreCacheID: n / 4}
			}
		}
		node.CPUs = idset.Of(cpus...)
		m.Sockets[machine.SocketID(n/4)] = m.Sockets[machine.SocketID(n/4)].Union(node.CPUs)
		m.NUMANodes = append(m.NUMANodes, node)
	}
	m.NodeFS.Capacity = unit.GiB
	return m.Complete(), topo
}

// anywhere is a topology manager that accepts any NUMA node.
type anywhere struct{ topologymanager.Store }

func (anywhere) GetAffinity(string, string) topologymanager.TopologyHint {
	return topologymanager.TopologyHint{}
}
func (anywhere) GetPolicy() topologymanager.Policy { return topologymanager.NewNonePolicy() }

// busyCPUs returns about that share of the machine's CPUs, in runs of 3, so that cores and nodes are partly taken.
func busyCPUs(percent int) []int {
	var out []int
	for cpu := 2; cpu < 512; cpu++ {
		if cpu/3*37%100 < percent {
			out = append(out, cpu)
		}
	}
	return out
}

func choicePair(n, busy int) pair {
	m, topo := eightNodes()
	layout, err := numa.New(m, numa.Config{CPU: numa.CPUConfig{Static: true, Reserved: idset.Of(0, 1), ReservedCount: 2}})
	if err != nil {
		panic(err)
	}
	taken := busyCPUs(busy)
	state := layout.NewState()
	if problems := state.Adopt(numa.Assignment{Pod: "others", Containers: []numa.Assigned{{Container: "c",
		CPUs: idset.Of(taken...)}}}); problems != nil {
		panic(fmt.Sprint(problems))
	}
	p := numa.Pod{UID: "p", Guaranteed: true, Containers: []numa.Container{{Name: "c", CPU: unit.MilliCPU(n) * unit.CPU}}}

	policy, err := cpumanager.NewStaticPolicy(logr.Discard(), topo, 2, cpuset.New(0, 1), anywhere{}, nil)
	if err != nil {
		panic(err)
	}
	books := cpustate.NewMemoryState(logr.Discard())
	shared := topo.CPUDetails.CPUs().Difference(cpuset.New(taken...))
	pod := guaranteed(n)
	upstream := func() {
		books.SetDefaultCPUSet(shared)
		if err := policy.Allocate(logr.Discard(), books, pod, &pod.Spec.Containers[0]); err != nil {
			panic(err)
		}
		books.Delete("p", "c")
	}
	books.SetDefaultCPUSet(shared)
	if err := policy.Allocate(logr.Discard(), books, pod, &pod.Spec.Containers[0]); err != nil {
		panic(err)
	}
	want, _ := books.GetCPUSet("p", "c")
	books.Delete("p", "c")
	offer, rejection := state.Offer(p, nil)
	if rejection != nil {
		panic(rejection.Message())
	}
	name := fmt.Sprintf("%d CPUs of 512 on 8 NUMA nodes, %d%% taken", n, busy)
	agree(name, offer.Assignment.Containers[0].CPUs.String(), want.String())
	return pair{
		name: name, bar: "10 times", met: func(ours, upstream sample) bool { return upstream.time >= 10*ours.time },
		ours: func() { state.Offer(p, nil) }, upstream: upstream,
	}
}

func guaranteed(cpus int) *corev1.Pod {
	list := corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewQuantity(int64(cpus), resource.DecimalSI),
		corev1.ResourceMemory: *resource.NewQuantity(1<<30, resource.BinarySI),
	}
	pod := &corev1.Pod{}
	pod.Name, pod.UID = "p", "p"
	pod.Spec.Containers = []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: list,
		Limits: list}}}
	return pod
}

// admitPair is what the scheduler does for each NUMA pod: offer, commit, and release once it is gone. Upstream has no
// counterpart; the bar is the scheduler's.
func admitPair() pair {
	m, _ := eightNodes()
	layout, err := numa.New(m, numa.Config{
		CPU:      numa.CPUConfig{Static: true, ReservedCount: 2},
		Memory:   numa.MemoryConfig{Static: true, Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: unit.GiB}}},
		Topology: numa.TopologyConfig{Policy: numa.PolicySingleNUMANode, PodScope: true},
	})
	if err != nil {
		panic(err)
	}
	state := layout.NewState()
	pod := func(i int) numa.Pod {
		return numa.Pod{UID: fmt.Sprintf("%03d", i), Guaranteed: true, Containers: []numa.Container{{Name: "c",
			CPU: 4 * unit.CPU, Memory: []numa.MemoryRequest{{Bytes: unit.GiB}}}}}
	}
	admit := func(p numa.Pod) {
		offer, rejection := state.Offer(p, nil)
		if rejection != nil {
			panic(rejection.Message())
		}
		if err := state.Commit(offer); err != nil {
			panic(err)
		}
	}
	for i := range 100 {
		admit(pod(i))
	}
	one := pod(999)
	return pair{
		without: "does not have it: an admission allocates",
		name:    "a pod of 4 CPUs and memory, single-numa-node, on 512 CPUs with 100 pods: offer, commit, release",
		bar:     "below 200us (5,000 pods/s)", met: func(ours, _ sample) bool { return ours.time < 200*time.Microsecond },
		ours: func() { admit(one); state.Release(one.UID) },
	}
}
