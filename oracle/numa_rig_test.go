package oracle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/info/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/kubelet/cm/cpumanager"
	cpustate "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/state"
	cputopology "k8s.io/kubernetes/pkg/kubelet/cm/cpumanager/topology"
	"k8s.io/kubernetes/pkg/kubelet/cm/memorymanager"
	memorystate "k8s.io/kubernetes/pkg/kubelet/cm/memorymanager/state"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
	"k8s.io/utils/cpuset"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func init() {
	klog.SetLogger(logr.Discard())
	if err := utilfeature.DefaultMutableFeatureGate.Set("CPUManagerPolicyAlphaOptions=true," +
		"CPUManagerPolicyBetaOptions=true"); err != nil {
		panic(err)
	}
}

// randomMachine generates a machine: sockets of nodes or nodes of sockets, caches within nodes, one or two threads per
// core, CPUs numbered as firmware does. An uneven one has some CPUs offline.
func randomMachine(rng *rand.Rand, uneven bool) machine.Machine {
	sockets, nodesPerSocket := 1+rng.IntN(2), 1+rng.IntN(3)
	if rng.IntN(8) == 0 {
		sockets, nodesPerSocket = 1+rng.IntN(4), 1+rng.IntN(2)
	}
	// per node, cache and core
	caches := 1 + rng.IntN(2)
	cores := 1 + rng.IntN(4)
	threads := 1 + rng.IntN(2)
	socketsPerNode := 1
	if nodesPerSocket == 1 && rng.IntN(4) == 0 {
		socketsPerNode = 2
	}
	m := machine.Machine{Sockets: map[machine.SocketID]idset.Set{}, L3: map[machine.CacheID]idset.Set{}}
	nodes := sockets * nodesPerSocket
	perNode := socketsPerNode * caches * cores
	allCores := nodes * perNode
	siblingsLast, interleaved := rng.IntN(2) == 0, rng.IntN(3) == 0
	cpusOf := func(core int) []int {
		place := core
		if interleaved { // cores numbered across nodes in rotation
			place = core%perNode*nodes + core/perNode
		}
		var out []int
		for thread := range threads {
			id := place*threads + thread
			if siblingsLast {
				id = place + thread*allCores
			}
			if !uneven || rng.IntN(6) > 0 {
				out = append(out, id)
			}
		}
		return out
	}
	add := func(s *idset.Set, cpus []int) { *s = s.Union(idset.Of(cpus...)) }
	for n := range nodes {
		node := machine.NUMANode{ID: machine.NUMAID(n), Memory: unit.Bytes(4+rng.IntN(8)) * unit.GiB,
			Distances: map[machine.NUMAID]int{}}
		for s := range socketsPerNode {
			for c := range caches {
				for k := range cores {
					cpus := cpusOf(((n*socketsPerNode+s)*caches+c)*cores + k)
					if len(cpus) == 0 {
						continue
					}
					add(&node.CPUs, cpus)
					m.Cores = append(m.Cores, idset.Of(cpus...))
					socket := machine.SocketID(n / nodesPerSocket)
					if socketsPerNode > 1 {
						socket = machine.SocketID(n*socketsPerNode + s)
					}
					set := m.Sockets[socket]
					add(&set, cpus)
					m.Sockets[socket] = set
					cache := machine.CacheID((n*socketsPerNode+s)*caches + c)
					set = m.L3[cache]
					add(&set, cpus)
					m.L3[cache] = set
				}
			}
		}
		if rng.IntN(3) == 0 {
			node.HugePages = map[unit.Bytes]int64{2 * unit.MiB: int64(256 * (1 + rng.IntN(4)))}
		} else {
			node.HugePages = map[unit.Bytes]int64{2 * unit.MiB: 256}
		}
		m.NUMANodes = append(m.NUMANodes, node)
	}
	for i, row := range randomDistances(rng, nodes) {
		for j, d := range row {
			m.NUMANodes[i].Distances[machine.NUMAID(j)] = d
		}
	}
	for _, n := range m.NUMANodes {
		m.CPUs = m.CPUs.Union(n.CPUs)
	}
	slices.SortFunc(m.Cores, func(a, b idset.Set) int { return a.Lowest() - b.Lowest() })
	return m
}

