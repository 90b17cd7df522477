package kubeletstate

import (
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// The files that a kubelet 1.36 writes on a node with the default policies.
const (
	noCPUs   = `{"policyName":"none","defaultCpuSet":"","checksum":1353318690}`
	noMemory = `{"policyName":"None","machineState":{},"checksum":4236770233}`
)

// TestKubeletsFiles: files from a kubelet are read, and written byte for byte as it does.
func TestKubeletsFiles(t *testing.T) {
	cpus, err := ParseCPUs([]byte(noCPUs))
	if err != nil || cpus.Policy != CPUsNone || string(cpus.Marshal()) != noCPUs {
		t.Errorf("%+v %v, written %s", cpus, err, cpus.Marshal())
	}
	memory, err := ParseMemory([]byte(noMemory))
	if err != nil || memory.Policy != MemoryNone || string(memory.Marshal()) != noMemory {
		t.Errorf("%+v %v, written %s", memory, err, memory.Marshal())
	}
}

// TestWrongFiles: an error says what is wrong, and nothing of the file is used.
func TestWrongFiles(t *testing.T) {
	cpus := func(text string) error { _, err := ParseCPUs([]byte(text)); return err }
	memory := func(text string) error { _, err := ParseMemory([]byte(text)); return err }
	devices := func(text string) error { _, err := ParseDevices([]byte(text)); return err }
	allocations := func(text string) error { _, err := ParseAllocations([]byte(text)); return err }
	for _, c := range []struct {
		parse      func(string) error
		text, want string
	}{
		{cpus, "", "EOF"},
		{cpus, noCPUs[:30], "unexpected EOF"},
		{cpus, noCPUs + "{}", "something follows the checkpoint"},
		{cpus, strings.Replace(noCPUs, "1353", "1354", 1), "checksum 1354318690, the content has 1353318690"},
		{cpus, strings.Replace(noCPUs, `none`, `static`, 1), "checksum 1353318690, the content has"},
		{cpus, `{"policyName":"static","podEntries":{}}`, `unknown field "podEntries"`},
		{cpus, `{"entries":{"container-id":"1-2"}}`, "cannot unmarshal string"},
		{cpus, `{"defaultCpuSet":"3-1"}`, "defaultCpuSet: "},
		{cpus, `{"entries":{"uid":{"c":"1-"}}}`, `entries of pod "uid", container "c"`},
		{memory, strings.Replace(noMemory, "423", "433", 1), "checksum 4336770233, the content has 4236770233"},
		{memory, `{"entries":{"u":{"c":[{"numaAffinity":[-1],"type":"memory","size":1}]}}}`,
			"numaAffinity -1: want 0 to 1023"},
		{memory, `{"entries":{"u":{"c":[{"type":"memory","size":1}]}}}`, "numaAffinity is empty"},
		{memory, `{"entries":{"u":{"c":[{"numaAffinity":[0],"type":"hugepages-x","size":1}]}}}`,
			`type "hugepages-x": want memory or`},
		{memory, `{"entries":{"u":{"c":[{"numaAffinity":[0],"type":"memory","size":18446744073709551615}]}}}`,
			"want less than 2^63"},
		{devices, `{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{}},"Checksum":1}`, "checksum 1, the content has"},
		{devices, string(Devices{Given: []Given{{Pod: "u"}}}.Marshal()),
			"an entry without PodUID, ContainerName or ResourceName"},
		{allocations, `{"data":"{}","checksum":1}`, "checksum 1, the content has"},
		{allocations, `[]`, "cannot unmarshal array"},
	} {
		if err := c.parse(c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.text, err, c.want)
		}
	}
}

// TestMemoryIsCounted: memory of containers is subtracted from their NUMA nodes, beginning with the first. Huge pages
// are not ordinary memory.
func TestMemoryIsCounted(t *testing.T) {
	const gi = unit.Bytes(1 << 30)
	node := MemoryNode{Total: map[unit.Bytes]unit.Bytes{0: 10 * gi, gi: 2 * gi},
		Reserved: map[unit.Bytes]unit.Bytes{0: gi}}
	text := string(Memory{
		Policy: MemoryStatic, Nodes: map[machine.NUMAID]MemoryNode{0: node, 1: node},
		Assigned: map[string]map[string][]numa.Block{"u": {"c": {
			{Nodes: []machine.NUMAID{1, 0}, Bytes: 9 * gi}, {Nodes: []machine.NUMAID{1}, PageSize: gi, Bytes: gi},
		}}},
	}.Marshal())
	for _, want := range []string{
		`"0":{"numberOfAssignments":1,"memoryMap":{"hugepages-1Gi":{"total":2147483648,"systemReserved":0,"allocatable":2147483648,"reserved":0,"free":2147483648}`,
		`"memory":{"total":10737418240,"systemReserved":1073741824,"allocatable":7516192768,"reserved":7516192768,"free":0}},"cells":[0,1]}`,
		`"memory":{"total":10737418240,"systemReserved":1073741824,"allocatable":7516192768,"reserved":2147483648,"free":5368709120}},"cells":[1]}`,
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%s lacks\n%s", text, want)
		}
	}
}

// FuzzParse: every file is read or refused, and what was read is written so that it is read again.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		noCPUs, noMemory, `{"policyName":"static","defaultCpuSet":"0","entries":{"u":{"c":"1-3"}}}`,
		`{"entries":{"u":{"c":[{"numaAffinity":[0,1],"type":"hugepages-2Mi","size":1}]}}}`,
		string(Devices{Given: []Given{{Pod: "u", Container: "c", Resource: "r",
			IDs: map[int64][]string{-1: {"d"}}}}}.Marshal()),
		string(Allocations{"u": {}}.Marshal()),
	} {
		cost.Attack(f, []byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		defer cost.Spend(t, len(text))()
		if read, err := ParseCPUs(text); err == nil {
			if _, err := ParseCPUs(read.Marshal()); err != nil {
				t.Errorf("CPUs: %v", err)
			}
		}
		if read, err := ParseMemory(text); err == nil {
			if _, err := ParseMemory(read.Marshal()); err != nil {
				t.Errorf("memory: %v", err)
			}
		}
		if read, err := ParseDevices(text); err == nil {
			if _, err := ParseDevices(read.Marshal()); err != nil {
				t.Errorf("devices: %v", err)
			}
		}
		if read, err := ParseAllocations(text); err == nil {
			if _, err := ParseAllocations(read.Marshal()); err != nil {
				t.Errorf("allocations: %v", err)
			}
		}
	})
}

// TestRoundTrip: a file that was written is read as the same value.
func TestRoundTrip(t *testing.T) {
	in := CPUs{Policy: CPUsStatic, Shared: idset.Of(0, 3),
		Exclusive: map[string]map[string]idset.Set{"u": {"c": idset.Of(1, 2)}}}
	out, err := ParseCPUs(in.Marshal())
	if err != nil || out.Exclusive["u"]["c"].String() != "1-2" || out.Shared.String() != "0,3" {
		t.Errorf("%+v, %v", out, err)
	}
}
