package memory

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Capacity is the memory that containers can own, by kind and NUMA node. A kind is pages of one size; it is known by
// its place among the sizes of the machine, a node by its place in the order of ids. It does not change.
type Capacity struct {
	nodes       int
	Kinds       []unit.Bytes // page sizes of memory, 0 (ordinary memory) first
	allocatable []int64      // by kind*nodes+place: what containers can own
}

// NewCapacity works out what containers can own: what a node has, without what is reserved (in bytes, by page size)
// and, of ordinary memory, what huge pages took.
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

// Total returns what containers can own of a kind, by place; zeros for a kind that this machine does not have.
func (c *Capacity) Total(kind int) []int64 { return c.orZero(c.allocatable, kind) }

// orZero returns the amounts by place of one kind; zeros for a kind that this machine does not have.
func (c *Capacity) orZero(amounts []int64, kind int) []int64 {
	n := c.nodes
	if kind < 0 {
		return make([]int64, n)
	}
	return amounts[kind*n : (kind+1)*n]
}

// Kind returns the place of a page size in kinds; -1 when this machine has no such pages.
func (c *Capacity) Kind(size unit.Bytes) int { return slices.Index(c.Kinds, size) }

// Width is how many nodes an empty machine would need for all of asked: all nodes when it never could.
func (c *Capacity) Width(asked []Amount) int {
	n := c.nodes
	f := &hints.Family{Within: bitset.Full(n), Must: bitset.New(n)}
	for _, a := range asked {
		f.Loads = append(f.Loads, hints.Load{Weight: c.Total(a.Kind), Need: a.Bytes})
	}
	return f.Width(n, n)
}

// OnNode returns how much memory in pages of that size a node has; size 0 is ordinary memory, huge pages not yet
// subtracted.
func OnNode(n machine.NUMANode, size unit.Bytes) unit.Bytes {
	if size == 0 {
		return n.Memory
	}
	return size * unit.Bytes(n.HugePages[size])
}
