package oracle

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestAdmit gives random histories of pods to upstream's topology, CPU and memory managers, combined as in the kubelet,
// and to ours: the same pods must be admitted, others rejected with the same reason, and all resources be the same.
func TestAdmit(t *testing.T) {
	seed := uint64(20261120)
	t.Logf("seed %d, %d pods", seed, *admits)
	var tally admitTally
	inParallel(*admits, func(part, n int) {
		rng := rand.New(rand.NewPCG(seed, uint64(2000+part)))
		for done := 0; done < n && !t.Failed(); {
			done += playHistory(t, rng, &tally)
		}
	})
	t.Logf("%v", &tally)
}

type admitTally struct{ admitted, topology, smt, unexpected, released, apart atomic.Int64 }

func (a *admitTally) String() string {
	return fmt.Sprintf("%d admitted, refused: %d TopologyAffinityError, %d SMTAlignmentError, %d "+
		"UnexpectedAdmissionError; %d released; %d histories left where upstream's books depend on the order of ends",
		a.admitted.Load(), a.topology.Load(), a.smt.Load(), a.unexpected.Load(), a.released.Load(), a.apart.Load())
}

func randomConfig(rng *rand.Rand, m machine.Machine) numa.Config {
	c := numa.Config{Topology: numa.TopologyConfig{
		Policy:        numa.Policy(rng.IntN(4)),
		PodScope:      rng.IntN(2) == 0,
		PreferClosest: rng.IntN(3) == 0,
	}}
	if rng.IntN(6) > 0 {
		c.CPU = randomCPUConfig(rng, m)
		if c.CPU.AlignBySocket && (c.Topology.Policy == numa.PolicySingleNUMANode || len(m.Sockets) > len(m.NUMANodes)) {
			c.CPU.AlignBySocket = false
		}
	}
	// whole cores spread evenly over nodes. With half a core reserved, upstream may never return
	if rng.IntN(8) == 0 {
		c.CPU = numa.CPUConfig{Static: true, ReservedCount: m.CPUs.Len() / len(m.Cores), FullPCPUsOnly: true,
			DistributeNUMA: true}
	}
	if rng.IntN(4) > 0 {
		c.Memory = numa.MemoryConfig{Static: true, Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: unit.GiB}}}
	}
	return c
}

func playHistory(t *testing.T, rng *rand.Rand, tally *admitTally) int {
	m := randomMachine(rng, false)
	if m.CPUs.Len() < 2 || len(m.NUMANodes) > 4 && rng.IntN(20) > 0 { // the length of upstream's lists is exponential
		return 0
	}
	config := randomConfig(rng, m)
	layout, err := numa.New(m, config)
	k, kerr := newKubelet(m, config)
	if err != nil || kerr != nil {
		t.Errorf("machine %v, config %+v: ours %v, upstream %v", show(m), config, err, kerr)
		return 1
	}
	h := history{t: t, rng: rng, tally: tally, m: m, config: config, state: layout.NewState(), k: k}
	steps := 5 + rng.IntN(25)
	for i := range steps {
		if !h.step(i) {
			return i + 1
		}
	}
	return steps
}

type history struct {
	t      *testing.T
	rng    *rand.Rand
	tally  *admitTally
	m      machine.Machine
	config numa.Config
	state  *numa.State
	k      *kubelet
	pods   []*corev1.Pod
	log    []string
}

// step adds one pod, and then may end one. It returns false if the history cannot continue.
func (h *history) step(i int) bool {
	p := h.randomPod(fmt.Sprintf("pod%d", i))
	pod := bothPods(p.UID, p)
	result := h.k.admit(pod)
	offer, rejection := h.state.Offer(p, nil)
	h.log = append(h.log, fmt.Sprintf("%s: %+v / %+v -> %s %s", p.UID, p.Init, p.Containers, result.Reason,
		result.Message))
	if (rejection == nil) != result.Admit {
		return h.fail("upstream %+v, ours %v %+v", result, rejection, offer)
	}
	if h.k.apart() {
		h.tally.apart.Add(1)
		return false
	}
	if rejection != nil {
		h.count(rejection.Reason)
		if rejection.Reason != result.Reason || rejection.Upstream != result.Message {
			return h.fail("upstream %q %q, ours %q %q", result.Reason, result.Message, rejection.Reason, rejection.Upstream)
		}
		return true
	}
	h.tally.admitted.Add(1)
	for _, c := range offer.Assignment.Containers {
		if got, want := describe(c), h.k.describe(pod, c.Container); got != want {
			return h.fail("%s: upstream %q, ours %q", c.Container, want, got)
		}
		affinity := h.k.topology.GetAffinity(p.UID, c.Container)
		want := "anywhere"
		if affinity.NUMANodeAffinity != nil {
			want = fmt.Sprint(affinity.NUMANodeAffinity.GetBits())
		}
		got := "anywhere"
		if c.Nodes != nil {
			got = fmt.Sprint(c.Nodes)
		}
		if got != want || c.Preferred != affinity.Preferred {
			return h.fail("%s: upstream's hint %s %v, ours %s %v", c.Container, want, affinity.Preferred, got, c.Preferred)
		}
	}
	if err := h.state.Commit(offer); err != nil {
		return h.fail("%v", err)
	}
	h.pods = append(h.pods, pod)
	return h.perhapsEnd()
}

