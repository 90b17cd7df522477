// Package memory records how much memory of each NUMA node is assigned to containers, and picks the nodes for more. It
// does what the static policy of the kubelet's memory manager does.
//
// A Capacity is how much memory can be assigned, and a Table how much is assigned, and where. Families returns the sets
// of nodes that have enough memory for a request; package hints finds the best hint among them. Pick chooses the nodes
// when the hint is known.
//
// It does not know pods: package numa knows which block belongs to which pod.
package memory

import (
	"encoding/binary"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
)

// Table says how much memory is assigned. It is the sum of the assigned blocks and nothing else: the same blocks give
// the same Table, in whatever order they came.
//
// A block is on one node or on a group of nodes. Groups do not overlap. A node has either blocks of its own or belongs
// to a group. It is not known on which nodes of a group the bytes are, so they are counted as if they filled its nodes
// in order.
type Table struct {
	blocks []int   // by place: number of blocks on that node alone
	own    []int64 // by kind*nodes+place: bytes in those blocks
	groups []group // sorted by nodes; a group's bytes are replaced, not changed, because Forks share them
	free   []int64 // by kind*nodes+place: what is left; countFree computes it from the rest
}

// group is a set of nodes that memory blocks share.
type group struct {
	nodes  bitset.Set
	blocks int     // number of blocks; always above 0
	bytes  []int64 // by kind
}

// Unused returns the Table of a machine on which no memory is assigned.
func (c *Capacity) Unused() Table {
	n := c.nodes
	m := Table{blocks: make([]int, n), own: make([]int64, n*len(c.Kinds)), free: make([]int64, n*len(c.Kinds))}
	m.countFree(c)
	return m
}

// Fork returns an independent copy of m. The bytes of a group are copied when they change.
func (m *Table) Fork() Table {
	return Table{
		blocks: slices.Clone(m.blocks),
		own:    slices.Clone(m.own),
		groups: slices.Clone(m.groups),
		free:   slices.Clone(m.free),
	}
}

// Change adds that many blocks of a kind, with bytes in all. Negative numbers remove blocks.
func (m *Table) Change(c *Capacity, nodes bitset.Set, kind, blocks int, bytes int64) {
	if nodes.Count() == 1 {
		for i := range nodes.All {
			m.blocks[i] += blocks
			m.own[kind*len(m.blocks)+i] += bytes
		}
	} else {
		m.changeGroup(nodes, len(c.Kinds), kind, blocks, bytes)
	}
	m.countFree(c)
}

func (m *Table) changeGroup(nodes bitset.Set, kinds, kind, blocks int, bytes int64) {
	byNodes := func(g group, nodes bitset.Set) int { return g.nodes.Compare(nodes) }
	i, found := slices.BinarySearchFunc(m.groups, nodes, byNodes)
	if !found {
		m.groups = slices.Insert(m.groups, i, group{nodes: nodes, bytes: make([]int64, kinds)})
	}
	g := &m.groups[i]
	g.blocks += blocks
	g.bytes = slices.Clone(g.bytes)
	g.bytes[kind] += bytes
	if g.blocks == 0 {
		m.groups = slices.Delete(m.groups, i, i+1)
	}
}

// countFree computes free. A node is without free memory if more is assigned than it has, because the machine or its
// configuration changed while pods ran.
func (m *Table) countFree(c *Capacity) {
	n := len(m.blocks)
	for k := range c.Kinds {
		for i := range n {
			m.free[k*n+i] = max(0, c.allocatable[k*n+i]-m.own[k*n+i])
		}
	}
	for _, g := range m.groups {
		for k, bytes := range g.bytes {
			for i := range g.nodes.All {
				part := min(bytes, m.free[k*n+i])
				m.free[k*n+i] -= part
				bytes -= part
			}
		}
	}
}

// inGroup reports whether a node belongs to a group: it has no blocks of its own, and a group includes it.
func (m *Table) inGroup(node int) bool {
	if m.blocks[node] > 0 {
		return false
	}
	for i := range m.groups {
		if m.groups[i].nodes.Has(node) {
			return true
		}
	}
	return false
}

// uses reports whether a node has blocks of its own or belongs to a group.
func (m *Table) uses(node int) bool { return m.blocks[node] > 0 || m.inGroup(node) }

// Amount is a request of memory of one kind.
type Amount struct {
	Kind  int
	Bytes int64
}

