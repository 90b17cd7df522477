package machine

import (
	"maps"
	"reflect"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// odd is a machine with a node without CPUs, a node without memory, and ids with gaps, as a description would state it.
func odd() Machine {
	return Machine{
		NUMANodes: []NUMANode{
			{ID: 4, CPUs: idset.Of(4, 5, 6, 7)},
			{
				ID:        0,
				CPUs:      idset.Of(0, 1, 2, 3),
				Memory:    4 * unit.GiB,
				Installed: 5 * unit.GiB,
				HugePages: map[unit.Bytes]int64{2 * unit.MiB: 512},
			},
			{ID: 2, Memory: 8 * unit.GiB, HugePages: map[unit.Bytes]int64{2 * unit.MiB: 8}},
		},
		Cores:     []idset.Set{idset.Of(4, 6), idset.Of(0, 2)},
		HugePages: map[unit.Bytes]int64{unit.GiB: 0},
		NodeFS:    Filesystem{Capacity: unit.GiB},
	}
}

func TestComplete(t *testing.T) {
	m := odd().Complete()
	if err := m.Check(); err != nil {
		t.Fatal(err)
	}
	var cores []string
	for _, c := range m.Cores {
		cores = append(cores, c.String())
	}
	if got := strings.Join(cores, " "); got != "0,2 1 3 4,6 5 7" {
		t.Errorf("cores %s", got)
	}
	if m.CPUs.String() != "0-7" || m.Memory != 12*unit.GiB ||
		!maps.Equal(m.HugePages, map[unit.Bytes]int64{unit.GiB: 0, 2 * unit.MiB: 520}) {
		t.Errorf("totals: CPUs %v, memory %v, huge pages %v", m.CPUs, m.Memory, m.HugePages)
	}
	if len(m.Sockets) != 2 || m.Sockets[4].String() != "4-7" || m.L3[0].String() != "0-3" || len(m.Dies) != 2 ||
		m.ImageFS != m.NodeFS {
		t.Errorf("sockets %v, L3 %v, dies %v", m.Sockets, m.L3, m.Dies)
	}
	if n, ok := m.NUMANode(4); !ok || n.Distances[2] != 20 || n.Distances[4] != 10 || n.Distances[0] != 20 {
		t.Errorf("node 4: %v, %v", n, ok)
	}
	if _, ok := m.NUMANode(3); ok {
		t.Error("there is a node 3")
	}
	if again := m.Complete(); !reflect.DeepEqual(again, m) {
		t.Errorf("completed twice:\n%+v\n%+v", m, again)
	}
}

func TestCompleteWithoutNUMA(t *testing.T) {
	m := Machine{CPUs: idset.Of(0, 1), Memory: unit.GiB, NodeFS: Filesystem{Capacity: unit.GiB},
		HugePages: map[unit.Bytes]int64{2 * unit.MiB: 3, unit.GiB: 0}}.Complete()
	if err := m.Check(); err != nil {
		t.Error(err)
	}
	want := NUMANode{
		CPUs:      idset.Of(0, 1),
		Memory:    unit.GiB,
		HugePages: map[unit.Bytes]int64{2 * unit.MiB: 3},
		Distances: map[NUMAID]int{0: 10},
	}
	if len(m.NUMANodes) != 1 || !reflect.DeepEqual(m.NUMANodes[0], want) {
		t.Errorf("nodes %+v", m.NUMANodes)
	}
}

func TestInstalled(t *testing.T) {
	m := odd().Complete()
	i := m.Installed()
	if i.Memory != 13*unit.GiB || i.NUMANodes[0].Memory != 5*unit.GiB || i.NUMANodes[0].Installed != 0 ||
		i.NUMANodes[1].Memory != 8*unit.GiB {
		t.Errorf("installed: %v, nodes %+v", i.Memory, i.NUMANodes)
	}
	if m.NUMANodes[0].Memory != 4*unit.GiB {
		t.Error("the original was changed")
	}
}

func TestCheckReportsEverything(t *testing.T) {
	for name, c := range map[string]struct {
		damage func(m *Machine)
		want   []string
	}{
		"nothing at all": {func(m *Machine) {
			*m = Machine{HugePages: map[unit.Bytes]int64{3 * unit.MiB: -1}, Swap: -1, PIDs: -1}
		},
			[]string{"cpus: none", "memory: 0", "hugepages: 3Mi", "hugepages 3Mi: -1", "swap: -1", "pids: -1", "nodefs: 0",
				"imagefs: 0", "numa nodes: none"}},
		"sets": {func(m *Machine) { m.Offline, m.Isolated = idset.Of(3, 8), idset.Of(8, 9) },
			[]string{"offline: 3: is online too", "isolated: 9: is no CPU"}},
		"nodes": {func(m *Machine) {
			m.NUMANodes[0].CPUs, m.NUMANodes[0].Memory, m.NUMANodes[0].Installed = idset.Of(0, 1, 4, 9), -1, -2
			m.NUMANodes[1].HugePages = nil
		}, []string{"numa node 0: 9: is no online CPU", "numa node 4: 4: is in another numa node",
			"numa nodes: 2-3: is in none", "numa node 0 memory: -1", "numa node 0 installed: -2",
			"hugepages 2Mi: 520: the nodes have 512"}},
		"ids": {func(m *Machine) { m.NUMANodes[0].ID, m.NUMANodes[1].ID, m.NUMANodes[2].ID = 1024, 7, 7 },
			[]string{"numa node 1024: 1024: want an id of 0 to 1023", "numa node 7: 7: want nodes in the order",
				"numa node 7: 7: is there twice"}},
		"distances": {func(m *Machine) { m.NUMANodes[0].Distances = map[NUMAID]int{0: 10, 2: 9, 3: 256} },
			[]string{"numa node 0 distances to 2: 9: want 10 to 255", "numa node 0 distances to 3: 256",
				"distances: 3: there is no such node", "distances: 4: the distance to this node is missing"}},
		"topology": {func(m *Machine) {
			m.Sockets = map[SocketID]idset.Set{-1: idset.Of(0, 1), 1: {}, 2: idset.Of(2, 3, 4, 5, 6, 7)}
			m.L3 = map[CacheID]idset.Set{0: m.CPUs, 1: idset.Of(7)}
			m.Cores = m.Cores[1:]
		}, []string{"socket -1: -1: want an id", "socket 1: none: want CPUs", "l3 group 1: 7: is in another l3 group too",
			"cores: 0,2: is in none", "die: 0-3: is partly in socket -1, partly not"}},
		"devices": {func(m *Machine) {
			m.Devices = map[string]map[string][]NUMAID{"": {"a": {2, 2}}, "example.com/gpu": {"g": {9}}}
			m.PCIDevices = []PCIDevice{{Address: "0000:00:01.0", NUMANode: 1, Vendor: 1 << 16}, {Address: "0000:00:00.0"}}
		}, []string{`devices: ""`, "device a of : 2: want numa nodes in order",
			"device g of example.com/gpu: 9: there is no such", "pci device 0000:00:01.0: 1: there is no such",
			"class 0x0, vendor 0x10000", "order of their addresses"}},
	} {
		m := odd().Complete()
		c.damage(&m)
		err := m.Check()
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: want %q in:\n%v", name, want, err)
			}
		}
	}
}
