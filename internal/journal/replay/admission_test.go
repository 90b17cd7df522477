package replay

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/journal"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

const gpu = "example.com/gpu"

// place is a node of two NUMA nodes to which random pods come.
type place struct {
	rng     *rand.Rand
	state   *numa.State
	encoder *topology.Encoder
	node    *admission.Node
	here    []string // UIDs
}

func newPlace(t testing.TB, rng *rand.Rand) *place {
	t.Helper()
	var m machine.Machine
	m.NodeFS.Capacity = unit.GiB
	m.L3 = map[machine.CacheID]idset.Set{0: idset.Of(0, 1, 2, 3, 4, 5, 6, 7), 1: idset.Of(8, 9, 10, 11, 12, 13, 14, 15)}
	for id, cpus := range []idset.Set{m.L3[0], m.L3[1]} {
		m.NUMANodes = append(m.NUMANodes, machine.NUMANode{
			ID:        machine.NUMAID(id),
			CPUs:      cpus,
			Memory:    16 * unit.GiB,
			Distances: map[machine.NUMAID]int{0: 10 + 11*id, 1: 21 - 11*id},
		})
	}
	for cpu := 0; cpu < 16; cpu += 2 {
		m.Cores = append(m.Cores, idset.Of(cpu, cpu+1))
	}
	m = m.Complete()
	config := numa.Config{
		CPU:      numa.CPUConfig{Static: true, ReservedCount: 1},
		Topology: numa.TopologyConfig{Policy: numa.Policy(rng.IntN(4)), PodScope: rng.IntN(2) == 0},
		Memory: numa.MemoryConfig{
			Static:   true,
			Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: unit.GiB}},
		},
	}
	layout, err := numa.New(m, config)
	if err != nil {
		t.Fatal(err)
	}
	p := &place{rng: rng, state: layout.NewState()}
	if p.encoder, err = topology.NewEncoder("n1", m, config); err != nil {
		t.Fatal(err)
	}
	plugin := numa.Plugin{Resource: gpu, Prefers: true}
	for i := range 4 {
		plugin.Devices = append(plugin.Devices, numa.Device{
			ID: fmt.Sprint("gpu", i), Healthy: true, Nodes: []machine.NUMAID{machine.NUMAID(i / 2)},
		})
	}
	p.state.SetPlugin(plugin)
	p.node = admission.NewNode(scheduler.Node{
		Name:    "n1",
		PodsMax: 9,
		Allocatable: []scheduler.Amount{
			{Resource: scheduler.CPU, Value: 12_000}, {Resource: scheduler.Memory, Value: int64(24 * unit.GiB)},
		},
	})
	return p
}

