package numa

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestHistories plays long random histories: pods arrive, finish their init containers and end, plugins change their
// devices, the process crashes and rebuilds its State from what the pods have.
func TestHistories(t *testing.T) {
	const seed, histories, steps = 7, 150, 120
	for i := range histories {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		w := newWorld(t, rng)
		for range steps {
			w.step()
			if t.Failed() {
				t.Fatalf("seed %d history %d", seed, i)
			}
		}
	}
}

type world struct {
	t       *testing.T
	rng     *rand.Rand
	l       *Layout
	s       *State
	plugins map[string]Plugin
	pods    map[string]Pod
	next    int
}

const gpu, nic = "example.com/gpu", "example.com/nic"

func newWorld(t *testing.T, rng *rand.Rand) *world {
	m := someMachine(rng)
	c := Config{
		CPU: CPUConfig{
			Static:            rng.IntN(8) > 0,
			ReservedCount:     1,
			FullPCPUsOnly:     rng.IntN(4) == 0,
			StrictReservation: rng.IntN(2) == 0,
			DistributeNUMA:    rng.IntN(4) == 0,
		},
		Memory: MemoryConfig{
			Static:   rng.IntN(8) > 0,
			Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{m.NUMANodes[0].ID: {0: unit.GiB}},
		},
		Topology: TopologyConfig{Policy: Policy(rng.IntN(4)), PodScope: rng.IntN(2) == 0, PreferClosest: rng.IntN(2) == 0},
	}
	l, err := New(m, c)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, rng: rng, l: l, s: l.NewState(), plugins: map[string]Plugin{}, pods: map[string]Pod{}}
	w.changePlugin(gpu)
	w.changePlugin(nic)
	return w
}

// someMachine has 1 to 8 nodes with gaps between their ids, some without CPUs.
func someMachine(rng *rand.Rand) machine.Machine {
	m := machine.Machine{Sockets: map[machine.SocketID]idset.Set{}}
	id, cpu := machine.NUMAID(0), 0
	for range 1 + rng.IntN(8) {
		n := machine.NUMANode{
			ID:        id,
			Memory:    unit.Bytes(2+rng.IntN(6)) * unit.GiB,
			HugePages: map[unit.Bytes]int64{2 * unit.MiB: 256},
		}
		if rng.IntN(6) > 0 || id == 0 {
			for range 2 + 2*rng.IntN(4) {
				n.CPUs = n.CPUs.Union(idset.Of(cpu))
				if cpu%2 == 1 {
					m.Cores = append(m.Cores, idset.Of(cpu-1, cpu))
				}
				cpu++
			}
		}
		m.NUMANodes = append(m.NUMANodes, n)
		id += machine.NUMAID(1 + rng.IntN(3))
	}
	m.NodeFS.Capacity = unit.GiB
	return m.Complete()
}

func (w *world) step() {
	w.next++
	switch w.rng.IntN(10) {
	case 0:
		w.crash()
	case 1:
		w.changePlugin([]string{gpu, nic}[w.rng.IntN(2)])
	case 2, 3:
		if pod := w.anyPod(); pod != "" {
			w.release(pod)
		}
	case 4:
		if pod := w.anyPod(); pod != "" {
			w.s.Finish(pod)
		}
	default:
		w.admit()
	}
	w.check()
}

func (w *world) anyPod() string {
	if len(w.pods) == 0 {
		return ""
	}
	return w.s.assignments[w.rng.IntN(len(w.s.assignments))].Pod
}

