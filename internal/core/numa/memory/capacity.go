package memory

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Capacity is the memory that can be assigned to containers, by kind and NUMA node. A kind is pages of one size. It is
// identified by its index in Kinds, and a node by its place, its index in the order of node ids. A Capacity does not
// change.
type Capacity struct {
	nodes       int          // number of NUMA nodes
	Kinds       []unit.Bytes // page sizes; 0 (ordinary memory) comes first
	allocatable []int64      // by kind*nodes+place
}

// NewCapacity computes what can be assigned: what each node has, minus what is reserved (in bytes, by page size), and
// for ordinary memory minus all huge pages.
func NewCapacity(m machine.Machine, reserved map[machine.NUMAID]map[unit.Bytes]unit.Bytes) *Capacity {
	c := &Capacity{nodes: len(m.NUMANodes)}
	sizes := map[unit.Bytes]bool{0: true}
	for _, n := range m.NUMANodes {
		for size := range n.HugePages {
			sizes[size] = true
		}
	}
	c.Kinds = slices.Sorted(maps.Keys(sizes))
	for _, size := range c.Kinds {
		for _, n := range m.NUMANodes {
			free := OnNode(n, size) - reserved[n.ID][size]
			if size == 0 {
				for huge := range n.HugePages {
					free -= OnNode(n, huge)
				}
			}
			c.allocatable = append(c.allocatable, int64(max(0, free)))
		}
	}
	return c
}

// Total returns how much of a kind can be assigned, by place; zeros for a kind that this machine does not have.
func (c *Capacity) Total(kind int) []int64 { return c.orZero(c.allocatable, kind) }

// orZero returns the amounts of one kind, by place; zeros for a kind that this machine does not have.
func (c *Capacity) orZero(amounts []int64, kind int) []int64 {
	n := c.nodes
	if kind < 0 {
		return make([]int64, n)
	}
	return amounts[kind*n : (kind+1)*n]
}

// Kind returns the index of a page size in Kinds; -1 when this machine has no such pages.
func (c *Capacity) Kind(size unit.Bytes) int { return slices.Index(c.Kinds, size) }

// Width is how many nodes are needed for all of asked on an empty machine; all nodes if they are not enough.
func (c *Capacity) Width(asked []Amount) int {
	n := c.nodes
	f := &hints.Family{Within: bitset.Full(n), Must: bitset.New(n)}
	for _, a := range asked {
		f.Loads = append(f.Loads, hints.Load{Weight: c.Total(a.Kind), Need: a.Bytes})
	}
	return f.Width(n, n)
}

// OnNode returns how much memory with that page size a node has. Size 0 is ordinary memory, from which huge pages are
// not subtracted.
func OnNode(n machine.NUMANode, size unit.Bytes) unit.Bytes {
	if size == 0 {
		return n.Memory
	}
	return size * unit.Bytes(n.HugePages[size])
}
