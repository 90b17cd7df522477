package topology

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const gpu = "example.com/gpu"

// world is a node and its random changes.
type world struct {
	t       *testing.T
	rng     *rand.Rand
	machine machine.Machine
	config  numa.Config
	state   *numa.State
	encoder *Encoder
	next    int
}

func newWorld(t *testing.T, rng *rand.Rand) *world {
	m := someMachine(rng)
	w := &world{t: t, rng: rng, machine: m, config: numa.Config{
		CPU: numa.CPUConfig{
			Static: rng.IntN(8) > 0, ReservedCount: 1, FullPCPUsOnly: rng.IntN(4) == 0, StrictReservation: rng.IntN(2) == 0,
			DistributeNUMA: rng.IntN(4) == 0,
		},
		Topology: numa.TopologyConfig{Policy: numa.Policy(rng.IntN(4)), PodScope: rng.IntN(2) == 0,
			PreferClosest: rng.IntN(2) == 0},
	}}
	if rng.IntN(4) > 0 {
		w.config.Memory = numa.MemoryConfig{Static: true,
			Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{m.NUMANodes[0].ID: {0: unit.GiB}}}
	}
	if rng.IntN(2) == 0 {
		w.config.CPU.Reserved = idset.Of(m.CPUs.Lowest())
	}
	layout, err := numa.New(m, w.config)
	if err != nil {
		t.Fatal(err)
	}
	w.state = layout.NewState()
	if w.encoder, err = NewEncoder("node", m, w.config); err != nil {
		t.Fatal(err)
	}
	return w
}

// someMachine returns a machine of 1 to 8 nodes with sparse ids, some without CPUs, several caches, and different
// distances.
func someMachine(rng *rand.Rand) machine.Machine {
	m := machine.Machine{L3: map[machine.CacheID]idset.Set{}}
	m.NodeFS.Capacity = unit.GiB
	id, cpu := machine.NUMAID(0), 0
	for range 1 + rng.IntN(8) {
		n := machine.NUMANode{ID: id, Memory: unit.Bytes(2+rng.IntN(6)) * unit.GiB,
			HugePages: map[unit.Bytes]int64{2 * unit.MiB: 256}}
		if rng.IntN(6) > 0 || id == 0 {
			for range 2 + 2*rng.IntN(4) {
				n.CPUs = n.CPUs.Union(idset.Of(cpu))
				if cpu%2 == 1 {
					m.Cores = append(m.Cores, idset.Of(cpu-1, cpu))
				}
				cache := machine.CacheID(cpu / 4)
				m.L3[cache] = m.L3[cache].Union(idset.Of(cpu))
				cpu++
			}
		}
		m.NUMANodes = append(m.NUMANodes, n)
		id += machine.NUMAID(1 + rng.IntN(3))
	}
	for i := range m.NUMANodes {
		m.NUMANodes[i].Distances = map[machine.NUMAID]int{}
		for j, to := range m.NUMANodes {
			m.NUMANodes[i].Distances[to.ID] = 10 + 7*max(i-j, j-i)
		}
	}
	return m.Complete()
}