// come judges a pod and returns the record of that.
func (p *place) come(uid string) *journal.Admission {
	cpus, memory := int64(1+p.rng.IntN(5)), unit.Bytes(1+p.rng.IntN(6))*unit.GiB
	wants := numa.Container{Name: "app", CPU: unit.MilliCPU(cpus) * unit.CPU}
	wants.Memory = []numa.MemoryRequest{{Bytes: memory}}
	if n := p.rng.IntN(3); n > 0 {
		wants.Devices = []numa.DeviceRequest{{Resource: gpu, Count: n}}
	}
	pod := numa.Pod{UID: uid, Guaranteed: true, Containers: []numa.Container{wants}}
	if p.rng.IntN(4) == 0 {
		pod.Berth = numa.Berth{{Container: "app", CPUs: idset.Of(p.rng.IntN(16)), Nodes: []machine.NUMAID{1}}}
	}
	asks := scheduler.Pod{ID: scheduler.PodID(uid), Requests: []scheduler.Amount{
		{Resource: scheduler.CPU, Value: cpus * 1000}, {Resource: scheduler.Memory, Value: int64(memory)},
	}}
	var conditions []eviction.Condition
	if p.rng.IntN(6) == 0 {
		conditions = []eviction.Condition{eviction.DiskPressure}
	}
	applicant := admission.Applicant{Pod: asks, Class: qos.Guaranteed, Critical: p.rng.IntN(2) == 0}
	out := &journal.Admission{Verdict: journal.Rejects}
	out.Basis = admission.PressureBasis(applicant, conditions)
	if out.Rejection = admission.UnderPressure(applicant, conditions); out.Rejection != nil {
		return out
	}
	var answers numa.Answers
	offer, rejection := p.state.Offer(pod, answers)
	for offer.Question != nil { // a plugin prefers the devices with the highest IDs
		if answers == nil {
			answers = numa.Answers{}
		}
		q := offer.Question
		ids := slices.Sorted(slices.Values(q.Available))
		answers[numa.Subject{Container: q.Container, Resource: q.Resource}] = ids[len(ids)-q.Size:]
		offer, rejection = p.state.Offer(pod, answers)
	}
	object := p.encoder.Encode(p.state)
	out.Assignment = &journal.Assignment{
		Policy:  "some",
		Free:    journal.FreeOf(p.state.Free()),
		Pod:     pod,
		Berth:   journal.BerthOf(pod.Berth),
		Answers: journal.AnswersOf(&pod, answers),
		State:   object,
	}
	out.Assignment.Pod.Berth = nil
	if rejection != nil {
		out.Assignment.Message = rejection.Message()
		return out
	}
	out.Assignment.Decided = topology.EncodePod(offer.Assignment)
	out.Assignment.Given = journal.GivenOf(offer.Assignment)
	p.node.AddTo(out.Basis, asks)
	if out.Rejection = p.node.Check(asks); out.Rejection != nil {
		return out
	}
	if err := p.state.Commit(offer); err != nil {
		panic(err)
	}
	p.node.Set(asks)
	p.here = append(p.here, uid)
	out.Verdict = journal.Admits
	return out
}

// TestAdmissions records what is decided about pods that come to nodes and leave them. All of it must be decided again.
func TestAdmissions(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	dir := filepath.Join(t.TempDir(), journal.OfPods)
	l, err := journal.NewLog("", 32<<20, dir)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for n := range 18 {
		p := newPlace(t, rng)
		for i := range 60 {
			d := p.come(fmt.Sprint("uid-", n, "-", i))
			l.Note(journal.Note{Kind: journal.Admitted, Pods: []journal.Pod{{Name: "p"}}, Detail: d})
			counts[string(d.Verdict)]++
			if d.Assignment != nil {
				counts["assignments"]++
				counts["answers"] += len(d.Assignment.Answers)
				counts["berths"] += len(d.Assignment.Berth)
			}
			if len(p.here) > 2 && rng.IntN(2) == 0 {
				k := rng.IntN(len(p.here))
				p.state.Release(p.here[k])
				p.node.Remove(scheduler.PodID(p.here[k]))
				p.here = slices.Delete(p.here, k, k+1)
			}
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r := replayed(t, filepath.Dir(dir)) // the agent's directory has this one in it
	if r.Same[journal.Admitted] != 1080 || len(r.Differ) > 0 || len(r.Skipped) > 0 {
		t.Errorf("%s", r.Table())
	}
	for what, least := range map[string]int{
		"admitted": 100, "rejected": 100, "assignments": 400, "answers": 100, "berths": 50,
	} {
		if counts[what] < least {
			t.Errorf("%d %s: want at least %d", counts[what], what, least)
		}
	}
	for _, c := range []struct{ from, to string }{
		{`"Resource":"cpu","Requested":`, `"Resource":"cpu","Requested":99`},
		{`"decided":"{`, `"decided":"{ `},
		{`"CPU":`, `"CPU":1`},
	} {
		changed := change(t, filepath.Join(dir, "decisions"), `"verdict":"admitted"`, c.from, c.to)
		if r := replayed(t, changed); len(r.Differ) == 0 {
			t.Errorf("%s instead of %s was not noticed: %s", c.to, c.from, r.Table())
		}
	}
}
