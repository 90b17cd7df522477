package machinefile

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
	"github.com/plimsoll-dev/plimsoll/test/scenario"
)

// TestFiles runs testdata: "decode" reads a file and prints it in YAML, or with an argument in JSON or as a table, or
// prints its problems. The output must be read back as the same machine, and be written the same again.
func TestFiles(t *testing.T) {
	scenario.Play(t, "testdata", "decode", func(t *testing.T, d *datadriven.TestData) string {
		f, err := Decode([]byte(d.Input))
		if err != nil {
			return "error: " + err.Error() + "\n"
		}
		checkRoundTrip(t, f)
		switch {
		case d.HasArg("json"):
			return string(f.JSON())
		case d.HasArg("table"):
			return string(f.Table())
		}
		return string(f.YAML())
	})
}

func checkRoundTrip(t *testing.T, f File) {
	t.Helper()
	for name, write := range map[string]func(File) []byte{"YAML": File.YAML, "JSON": File.JSON} {
		text := write(f)
		again, err := Decode(text)
		if err != nil {
			t.Fatalf("%s does not read back: %v\n%s", name, err, text)
		}
		if !reflect.DeepEqual(again, f) {
			t.Fatalf("%s came back as another machine:\n%+v\n%+v\n%s", name, f, again, text)
		}
		if second := write(again); string(second) != string(text) {
			t.Fatalf("%s was written in two ways:\n%s\n%s", name, text, second)
		}
	}
}

// TestRandomMachines writes and reads random complete machines.
func TestRandomMachines(t *testing.T) {
	const seed = 1
	random := rand.New(rand.NewPCG(seed, 0))
	for n := range 500 {
		m := randomMachine(random).Complete()
		if err := m.Check(); err != nil {
			t.Fatalf("seed %d, machine %d: %v", seed, n, err)
		}
		checkRoundTrip(t, File{Name: []string{"", "a", "123", "no", "ä \"x\"\n"}[random.IntN(5)], Machine: m})
	}
}

// randomMachine returns a random machine that is valid but need not be realistic.
func randomMachine(random *rand.Rand) machine.Machine {
	var m machine.Machine
	cpus := random.Perm(64)
	take := func(n int) (s idset.Set) {
		n = min(n, len(cpus))
		s = idset.Of(cpus[:n]...)
		cpus = cpus[n:]
		return s
	}
	ids := random.Perm(40)[:1+random.IntN(6)]
	for i, id := range ids {
		n := machine.NUMANode{ID: machine.NUMAID(id), Memory: unit.Bytes(random.Int64N(1 << 40))}
		if i == 0 || random.IntN(4) > 0 {
			n.CPUs = take(2 * (1 + random.IntN(6)))
		}
		if i > 0 && random.IntN(4) == 0 {
			n.Memory = 0
		}
		if random.IntN(2) == 0 {
			n.Installed = n.Memory + unit.GiB
		}
		if random.IntN(2) == 0 {
			n.HugePages = map[unit.Bytes]int64{2 * unit.MiB: random.Int64N(3), unit.GiB: random.Int64N(2)}
		}
		m.NUMANodes = append(m.NUMANodes, n)
	}
	m.Memory = unit.Bytes(random.Int64N(2)) * unit.GiB
	if random.IntN(2) == 0 {
		for i := range m.NUMANodes {
			m.NUMANodes[i].Distances = map[machine.NUMAID]int{}
			for _, id := range ids {
				m.NUMANodes[i].Distances[machine.NUMAID(id)] = 10 + random.IntN(200)
			}
		}
	}
	m.Offline = take(random.IntN(3))
	all := m.Complete().CPUs
	m.Isolated = halves(random, all)[0]
	if random.IntN(2) == 0 {
		m.Cores = halves(random, all)
		m.Sockets = map[machine.SocketID]idset.Set{machine.SocketID(random.IntN(3)): all}
	}
	if random.IntN(3) == 0 {
		m.Sockets = map[machine.SocketID]idset.Set{36: all}
		m.Dies = halves(random, all)
		m.L3 = map[machine.CacheID]idset.Set{3: m.Dies[0]}
		if len(m.Dies) > 1 {
			m.L3[70] = m.Dies[1]
		}
	}
	m.Swap, m.PIDs = unit.Bytes(random.Int64N(2))*unit.TiB, random.Int64N(2)
	m.NodeFS = machine.Filesystem{Capacity: 1 + unit.Bytes(random.Int64N(1<<40)), Inodes: random.Int64N(2)}
	if random.IntN(2) == 0 {
		m.ImageFS = machine.Filesystem{Capacity: unit.GiB}
	}
	near := []machine.NUMAID{m.NUMANodes[0].ID}
	if random.IntN(2) == 0 {
		m.Devices = map[string]map[string][]machine.NUMAID{"example.com/gpu": {"10": near, "no": nil, "a, b,  c: {d}": near,
			"00:1": nil}, "123": {}}
		m.PCIDevices = []machine.PCIDevice{{Address: "0000:3b:00.0", Class: 0x020000, Vendor: 0x15b3, Device: 0x1017,
			NUMANode: near[0]}}
	}
	return m
}

