package kubeletstate

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubelethash"
)

// Policies of the memory manager.
const (
	MemoryNone   = "None"
	MemoryStatic = "Static"
)

// Memory is the memory manager's checkpoint.
type Memory struct {
	Policy   string                             // of the kubelet's configuration
	Nodes    map[machine.NUMAID]MemoryNode      // empty without the policy Static
	Assigned map[string]map[string][]numa.Block // by pod UID and container
}

// MemoryNode is what a NUMA node has, by page size (0: ordinary memory).
type MemoryNode struct {
	Total, Reserved map[unit.Bytes]unit.Bytes
}

type memoryFile struct {
	PolicyName   string            `json:"policyName"`
	MachineState nodeMap           `json:"machineState"`
	Entries      containerMemories `json:"entries,omitempty"`
	Checksum     checksum          `json:"checksum"`
}

type (
	nodeMap           map[int]*nodeState
	containerMemories map[string]map[string][]block
	resourceName      string
)

type nodeState struct {
	NumberOfAssignments int                           `json:"numberOfAssignments"`
	MemoryMap           map[resourceName]*memoryTable `json:"memoryMap"`
	Cells               []int                         `json:"cells"`
}

type memoryTable struct {
	TotalMemSize   uint64 `json:"total"`
	SystemReserved uint64 `json:"systemReserved"`
	Allocatable    uint64 `json:"allocatable"`
	Reserved       uint64 `json:"reserved"`
	Free           uint64 `json:"free"`
}

type block struct {
	NUMAAffinity []int        `json:"numaAffinity"`
	Type         resourceName `json:"type"`
	Size         uint64       `json:"size"`
}

var memoryNames = map[reflect.Type]string{
	reflect.TypeFor[memoryFile]():        "state.MemoryManagerCheckpoint",
	reflect.TypeFor[nodeMap]():           "state.NUMANodeMap",
	reflect.TypeFor[nodeState]():         "state.NUMANodeState",
	reflect.TypeFor[memoryTable]():       "state.MemoryTable",
	reflect.TypeFor[containerMemories](): "state.ContainerMemoryAssignments",
	reflect.TypeFor[block]():             "state.Block",
	reflect.TypeFor[resourceName]():      "v1.ResourceName",
	reflect.TypeFor[checksum]():          "checksum.Checksum",
}

// ParseMemory reads the file memory_manager_state. It does not read what the NUMA nodes have: the caller knows that
// from the machine.
func ParseMemory(text []byte) (Memory, error) {
	f := memoryFile{MachineState: nodeMap{}, Entries: containerMemories{}}
	if err := decode(text, &f); err != nil {
		return Memory{}, err
	}
	has := f.Checksum
	f.Checksum = 0
	if has != 0 { // as for CPUs
		if err := verify(has, &f, memoryNames); err != nil {
			return Memory{}, err
		}
	}
	out := Memory{Policy: f.PolicyName, Assigned: map[string]map[string][]numa.Block{}}
	for pod, containers := range f.Entries {
		out.Assigned[pod] = map[string][]numa.Block{}
		for container, blocks := range containers {
			for _, b := range blocks {
				read, err := b.read()
				if err != nil {
					return Memory{}, fmt.Errorf("entries of pod %.80q, container %.80q: %w", pod, container, err)
				}
				out.Assigned[pod][container] = append(out.Assigned[pod][container], read)
			}
		}
	}
	return out, nil
}

const ordinary resourceName = "memory"

const hugePagesPrefix = "hugepages-"

func (b block) read() (numa.Block, error) {
	out := numa.Block{Bytes: unit.Bytes(b.Size)}
	if out.Bytes < 0 {
		return out, fmt.Errorf("size %d: want less than 2^63", b.Size)
	}
	if len(b.NUMAAffinity) == 0 {
		return out, fmt.Errorf("numaAffinity is empty: want at least one NUMA node")
	}
	for _, id := range b.NUMAAffinity {
		if id < 0 || id > int(machine.NUMAIDMax) {
			return out, fmt.Errorf("numaAffinity %d: want 0 to %d", id, machine.NUMAIDMax)
		}
		out.Nodes = append(out.Nodes, machine.NUMAID(id))
	}
	if b.Type == ordinary {
		return out, nil
	}
	size, isHuge := strings.CutPrefix(string(b.Type), hugePagesPrefix)
	q, err := resource.ParseQuantity(size)
	if !isHuge || err != nil || q.Value() <= 0 {
		return out, fmt.Errorf("type %.80q: want memory or hugepages-<size>", b.Type)
	}
	out.PageSize = unit.Bytes(q.Value())
	return out, nil
}

func typeOf(pageSize unit.Bytes) resourceName {
	if pageSize == 0 {
		return ordinary
	}
	return resourceName(hugePagesPrefix + resource.NewQuantity(int64(pageSize), resource.BinarySI).String())
}

// Marshal returns the file memory_manager_state.
func (m Memory) Marshal() []byte {
	f := memoryFile{PolicyName: m.Policy, MachineState: nodeMap{}, Entries: containerMemories{}}
	for id, n := range m.Nodes {
		f.MachineState[int(id)] = n.empty(int(id))
	}
	for pod, containers := range m.Assigned {
		f.Entries[pod] = map[string][]block{}
		for container, blocks := range containers {
			for _, b := range blocks {
				written := block{Type: typeOf(b.PageSize), Size: uint64(b.Bytes)}
				for _, id := range b.Nodes {
					written.NUMAAffinity = append(written.NUMAAffinity, int(id))
				}
				slices.Sort(written.NUMAAffinity)
				f.Entries[pod][container] = append(f.Entries[pod][container], written)
				f.MachineState.take(written)
			}
		}
	}
	f.Checksum = checksum(kubelethash.Sum(&f, memoryNames))
	return encode(f)
}

// empty returns the state of a NUMA node while nothing of it is assigned.
func (n MemoryNode) empty(id int) *nodeState {
	out := &nodeState{MemoryMap: map[resourceName]*memoryTable{}, Cells: []int{id}}
	huge := uint64(0)
	for size, total := range n.Total {
		out.MemoryMap[typeOf(size)] = &memoryTable{
			TotalMemSize:   uint64(total),
			SystemReserved: uint64(n.Reserved[size]),
			Allocatable:    uint64(total - n.Reserved[size]),
		}
		if size != 0 {
			huge += uint64(total)
		}
	}
	if t := out.MemoryMap[ordinary]; t != nil {
		t.Allocatable -= huge // huge pages are part of the node's memory
	}
	for _, t := range out.MemoryMap {
		t.Free = t.Allocatable
	}
	return out
}

// take counts a block as assigned, from its first NUMA node on, as upstream's memory manager does when it checks the
// file.
func (m nodeMap) take(b block) {
	left := b.Size
	for _, id := range b.NUMAAffinity {
		n := m[id]
		if n == nil || n.MemoryMap[b.Type] == nil {
			continue
		}
		n.NumberOfAssignments++
		n.Cells = b.NUMAAffinity
		t := n.MemoryMap[b.Type]
		part := min(left, t.Free)
		t.Reserved += part
		t.Free -= part
		left -= part
	}
}