// admit makes an offer, which changes nothing, and mostly commits it. Sometimes the pod ends at once, which undoes
// exactly that.
func (w *world) admit() {
	p := w.randomPod(fmt.Sprintf("pod-%d", w.next))
	before := w.s.snapshot()
	offer, rejection := w.s.Offer(p, nil)
	if after := w.s.snapshot(); after != before {
		w.t.Errorf("an offer changed the state:\n%s\n%s", before, after)
	}
	answers := Answers{}
	for asked := 0; offer.Question != nil; asked++ {
		q := offer.Question
		answers[Subject{q.Container, q.Resource}] = q.Available[max(0, len(q.Available)-q.Size):] // it prefers the last
		if offer, rejection = w.s.Offer(p, answers); asked > 20 {
			w.t.Errorf("after %d answers: %+v %+v", asked, offer, rejection)
			return
		}
	}
	if rejection != nil {
		if rejection.Message() == "" {
			w.t.Errorf("no words for %+v", rejection)
		}
		return
	}
	if w.rng.IntN(5) == 0 {
		return
	}
	if err := w.s.Commit(offer); err != nil {
		w.t.Error(err)
	}
	if w.s.Commit(offer) == nil {
		w.t.Error("an offer was committed twice")
	}
	w.pods[p.UID] = p
	if w.rng.IntN(4) == 0 {
		w.release(p.UID)
		if after := w.s.snapshot(); after != before {
			w.t.Errorf("release left traces:\n%s\n%s", before, after)
		}
	}
}

func (w *world) release(pod string) {
	if !w.s.Release(pod) || w.s.Release(pod) {
		w.t.Errorf("release of %s: want it to work exactly once", pod)
	}
	delete(w.pods, pod)
}

// crash drops everything, and rebuilds the State from what the pods have, in any order, with plugins before or after.
func (w *world) crash() {
	before, held := w.s.snapshot(), w.s.Assignments()
	w.rng.Shuffle(len(held), func(i, j int) { held[i], held[j] = held[j], held[i] })
	w.s = w.l.NewState()
	late := w.rng.IntN(2) == 0
	if !late {
		w.tellPlugins()
	}
	for _, a := range held {
		if problems := w.s.Adopt(a); problems != nil {
			w.t.Errorf("adopt: %q", problems)
		}
	}
	if late {
		w.tellPlugins()
	}
	if after := w.s.snapshot(); after != before {
		w.t.Errorf("rebuilt differently:\n%s\n%s", before, after)
	}
}

func (w *world) tellPlugins() {
	w.s.SetPlugin(w.plugins[gpu])
	w.s.SetPlugin(w.plugins[nic])
}

func (w *world) changePlugin(resource string) {
	p := Plugin{Resource: resource, Prefers: w.rng.IntN(2) == 0, Gone: w.rng.IntN(8) == 0}
	for i := range 8 {
		d := Device{ID: fmt.Sprintf("d%d", i), Healthy: w.rng.IntN(6) > 0}
		for range w.rng.IntN(3) {
			id := w.l.nodeID[w.rng.IntN(len(w.l.nodeID))]
			if !slices.Contains(d.Nodes, id) {
				d.Nodes = append(d.Nodes, id)
			}
		}
		p.Devices = append(p.Devices, d)
	}
	if w.rng.IntN(4) == 0 { // it no longer lists some devices, assigned or not
		p.Devices = p.Devices[w.rng.IntN(4):]
	}
	w.plugins[resource] = p
	w.s.SetPlugin(p)
}

func (w *world) randomPod(uid string) Pod {
	p := Pod{UID: uid, Guaranteed: w.rng.IntN(5) > 0, PodLevel: w.rng.IntN(10) == 0}
	container := func(name string) Container {
		c := Container{
			Name:   name,
			CPU:    unit.MilliCPU(500 * w.rng.IntN(14)),
			Memory: []MemoryRequest{{Bytes: unit.Bytes(1+w.rng.IntN(12)) * 512 * unit.MiB}},
		}
		if w.rng.IntN(4) == 0 {
			c.Memory = append(c.Memory, MemoryRequest{2 * unit.MiB, unit.Bytes(w.rng.IntN(5)) * 128 * unit.MiB})
		}
		for _, r := range []string{gpu, nic, "example.com/nobodys"} {
			if w.rng.IntN(4) == 0 {
				c.Devices = append(c.Devices, DeviceRequest{r, w.rng.IntN(4)})
			}
		}
		return c
	}
	for i := range w.rng.IntN(3) {
		c := container(fmt.Sprintf("init-%d", i))
		c.Sidecar = w.rng.IntN(3) == 0
		p.Init = append(p.Init, c)
	}
	for i := range 1 + w.rng.IntN(2) {
		p.Containers = append(p.Containers, container(fmt.Sprintf("main-%d", i)))
	}
	return p
}