// step makes a pod arrive or end, or devices change.
func (w *world) step() {
	w.next++
	switch held := w.state.Assignments(); {
	case w.rng.IntN(6) == 0:
		w.state.SetPlugin(w.plugin())
	case len(held) > 0 && w.rng.IntN(3) == 0:
		w.state.Release(held[w.rng.IntN(len(held))].Pod)
	case len(held) > 0 && w.rng.IntN(8) == 0:
		w.state.Finish(held[w.rng.IntN(len(held))].Pod)
	default:
		if offer, refusal := w.state.Offer(w.pod(), nil); refusal == nil {
			if err := w.state.Commit(offer); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

func (w *world) plugin() numa.Plugin {
	p := numa.Plugin{Resource: gpu, Gone: w.rng.IntN(6) == 0, Prefers: w.rng.IntN(3) == 0}
	for i := range 8 {
		d := numa.Device{ID: fmt.Sprintf("d%d", w.rng.IntN(6)+i), Healthy: w.rng.IntN(5) > 0}
		for range w.rng.IntN(3) {
			d.Nodes = append(d.Nodes, w.machine.NUMANodes[w.rng.IntN(len(w.machine.NUMANodes))].ID)
		}
		p.Devices = append(p.Devices, d)
	}
	return p
}

func (w *world) pod() numa.Pod {
	p := numa.Pod{UID: fmt.Sprintf("pod-%d", w.next), Guaranteed: w.rng.IntN(4) > 0}
	container := func(name string) numa.Container {
		c := numa.Container{Name: name, CPU: unit.MilliCPU(w.rng.IntN(4)*1000 + 500*w.rng.IntN(2))}
		c.Memory = []numa.MemoryRequest{{Bytes: unit.Bytes(1+w.rng.IntN(2500)) * unit.MiB}}
		if w.rng.IntN(3) == 0 {
			c.Memory = append(c.Memory, numa.MemoryRequest{PageSize: 2 * unit.MiB, Bytes: 64 * unit.MiB})
		}
		if w.rng.IntN(3) == 0 {
			c.Devices = []numa.DeviceRequest{{Resource: gpu, Count: 1 + w.rng.IntN(3)}}
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

// TestEqualNodesShareALayout: nodes that differ only in pods and devices share a Layout.
func TestEqualNodesShareALayout(t *testing.T) {
	var d Decoder
	var nodes []*Node
	for _, seed := range []uint64{1, 1, 2} {
		w := newWorld(t, rand.New(rand.NewPCG(seed, seed)))
		for range len(nodes) {
			w.step()
		}
		n, err := d.Decode(w.encoder.Encode(w.state))
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	if nodes[0].Layout != nodes[1].Layout || nodes[0].Layout == nodes[2].Layout {
		t.Error("want one layout for the first two nodes, another for the third")
	}
	if _, err := d.Decode(&Object{}); !errors.Is(err, ErrForeign) {
		t.Errorf("an object without a state: %v", err)
	}
}

// TestSameOffers checks the promise of the package: after any history of a node, its decoded object gives the same
// offers and refusals as the node's state, also after further pods have arrived and ended on both sides.
func TestSameOffers(t *testing.T) {
	const (
		seed      = 11
		histories = 60
		steps     = 60
	)
	admitted, refused := 0, 0
	for i := range histories {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		w := newWorld(t, rng)
		var before *Node
		for step := range steps {
			w.step()
			if step%5 > 0 {
				continue
			}
			read := overTheWire(t, w.encoder.Encode(w.state))
			n, err := Decode(read, before)
			if err != nil {
				t.Fatalf("seed %d history %d step %d: %v", seed, i, step, err)
			}
			if before != nil && n.Layout != before.Layout {
				t.Fatalf("seed %d history %d: the layout was made again for the same machine", seed, i)
			}
			before = n
			if again := overTheWire(t, w.encoder.Encode(n.State)); !reflect.DeepEqual(again, read) {
				t.Fatalf("seed %d history %d step %d: decoded and encoded again, it is another object:\n%+v\n%+v", seed, i, step,
					read, again)
			}
			a, r := w.compare(n.State)
			admitted, refused = admitted+a, refused+r
		}
	}
	if admitted < 1000 || refused < 1000 {
		t.Errorf("compared %d offers and %d refusals: too few to mean something", admitted, refused)
	}
}

// compare asks both states for the same pods; some of the admitted ones stay.
func (w *world) compare(read *numa.State) (admitted, refused int) {
	ours := w.state.Fork()
	if !ours.SharedCPUs().Equal(read.SharedCPUs()) || !reflect.DeepEqual(ours.Free(), read.Free()) ||
		!reflect.DeepEqual(ours.FreeDevices(), read.FreeDevices()) {
		w.t.Fatalf("another state was read:\n%v %v\n%v %v", ours.Free(), ours.FreeDevices(), read.Free(), read.FreeDevices())
	}
	for range 8 {
		w.next++
		p := w.pod()
		offer, refusal := ours.Offer(p, nil)
		offerRead, refusalRead := read.Offer(p, nil)
		if (refusal == nil) != (refusalRead == nil) {
			w.t.Fatalf("pod %+v: refused as %v, after reading as %v", p, refusal, refusalRead)
		}
		if refusal != nil {
			refused++
			if refusal.Message() != refusalRead.Message() || refusal.Reason != refusalRead.Reason ||
				refusal.Waiting != refusalRead.Waiting {
				w.t.Fatalf("pod %+v: refused as %q, after reading as %q", p, refusal.Message(), refusalRead.Message())
			}
			continue
		}
		admitted++
		if !reflect.DeepEqual(offer.Assignment, offerRead.Assignment) ||
			!reflect.DeepEqual(offer.Question, offerRead.Question) {
			w.t.Fatalf("pod %+v: offered %+v, after reading %+v", p, offer.Assignment, offerRead.Assignment)
		}
		if w.rng.IntN(2) == 0 {
			if err := errors.Join(ours.Commit(offer), read.Commit(offerRead)); err != nil {
				w.t.Fatal(err)
			}
		}
		if held := ours.Assignments(); w.rng.IntN(4) == 0 && len(held) > 0 {
			pod := held[w.rng.IntN(len(held))].Pod
			ours.Release(pod)
			read.Release(pod)
		}
	}
	return admitted, refused
}

// overTheWire returns the object as the API server would return it.
func overTheWire(t *testing.T, o *Object) *Object {
	t.Helper()
	document, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	read := &Object{}
	if err := json.Unmarshal(document, read); err != nil {
		t.Fatal(err)
	}
	return read.DeepCopy()
}

// TestZones checks the part of the object that other readers use.
func TestZones(t *testing.T) {
	m := machine.Machine{
		NUMANodes: []machine.NUMANode{
			{ID: 0, CPUs: idset.Of(0, 1, 2, 3), Memory: 8 * unit.GiB, HugePages: map[unit.Bytes]int64{2 * unit.MiB: 512},
				Distances: map[machine.NUMAID]int{0: 10, 2: 21}},
			{ID: 2, CPUs: idset.Of(4, 5, 6, 7), Memory: 4 * unit.GiB, Distances: map[machine.NUMAID]int{0: 21, 2: 10}},
		},
		NodeFS: machine.Filesystem{Capacity: unit.GiB},
	}.Complete()
	c := numa.Config{
		CPU:      numa.CPUConfig{Static: true, Reserved: idset.Of(0), ReservedCount: 1},
		Memory:   numa.MemoryConfig{Static: true, Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: unit.GiB}}},
		Topology: numa.TopologyConfig{Policy: numa.PolicySingleNUMANode, PodScope: true},
	}
	layout, err := numa.New(m, c)
	if err != nil {
		t.Fatal(err)
	}
	s := layout.NewState()
	s.SetPlugin(numa.Plugin{Resource: gpu, Devices: []numa.Device{{ID: "a", Nodes: []machine.NUMAID{2}, Healthy: true},
		{ID: "b", Nodes: []machine.NUMAID{2}}}})
	offer, refusal := s.Offer(numa.Pod{UID: "p", Guaranteed: true, Containers: []numa.Container{{
		Name: "c", CPU: 2 * unit.CPU, Memory: []numa.MemoryRequest{{Bytes: unit.GiB}},
		Devices: []numa.DeviceRequest{{Resource: gpu, Count: 1}},
	}}}, nil)
	if refusal != nil {
		t.Fatal(refusal.Message())
	}
	if err := s.Commit(offer); err != nil {
		t.Fatal(err)
	}
	encoder, err := NewEncoder("n1", m, c)
	if err != nil {
		t.Fatal(err)
	}
	o := encoder.Encode(s)
	var lines []string
	for _, z := range o.Zones {
		line := z.Name + " " + z.Type
		for _, cost := range z.Costs {
			line += fmt.Sprintf(" %s:%d", cost.Name, cost.Value)
		}
		for _, r := range z.Resources {
			line += fmt.Sprintf(" %s=%s/%s/%s", r.Name, r.Capacity.String(), r.Allocatable.String(), r.Available.String())
		}
		lines = append(lines, line)
	}
	want := []string{
		"node-0 Node node-0:10 node-2:21 cpu=4/3/3 memory=8Gi/6Gi/6Gi hugepages-2Mi=1Gi/1Gi/1Gi",
		"node-2 Node node-0:21 node-2:10 cpu=4/4/2 memory=4Gi/4Gi/3Gi example.com/gpu=2/1/0",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
	if o.Name != "n1" || !slices.Equal(o.TopologyPolicies, []string{"SingleNUMANodePodLevel"}) {
		t.Errorf("name %s policies %v", o.Name, o.TopologyPolicies)
	}
	for name, want := range map[string]string{
		attributePolicy:  "single-numa-node",
		attributeScope:   "pod",
		attributeConfig:  `{"cpu":{"reserved":"0","reservedCount":1},"memory":{"0":{"memory":1073741824}}}`,
		attributePlugins: `[{"resource":"example.com/gpu","devices":[{"ids":["a"],"nodes":[2]},{"ids":["b"],"nodes":[2],"unhealthy":true}]}]`,
		attributePods: `[{"uid":"p","containers":[{"name":"c","nodes":[2],"preferred":true,"cpus":"4-5",` +
			`"memory":[{"nodes":[2],"bytes":1073741824}],"devices":{"example.com/gpu":["a"]}}]}]`,
	} {
		if got, _ := o.Attribute(name); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestBadObjects: every problem is in one error, and objects of other programs are recognized.
func TestBadObjects(t *testing.T) {
	w := newWorld(t, rand.New(rand.NewPCG(1, 1)))
	good := w.encoder.Encode(w.state)
	with := func(changes ...Attribute) *Object {
		o := good.DeepCopy()
		for _, c := range changes {
			for i := range o.Attributes {
				if o.Attributes[i].Name == c.Name {
					o.Attributes[i].Value = c.Value
				}
			}
		}
		return o
	}
	foreign := good.DeepCopy()
	foreign.Attributes = foreign.Attributes[:2]
	if _, err := Decode(foreign, nil); !errors.Is(err, ErrForeign) {
		t.Errorf("another's object: %v", err)
	}
	short := good.DeepCopy()
	short.Attributes = short.Attributes[:4]
	for _, c := range []struct {
		object *Object
		want   []string
	}{
		{short, []string{"node: plimsoll.dev/plugins: is missing; ", "plimsoll.dev/pods: is missing"}[1:]},
		{with(Attribute{attributePolicy, "best"}, Attribute{attributeScope, "node"}, Attribute{attributeConfig,
			`{"memory":{"0":{"memory":-1}}}`}), []string{
			`topologyManagerPolicy: "best": want one of none, best-effort, restricted, single-numa-node`,
			`topologyManagerScope: "node": want container or pod`,
			"plimsoll.dev/config: memory.0.memory: -1: want bytes of one of [hugepages-2Mi memory]",
		}},
		{with(Attribute{attributeMachine, `{"kind":"Machine"}`}), []string{"plimsoll.dev/machine: ", "apiVersion"}},
		{with(Attribute{attributeConfig, `{"colour":1}`}), []string{`plimsoll.dev/config: json: unknown field "colour"`}},
		{with(Attribute{attributeConfig, `{"cpu":{"options":["full"],"reserved":"9-"}}`}),
			[]string{"cpu.options: \"full\" is not an option", "cpu.reserved: list \"9-\""}},
		{with(Attribute{attributePods, `[] []`}), []string{"plimsoll.dev/pods: something follows"}},
		{with(Attribute{attributePods,
			`[{"uid":"","containers":[{"name":"c","cpus":"x","memory":[{"nodes":[0],"bytes":-1}]}]}]`}), []string{
			"a pod without a UID", `container c: cpus: list "x"`, "-1 bytes in pages of 0",
		}},
		{with(Attribute{attributePods,
			`[{"uid":"a","containers":[{"name":"c","memory":[{"nodes":[0],"bytes":9223372036854775807},{"nodes":[0],"bytes":1}]}]}]`}), []string{"all together below 2^63"}},
		{with(Attribute{attributePods, `[{"uid":"a","containers":[{"name":"c","cpus":"1000"}]}]`}),
			[]string{"CPUs 1000: offline, reserved or assigned"}},
		{with(Attribute{attributePlugins, `[{"resource":""},{"resource":""}]`}), []string{"a resource without a name",
			`resource "" is listed twice`}},
	} {
		_, err := Decode(c.object, nil)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q in it", err, want)
			}
		}
	}
}

// FuzzDecode: reading any object gives a usable value or an error.
func FuzzDecode(f *testing.F) {
	for i := range 8 {
		w := newWorld(&testing.T{}, rand.New(rand.NewPCG(3, uint64(i))))
		for range 20 {
			w.step()
		}
		var seed [6]string
		for k, a := range w.encoder.Encode(w.state).Attributes {
			seed[k] = a.Value
		}
		cost.Attack(f, seed[0], seed[1], seed[2], seed[3], seed[4], seed[5])
	}
	f.Fuzz(func(t *testing.T, policy, scope, machine, config, plugins, pods string) {
		defer cost.Spend(t, len(policy)+len(scope)+len(machine)+len(config)+len(plugins)+len(pods))()
		o := &Object{Attributes: []Attribute{
			{attributePolicy, policy},
			{attributeScope, scope},
			{attributeMachine, machine},
			{attributeConfig, config},
			{attributePlugins, plugins},
			{attributePods, pods},
		}}
		n, err := Decode(o, nil)
		if err != nil {
			return
		}
		offer, refusal := n.State.Offer(numa.Pod{UID: "new", Guaranteed: true, Containers: []numa.Container{{
			Name: "c", CPU: unit.CPU, Memory: []numa.MemoryRequest{{Bytes: unit.MiB}},
			Devices: []numa.DeviceRequest{{Resource: gpu, Count: 1}},
		}}}, nil)
		if refusal != nil {
			if refusal.Message() == "" {
				t.Error("refused without a word")
			}
		} else if err := n.State.Commit(offer); err != nil {
			t.Error(err)
		}
	})
}