// Families returns the sets of nodes that have enough for all of asked: single nodes, sets of nodes without blocks, and
// each group as a whole. Memory that the pod can use again counts only for exactly the nodes that it is on.
func (m *Table) Families(c *Capacity, asked []Amount, again Reusable) []*hints.Family {
	n := len(m.blocks)
	alone, open := bitset.New(n), bitset.New(n)
	for i := range n {
		switch {
		case !m.uses(i):
			open.Add(i)
		case !m.inGroup(i):
			alone.Add(i)
		}
	}
	single := &hints.Family{Within: alone, Must: bitset.New(n), Alone: true}
	together := &hints.Family{Within: open, Must: bitset.New(n)}
	for _, a := range asked {
		weight := c.orZero(m.free, a.Kind)
		together.Loads = append(together.Loads, hints.Load{Weight: weight, Need: a.Bytes})
		for i := range alone.All {
			if bytes := again.on(bitset.Of(n, i), a.Kind); bytes > 0 {
				weight = slices.Clone(weight)
				weight[i] += bytes
			}
		}
		single.Loads = append(single.Loads, hints.Load{Weight: weight, Need: a.Bytes})
	}
	out := []*hints.Family{single, together}
	for _, g := range m.groups {
		if m.mixed(g) {
			continue
		}
		f := &hints.Family{Within: g.nodes, Must: g.nodes}
		for _, a := range asked {
			f.Loads = append(f.Loads, hints.Load{Weight: c.orZero(m.free, a.Kind), Need: a.Bytes - again.on(g.nodes, a.Kind)})
		}
		out = append(out, f)
	}
	return slices.DeleteFunc(out, (*hints.Family).IsEmpty)
}

// mixed reports whether a node of g also has blocks of its own.
func (m *Table) mixed(g group) bool {
	for i := range g.nodes.All {
		if m.blocks[i] > 0 {
			return true
		}
	}
	return false
}

// Reusable is memory that finished init containers of a pod have passed on to the containers after them.
type Reusable []BlocksOn

// BlocksOn is reusable memory on a set of nodes.
type BlocksOn struct {
	Nodes bitset.Set
	Bytes map[int]int64 // by kind
}

func (r Reusable) on(nodes bitset.Set, kind int) int64 {
	for _, b := range r {
		if b.Nodes.Equal(nodes) {
			return b.Bytes[kind]
		}
	}
	return 0
}

// fits reports whether nodes have enough free memory for all of asked, not counting reusable memory.
func (m *Table) fits(c *Capacity, nodes bitset.Set, asked []Amount) bool {
	for _, a := range asked {
		have := hints.Load{Weight: c.orZero(m.free, a.Kind)}
		if have.Sum(nodes) < a.Bytes {
			return false
		}
	}
	return true
}

// mixes reports whether a block on nodes would break the rule on groups: one of several nodes has blocks of its own or
// is in another group.
func (m *Table) mixes(nodes bitset.Set) bool {
	if nodes.Count() == 1 {
		return false
	}
	for i := range nodes.All {
		if m.blocks[i] > 0 {
			return true
		}
	}
	for _, g := range m.groups {
		if g.nodes.Meets(nodes) && !g.nodes.Equal(nodes) {
			return true
		}
	}
	return false
}

// Excess calls tell for each node and each group with more memory assigned than it has, because machine or
// configuration changed.
func (m *Table) Excess(c *Capacity, tell func(nodes bitset.Set, kind int, owned, has int64)) {
	for kind := range c.Kinds {
		at := func(amounts []int64, i int) int64 { return amounts[kind*c.nodes+i] }
		for i := range c.nodes {
			if owned, has := at(m.own, i), at(c.allocatable, i); owned > has {
				tell(bitset.Of(c.nodes, i), kind, owned, has)
			}
		}
		for _, g := range m.groups {
			var has int64
			for i := range g.nodes.All {
				has += max(0, at(c.allocatable, i)-at(m.own, i))
			}
			if owned := g.bytes[kind]; owned > has {
				tell(g.nodes, kind, owned, has)
			}
		}
	}
}

// AppendLikeness appends what decides about later requests: two Tables of one Capacity that append the same bytes give
// the same results.
func (m *Table) AppendLikeness(b []byte) []byte {
	for i := range m.blocks {
		used := byte(0)
		if m.blocks[i] > 0 {
			used = 1
		}
		b = append(b, used)
	}
	for _, bytes := range m.free {
		b = binary.AppendVarint(b, bytes)
	}
	b = binary.AppendVarint(b, int64(len(m.groups)))
	for i := range m.groups {
		b = m.groups[i].nodes.AppendTo(b)
		for _, bytes := range m.groups[i].bytes {
			b = binary.AppendVarint(b, bytes)
		}
	}
	return b
}

// Free returns how much of a kind is free, by place; zeros for a kind that this machine does not have.
func (m *Table) Free(c *Capacity, kind int) []int64 { return c.orZero(m.free, kind) }