// check checks the invariants of the State, from the assignments alone.
func (w *world) check() {
	w.checkCPUs()
	w.checkMemory()
	devices := map[string]string{}
	for _, a := range w.s.assignments {
		mine := map[string]bool{} // of containers that run at the same time
		for _, h := range a.Containers {
			for _, d := range h.Devices {
				for _, id := range d.IDs {
					key := d.Resource + "/" + id
					if owner := devices[key]; owner != "" && owner != a.Pod || mine[key] && !h.Init {
						w.t.Errorf("%s of %s is owned twice", key, a.Pod)
					}
					devices[key], mine[key] = a.Pod, !h.Init
				}
			}
		}
	}
	for i := range w.s.pools {
		for at := range w.s.pools[i].taken.All {
			if key := w.s.pools[i].resource + "/" + w.s.pools[i].ids[at]; devices[key] == "" {
				w.t.Errorf("%s is taken by nobody", key)
			}
		}
	}
}

func (w *world) checkCPUs() {
	owned := w.l.cpu.None()
	for _, a := range w.s.assignments {
		running, pod := w.l.cpu.None(), w.l.cpu.None()
		for _, h := range a.Containers {
			for cpu := range h.CPUs.All() {
				if !h.Init && running.Has(cpu) || owned.Has(cpu) || w.l.reserved.Has(cpu) || w.s.shared.Has(cpu) {
					w.t.Errorf("CPU %d of %s %s is another's, reserved or shared", cpu, a.Pod, h.Container)
				}
				if pod.Add(cpu); !h.Init {
					running.Add(cpu)
				}
			}
			if p := w.pods[a.Pod]; w.l.config.CPU.Static && p.Guaranteed && !p.PodLevel {
				if c := p.container(h.Container); c.CPU%unit.CPU == 0 && int(c.CPU/unit.CPU) != h.CPUs.Len() {
					w.t.Errorf("%s %s asked for %v CPUs and has %v", a.Pod, h.Container, c.CPU, h.CPUs)
				}
			}
		}
		owned.Unite(pod)
	}
	if owned.Count()+w.s.shared.Count() != w.l.cpu.CPUs.Count()-w.strictlyReserved() {
		w.t.Errorf("%d CPUs are owned and %d shared of %d", owned.Count(), w.s.shared.Count(), w.l.cpu.CPUs.Count())
	}
}

func (w *world) strictlyReserved() int {
	if w.l.config.CPU.StrictReservation {
		return w.l.reserved.Count()
	}
	return 0
}

func (p Pod) container(name string) Container {
	for c := range p.inOrder() {
		if c.Name == name {
			return *c
		}
	}
	return Container{}
}

// checkMemory checks that assigned and free memory add up to what there is.
func (w *world) checkMemory() {
	for k, size := range w.l.memory.Kinds {
		var owned, free, all int64
		for _, a := range w.s.assignments {
			for _, h := range a.Containers {
				for _, b := range h.Memory {
					if b.PageSize == size {
						owned += int64(b.Bytes)
					}
				}
			}
		}
		for i := range w.l.nodeID {
			free += w.s.memory.Free(w.l.memory, k)[i]
			all += w.l.memory.Total(k)[i]
		}
		if owned+free != all {
			w.t.Errorf("%s: %d bytes are owned and %d free of %d", KindName(size), owned, free, all)
		}
	}
}

// snapshot is everything in a State except its revision.
func (s *State) snapshot() string {
	text := fmt.Sprintf("shared %v memory %v\n", s.shared.IDs(), s.memory)
	for _, p := range s.pools {
		text += fmt.Sprintf("%s gone %v prefers %v ids %v near %v healthy %v taken %v\n", p.resource, p.gone, p.prefers,
			p.ids, p.places, p.healthy.Members(), p.taken.Members())
	}
	for _, a := range s.assignments {
		text += fmt.Sprintf("%s %+v\n", a.Pod, a.Containers)
	}
	return text
}