// halves splits a set into two non-empty ones; a set of one CPU is not split.
func halves(random *rand.Rand, s idset.Set) []idset.Set {
	var first idset.Set
	for id := range s.All() {
		if first.IsEmpty() || random.IntN(2) == 0 {
			first = first.Union(idset.Of(id))
		}
	}
	if second := s.Minus(first); !second.IsEmpty() {
		return []idset.Set{first, second}
	}
	return []idset.Set{first}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "machine.yaml")
	if err := os.WriteFile(file, []byte("kind: Machine\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "machine.yaml: ", dir: "want a file",
		filepath.Join(dir, "gone"): "no such file"} {
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	f,
		err := Read(strings.NewReader("{apiVersion: plimsoll.dev/v1alpha1, kind: Machine, metadata: {name: a}, spec: "+
		"{numaNodes: [{id: 0, cpus: 0, memory: 1Gi}], filesystems: {nodefs: {capacity: 1Gi}}}}"), "x")
	if err != nil || f.Name != "a" {
		t.Errorf("%+v, %v", f, err)
	}
	if _, err := Read(strings.NewReader(strings.Repeat(" ", sizeMax+1)), "x"); err == nil ||
		!strings.Contains(err.Error(), "x: want at most") {
		t.Errorf("too large: %v", err)
	}
}

// TestManyNodes reads and writes a machine of the size of a GB200 rack's node: 34 NUMA nodes.
func TestManyNodes(t *testing.T) {
	m := machine.Machine{NodeFS: machine.Filesystem{Capacity: unit.TiB}}
	for id := range 34 {
		n := machine.NUMANode{ID: machine.NUMAID(id)}
		if id < 2 {
			n.Memory, n.CPUs = 480*unit.GiB, idset.Of(72*id, 72*id+1)
		}
		m.NUMANodes = append(m.NUMANodes, n)
	}
	f := File{Name: "gb200", Machine: m.Complete()}
	checkRoundTrip(t, f)
	for line := range strings.Lines(string(f.YAML())) {
		if len(line) > lineMax+2 {
			t.Errorf("long line: %s", line)
		}
	}
}

func FuzzDecode(f *testing.F) {
	files, err := filepath.Glob("testdata/*")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, part := range strings.Split(string(text), "decode") {
			input, _, _ := strings.Cut(part, "\n----")
			if strings.Contains(file, "good") {
				cost.Attack(f, input)
			} else {
				f.Add(input)
			}
		}
	}
	f.Add(cost.Aliases("apiVersion: plimsoll.dev/v1alpha1\nkind: Machine\n"))
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		got, err := Decode([]byte(text))
		if err != nil {
			if !reflect.DeepEqual(got, File{}) {
				t.Errorf("an error and a machine: %v, %+v", err, got)
			}
			return
		}
		if err := got.Machine.Check(); err != nil {
			t.Errorf("%q: decoded and impossible: %v", text, err)
		}
		checkRoundTrip(t, got)
	})
}