func (h *history) count(reason string) {
	switch reason {
	case numa.TopologyAffinity:
		h.tally.topology.Add(1)
	case numa.SMTAlignment:
		h.tally.smt.Add(1)
	default:
		h.tally.unexpected.Add(1)
	}
}

func (h *history) perhapsEnd() bool {
	if h.rng.IntN(2) == 0 { // the init containers of the pod just admitted end
		pod := h.pods[len(h.pods)-1]
		for _, c := range pod.Spec.InitContainers {
			if c.RestartPolicy == nil {
				h.k.removeContainer(pod, c.Name)
			}
		}
		h.state.Finish(string(pod.UID))
	}
	if len(h.pods) > 0 && h.rng.IntN(3) == 0 {
		i := h.rng.IntN(len(h.pods))
		h.k.remove(h.pods[i])
		h.state.Release(string(h.pods[i].UID))
		h.log = append(h.log, "released "+string(h.pods[i].UID))
		h.pods = append(h.pods[:i], h.pods[i+1:]...)
		h.tally.released.Add(1)
	}
	if h.k.apart() {
		h.tally.apart.Add(1)
		return false
	}
	return true
}

func (h *history) fail(format string, args ...any) bool {
	for _, a := range h.state.Assignments() {
		h.log = append(h.log, fmt.Sprintf("ours %s: %+v", a.Pod, a.Containers))
	}
	for id, n := range h.k.memoryState.GetMachineState() {
		h.log = append(h.log, fmt.Sprintf("upstream node %d: %d assignments, group %v, free %v", id, n.NumberOfAssignments,
			n.Cells, n.MemoryMap["memory"].Free))
	}
	h.t.Errorf("machine %s\nmemory %+v\nconfig %+v\n%s\n%s", show(h.m), h.m.NUMANodes, h.config, strings.Join(h.log, "\n"),
		fmt.Sprintf(format, args...))
	return false
}

// apart reports whether upstream's state depends on the order in which pods ended; ours never does. There are two
// cases. A node is in a group although another assignment uses it alone: upstream forbids that, but does it if a hint
// has that node. Or one block of a group ended before others: upstream subtracts its bytes from the lowest nodes,
// wherever they were.
func (k *kubelet) apart() bool {
	state := k.memoryState.GetMachineState()
	for _, n := range state {
		for _, other := range n.Cells {
			if !slices.Equal(state[other].Cells, n.Cells) {
				return true
			}
		}
		for i, low := range n.Cells {
			for _, high := range n.Cells[i+1:] {
				for kind, table := range state[low].MemoryMap {
					if table.Free > 0 && state[high].MemoryMap[kind].Reserved > 0 {
						return true
					}
				}
			}
		}
	}
	return false
}

func (h *history) randomPod(uid string) numa.Pod {
	rng := h.rng
	p := numa.Pod{UID: uid, Guaranteed: rng.IntN(12) > 0}
	cpus := h.m.CPUs.Len()
	size := 1 + rng.IntN(max(1, cpus/len(h.m.NUMANodes)))
	if rng.IntN(3) == 0 {
		size = 1 + rng.IntN(max(1, cpus*2/3))
	}
	container := func(name string, most int) numa.Container {
		c := numa.Container{Name: name, CPU: unit.MilliCPU(1+rng.IntN(most)) * unit.CPU}
		if rng.IntN(8) == 0 {
			c.CPU += 500
		}
		memory := unit.Bytes(1+rng.IntN(4)) * unit.GiB
		if rng.IntN(4) == 0 {
			memory = unit.Bytes(1+rng.IntN(14)) * unit.GiB
		}
		c.Memory = []numa.MemoryRequest{{Bytes: memory}}
		if rng.IntN(4) == 0 {
			c.Memory = append(c.Memory, numa.MemoryRequest{PageSize: 2 * unit.MiB,
				Bytes: unit.Bytes(rng.IntN(6)) * 128 * unit.MiB})
		}
		return c
	}
	for i := range rng.IntN(3) * rng.IntN(2) {
		c := container(fmt.Sprintf("init%d", i), size)
		c.Sidecar = rng.IntN(3) == 0
		p.Init = append(p.Init, c)
	}
	for i := range 1 + rng.IntN(2)*rng.IntN(2) {
		p.Containers = append(p.Containers, container(fmt.Sprintf("main%d", i), size))
	}
	return p
}