// Memory that pods have although it no longer exists is reported by node and by group.
func TestExcess(t *testing.T) {
	m := machine.Machine{NodeFS: machine.Filesystem{Capacity: unit.GiB}}
	for n := range 4 {
		m.NUMANodes = append(m.NUMANodes, machine.NUMANode{ID: machine.NUMAID(n), CPUs: idset.Of(n), Memory: unit.GiB})
	}
	l, err := New(m.Complete(), Config{Memory: MemoryConfig{
		Static:   true,
		Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: 512 * unit.MiB}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	s := l.NewState()
	block := func(bytes unit.Bytes, nodes ...machine.NUMAID) Block { return Block{Nodes: nodes, Bytes: bytes} }
	s.Adopt(Assignment{Pod: "fits", Containers: []Assigned{{Container: "c", Memory: []Block{block(unit.GiB, 1)}}}})
	if got := s.Excess(); got != nil {
		t.Errorf("%+v", got)
	}
	s.Adopt(Assignment{
		Pod:        "more",
		Containers: []Assigned{{Container: "c", Memory: []Block{block(unit.GiB, 0), block(3*unit.GiB, 2, 3)}}},
	})
	want := []Excess{{Nodes: []machine.NUMAID{0}, Owned: unit.GiB, Has: 512 * unit.MiB}, {Nodes: []machine.NUMAID{2, 3},
		Owned: 3 * unit.GiB, Has: 2 * unit.GiB}}
	if got := s.Excess(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A reserved CPU that is offline does not prevent the start. If all are offline, as many others are reserved.
func TestReservedOffline(t *testing.T) {
	m := machine.Machine{NodeFS: machine.Filesystem{Capacity: unit.GiB}, Offline: idset.Of(1)}
	m.NUMANodes = []machine.NUMANode{{CPUs: idset.Of(0, 2, 3), Memory: unit.GiB}}
	m = m.Complete()
	for _, c := range []struct{ reserved, want idset.Set }{{idset.Of(1, 2), idset.Of(2)}, {idset.Of(1), idset.Of(0)}} {
		l, err := New(m, Config{CPU: CPUConfig{Static: true, Reserved: c.reserved, ReservedCount: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if got := l.reserved.IDs(); !got.Equal(c.want) {
			t.Errorf("reserved %v: %v are, want %v", c.reserved, got, c.want)
		}
	}
	if _, err := New(m, Config{CPU: CPUConfig{Static: true, Reserved: idset.Of(7)}}); err == nil {
		t.Error("a CPU that the machine does not have is reserved")
	}
}

// A pod whose plugin is not connected must wait, whatever the policy: the topology manager alone would reject it for
// good.
func TestAwayPluginIsWaitedFor(t *testing.T) {
	m := machine.Machine{NodeFS: machine.Filesystem{Capacity: unit.GiB}}
	for n := range 2 {
		m.NUMANodes = append(m.NUMANodes, machine.NUMANode{
			ID:     machine.NUMAID(n),
			CPUs:   idset.Of(2*n, 2*n+1),
			Memory: unit.GiB,
		})
	}
	m = m.Complete()
	device := func(healthy bool) []Device { return []Device{{ID: "g0", Nodes: []machine.NUMAID{1}, Healthy: healthy}} }
	p := Pod{UID: "p", Containers: []Container{{Name: "c", Devices: []DeviceRequest{{Resource: "gpu", Count: 1}}}}}
	for policy := range PolicySingleNUMANode + 1 {
		for _, podScope := range []bool{false, true} {
			l, err := New(m, Config{Topology: TopologyConfig{Policy: policy, PodScope: podScope}})
			if err != nil {
				t.Fatal(err)
			}
			s := l.NewState()
			for _, c := range []struct {
				what   string
				plugin Plugin
				waits  bool
			}{
				{"gone", Plugin{Resource: "gpu", Devices: device(true), Gone: true}, true},
				{"no healthy device", Plugin{Resource: "gpu", Devices: device(false)}, true},
				{"too few", Plugin{Resource: "gpu", Devices: device(true)}, false},
			} {
				s.SetPlugin(c.plugin)
				asks := p
				if !c.waits {
					asks.Containers = []Container{{Name: "c", Devices: []DeviceRequest{{Resource: "gpu", Count: 2}}}}
				}
				if _, r := s.Offer(asks, nil); r == nil || r.Waiting != c.waits {
					t.Errorf("%v, pod scope %v, %s: %+v, want to wait: %v", policy, podScope, c.what, r, c.waits)
				}
			}
		}
	}
}