// isEven reports whether all cores and all sockets are equal: upstream decides by the average whether one is free.
func isEven(m machine.Machine) bool {
	for _, c := range m.Cores {
		if c.Len()*len(m.Cores) != m.CPUs.Len() {
			return false
		}
	}
	for _, s := range m.Sockets {
		if s.Len()*len(m.Sockets) != m.CPUs.Len() {
			return false
		}
	}
	return true
}

// cadvisorMachine returns m as upstream's type.
func cadvisorMachine(m machine.Machine) *cadvisorapi.MachineInfo {
	info := &cadvisorapi.MachineInfo{NumCores: m.CPUs.Len(), NumPhysicalCores: len(m.Cores), NumSockets: len(m.Sockets)}
	for _, n := range m.NUMANodes {
		node := cadvisorapi.Node{Id: int(n.ID), Memory: uint64(n.Memory)}
		for size, count := range n.HugePages {
			node.HugePages = append(node.HugePages, cadvisorapi.HugePagesInfo{PageSize: uint64(size / unit.KiB),
				NumPages: uint64(count)})
		}
		for _, other := range m.NUMANodes {
			node.Distances = append(node.Distances, uint64(n.Distances[other.ID]))
		}
		for _, c := range m.Cores {
			if !n.CPUs.Has(c.Lowest()) {
				continue
			}
			core := cadvisorapi.Core{Id: c.Lowest(), Threads: slices.Collect(c.All())}
			for id, cpus := range m.Sockets {
				if cpus.Has(c.Lowest()) {
					core.SocketID = int(id)
				}
			}
			for id, cpus := range m.L3 {
				if cpus.Has(c.Lowest()) {
					core.UncoreCaches = []cadvisorapi.Cache{{Id: int(id)}}
				}
			}
			node.Cores = append(node.Cores, core)
		}
		info.Topology = append(info.Topology, node)
	}
	return info
}

// randomCPUConfig generates options that are valid together.
func randomCPUConfig(rng *rand.Rand, m machine.Machine) numa.CPUConfig {
	c := numa.CPUConfig{Static: true, StrictReservation: rng.IntN(4) == 0, ReservedCount: 1 +
		rng.IntN(min(3, m.CPUs.Len()))}
	// upstream's rule does not determine which CPUs are reserved on an uneven machine
	if rng.IntN(2) == 0 || !isEven(m) {
		all := slices.Collect(m.CPUs.All())
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		c.Reserved = idset.Of(all[:c.ReservedCount]...)
	}
	switch rng.IntN(8) {
	case 0:
		c.FullPCPUsOnly = true
	case 1:
		c.DistributeNUMA = true
	case 2:
		c.DistributeCores = true
	case 3:
		c.PreferAlignByCache = true
	case 4:
		c.PreferAlignByCache, c.FullPCPUsOnly = true, true
	case 5:
		c.AlignBySocket = true
	}
	return c
}

func cpuOptions(c numa.CPUConfig) map[string]string {
	out := map[string]string{}
	for name, on := range map[string]bool{
		"full-pcpus-only": c.FullPCPUsOnly, "strict-cpu-reservation": c.StrictReservation,
		"distribute-cpus-across-numa":  c.DistributeNUMA,
		"distribute-cpus-across-cores": c.DistributeCores, "align-by-socket": c.AlignBySocket,
		"prefer-align-cpus-by-uncorecache": c.PreferAlignByCache,
	} {
		if on {
			out[name] = "true"
		}
	}
	return out
}

// kubelet is upstream's managers, combined as in the kubelet.
type kubelet struct {
	topology    topologymanager.Manager
	cpu         cpumanager.Policy
	cpuState    cpustate.State
	memory      memorymanager.Policy
	memoryState memorystate.State
}

// newKubelet creates upstream's managers. first, if any, is asked for hints before the others, as the device manager
// is.
func newKubelet(m machine.Machine, c numa.Config,
	first ...func(topologymanager.Manager) (topologymanager.HintProvider, error)) (*kubelet, error) {
	info := cadvisorMachine(m)
	k := &kubelet{cpuState: cpustate.NewMemoryState(logr.Discard()),
		memoryState: memorystate.NewMemoryState(logr.Discard())}
	scope := "container"
	if c.Topology.PodScope {
		scope = "pod"
	}
	options := map[string]string{"prefer-closest-numa-nodes": fmt.Sprint(c.Topology.PreferClosest)}
	var err error
	if k.topology, err = topologymanager.NewManager(info.Topology, c.Topology.Policy.String(), scope,
		options); err != nil {
		return nil, err
	}
	for _, provider := range first {
		p, err := provider(k.topology)
		if err != nil {
			return nil, err
		}
		k.topology.AddHintProvider(logr.Discard(), p)
	}
	if c.CPU.Static {
		topo, err := cputopology.Discover(logr.Discard(), info)
		if err != nil {
			return nil, err
		}
		if k.cpu, err = cpumanager.NewStaticPolicy(logr.Discard(), topo, c.CPU.ReservedCount,
			cpuset.New(slices.Collect(c.CPU.Reserved.All())...), k.topology, cpuOptions(c.CPU)); err != nil {
			return nil, err
		}
		if err := k.cpu.Start(logr.Discard(), k.cpuState); err != nil {
			return nil, err
		}
		k.topology.AddHintProvider(logr.Discard(), cpuProvider{k})
	}
	if c.Memory.Static {
		reserved := map[int]map[corev1.ResourceName]uint64{}
		for id, sizes := range c.Memory.Reserved {
			reserved[int(id)] = map[corev1.ResourceName]uint64{}
			for size, amount := range sizes {
				reserved[int(id)][corev1.ResourceName(numa.KindName(size))] = uint64(amount)
			}
		}
		if k.memory, err = memorymanager.NewPolicyStatic(logr.Discard(), info, reserved, k.topology); err != nil {
			return nil, err
		}
		if err := k.memory.Start(logr.Discard(), k.memoryState); err != nil {
			return nil, err
		}
		k.topology.AddHintProvider(logr.Discard(), memoryProvider{k})
	}
	return k, nil
}

type cpuProvider struct{ k *kubelet }

func (p cpuProvider) GetTopologyHints(pod *corev1.Pod, c *corev1.Container) map[string][]topologymanager.TopologyHint {
	return p.k.cpu.GetTopologyHints(logr.Discard(), p.k.cpuState, pod, c)
}
func (p cpuProvider) GetPodTopologyHints(pod *corev1.Pod) map[string][]topologymanager.TopologyHint {
	return p.k.cpu.GetPodTopologyHints(logr.Discard(), p.k.cpuState, pod)
}
func (p cpuProvider) AllocatePod(*corev1.Pod) error { return nil }
func (p cpuProvider) Allocate(pod *corev1.Pod, c *corev1.Container) error {
	return p.k.cpu.Allocate(logr.Discard(), p.k.cpuState, pod, c)
}

type memoryProvider struct{ k *kubelet }

func (p memoryProvider) GetTopologyHints(pod *corev1.Pod,
	c *corev1.Container) map[string][]topologymanager.TopologyHint {
	return p.k.memory.GetTopologyHints(logr.Discard(), p.k.memoryState, pod, c)
}
func (p memoryProvider) GetPodTopologyHints(pod *corev1.Pod) map[string][]topologymanager.TopologyHint {
	return p.k.memory.GetPodTopologyHints(logr.Discard(), p.k.memoryState, pod)
}
func (p memoryProvider) AllocatePod(*corev1.Pod) error { return nil }
func (p memoryProvider) Allocate(pod *corev1.Pod, c *corev1.Container) error {
	return p.k.memory.Allocate(logr.Discard(), p.k.memoryState, pod, c)
}

func (k *kubelet) admit(pod *corev1.Pod) lifecycle.PodAdmitResult {
	result := k.topology.Admit(&lifecycle.PodAdmitAttributes{Pod: pod})
	if !result.Admit {
		k.remove(pod)
	}
	return result
}

// remove releases a pod's resources, as upstream's managers do once it is not active any more.
func (k *kubelet) remove(pod *corev1.Pod) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		k.removeContainer(pod, c.Name)
		if k.cpu != nil {
			_ = k.cpu.RemoveContainer(logr.Discard(), k.cpuState, string(pod.UID), c.Name)
		}
	}
}

func (k *kubelet) removeContainer(pod *corev1.Pod, container string) {
	if k.memory != nil {
		k.memory.RemoveContainer(logr.Discard(), k.memoryState, string(pod.UID), container)
	}
}

// describe returns what upstream assigned to a container: nodes of the hint, CPUs, memory.
func (k *kubelet) describe(pod *corev1.Pod, container string) string {
	var b strings.Builder
	if cpus, ok := k.cpuState.GetCPUSet(string(pod.UID), container); ok {
		fmt.Fprintf(&b, "cpus %v ", cpus)
	}
	blocks := k.memoryState.GetMemoryBlocks(string(pod.UID), container)
	var lines []string
	for _, block := range blocks {
		lines = append(lines, fmt.Sprintf("%s %v %d", block.Type, block.NUMAAffinity, block.Size))
	}
	slices.Sort(lines)
	return b.String() + strings.Join(lines, "; ")
}

// describe returns what we assigned to a container, in the same form.
func describe(h numa.Assigned) string {
	var b strings.Builder
	if !h.CPUs.IsEmpty() {
		fmt.Fprintf(&b, "cpus %v ", h.CPUs)
	}
	var lines []string
	for _, block := range h.Memory {
		lines = append(lines, fmt.Sprintf("%s %v %d", numa.KindName(block.PageSize), block.Nodes, int64(block.Bytes)))
	}
	slices.Sort(lines)
	return b.String() + strings.Join(lines, "; ")
}

// bothPods returns a pod as upstream's type, for the one of ours.
func bothPods(uid string, p numa.Pod) *corev1.Pod {
	pod := &corev1.Pod{}
	pod.Name = uid
	pod.Namespace = "default"
	pod.UID = types.UID(uid)
	always := corev1.ContainerRestartPolicyAlways
	container := func(c numa.Container) corev1.Container {
		requests := corev1.ResourceList{}
		if c.CPU > 0 {
			requests[corev1.ResourceCPU] = *resource.NewMilliQuantity(int64(c.CPU), resource.DecimalSI)
		}
		for _, m := range c.Memory {
			requests[corev1.ResourceName(numa.KindName(m.PageSize))] = *resource.NewQuantity(int64(m.Bytes), resource.BinarySI)
		}
		limits := requests.DeepCopy()
		for _, d := range c.Devices {
			limits[corev1.ResourceName(d.Resource)] = *resource.NewQuantity(int64(d.Count), resource.DecimalSI)
			requests[corev1.ResourceName(d.Resource)] = limits[corev1.ResourceName(d.Resource)]
		}
		if !p.Guaranteed {
			delete(limits, corev1.ResourceCPU)
		}
		out := corev1.Container{Name: c.Name, Resources: corev1.ResourceRequirements{Requests: requests, Limits: limits}}
		if c.Sidecar {
			out.RestartPolicy = &always
		}
		return out
	}
	for _, c := range p.Init {
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, container(c))
	}
	for _, c := range p.Containers {
		pod.Spec.Containers = append(pod.Spec.Containers, container(c))
	}
	return pod
}
