package numa

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// memory says which bytes containers own. It is the sum of the blocks in use and nothing else: the same blocks, in
// whatever order they came, give the same memory.
//
// A block lies on one node or on a group of nodes. Groups do not overlap, and a node is either used by blocks of its own or
// in a group. Where in a group the bytes are nobody knows, so they count as filling its nodes in order.
type memory struct {
	blocks []int   // by place: blocks of that node alone
	own    []int64 // by kind*nodes+place: bytes in them
	groups []group // in order
	free   []int64 // by kind*nodes+place: what is left; derived from the rest
}

// group is nodes that memory blocks share.
type group struct {
	nodes  set
	blocks int
	bytes  []int64 // by kind
}

func (l *Layout) noMemoryUsed() memory {
	n := len(l.nodeID)
	m := memory{blocks: make([]int, n), own: make([]int64, n*len(l.kinds)), free: make([]int64, n*len(l.kinds))}
	m.settle(l)
	return m
}

// fork returns a copy that can change without m. Groups are copied when they change.
func (m *memory) fork() memory {
	return memory{blocks: slices.Clone(m.blocks), own: slices.Clone(m.own), groups: slices.Clone(m.groups), free: slices.Clone(m.free)}
}

// change adds blocks of a kind (or, with a negative number, takes them away), bytes in all.
func (m *memory) change(l *Layout, nodes set, kind, blocks int, bytes int64) {
	if nodes.count() == 1 {
		for i := range nodes.all {
			m.blocks[i] += blocks
			m.own[kind*len(m.blocks)+i] += bytes
		}
	} else {
		m.changeGroup(nodes, len(l.kinds), kind, blocks, bytes)
	}
	m.settle(l)
}

func (m *memory) changeGroup(nodes set, kinds, kind, blocks int, bytes int64) {
	i, found := slices.BinarySearchFunc(m.groups, nodes, func(g group, nodes set) int { return g.nodes.compare(nodes) })
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

// settle derives free. What is owned beyond what there is, because the machine or its configuration changed under running
// pods, leaves nothing free.
func (m *memory) settle(l *Layout) {
	n := len(m.blocks)
	for k := range l.kinds {
		for i := range n {
			m.free[k*n+i] = max(0, l.allocatable[k*n+i]-m.own[k*n+i])
		}
	}
	for _, g := range m.groups {
		for k, bytes := range g.bytes {
			for i := range g.nodes.all {
				part := min(bytes, m.free[k*n+i])
				m.free[k*n+i] -= part
				bytes -= part
			}
		}
	}
}

// inGroup reports whether a node belongs to a group: no block of its own, and blocks of a group.
func (m *memory) inGroup(node int) bool {
	if m.blocks[node] > 0 {
		return false
	}
	for i := range m.groups {
		if m.groups[i].nodes.has(node) {
			return true
		}
	}
	return false
}

// uses reports whether any block has bytes on a node.
func (m *memory) uses(node int) bool { return m.blocks[node] > 0 || m.inGroup(node) }

// amount is memory of one kind that is asked for.
type amount struct {
	kind  int
	bytes int64
}

// families returns the sets of nodes that can hold all of asked: single nodes, nodes without any blocks together, and each
// group as it is. What the pod can use again counts for exactly the nodes it is on.
func (m *memory) families(l *Layout, asked []amount, again reusable) []*family {
	n := len(m.blocks)
	alone, open := newSet(n), newSet(n)
	for i := range n {
		switch {
		case !m.uses(i):
			open.add(i)
		case !m.inGroup(i):
			alone.add(i)
		}
	}
	single := &family{within: alone, must: newSet(n), alone: true}
	together := &family{within: open, must: newSet(n)}
	for _, a := range asked {
		weight := l.orZero(m.free, a.kind)
		together.loads = append(together.loads, load{weight, a.bytes})
		for i := range alone.all {
			if bytes := again.on(setOf(n, i), a.kind); bytes > 0 {
				weight = slices.Clone(weight)
				weight[i] += bytes
			}
		}
		single.loads = append(single.loads, load{weight, a.bytes})
	}
	out := []*family{single, together}
	for _, g := range m.groups {
		if m.mixed(g) {
			continue
		}
		f := &family{within: g.nodes, must: g.nodes}
		for _, a := range asked {
			f.loads = append(f.loads, load{l.orZero(m.free, a.kind), a.bytes - again.on(g.nodes, a.kind)})
		}
		out = append(out, f)
	}
	return slices.DeleteFunc(out, (*family).isEmpty)
}

// mixed reports whether a node of g has blocks of its own, too.
func (m *memory) mixed(g group) bool {
	for i := range g.nodes.all {
		if m.blocks[i] > 0 {
			return true
		}
	}
	return false
}

// reusable is memory that finished init containers of a pod leave to those after them.
type reusable []blocksOn

type blocksOn struct {
	nodes set
	bytes map[int]int64 // by kind
}

func (r reusable) on(nodes set, kind int) int64 {
	for _, b := range r {
		if b.nodes.equal(nodes) {
			return b.bytes[kind]
		}
	}
	return 0
}

// orZero returns the amounts by place of one kind; zeros for a kind that this machine does not have.
func (l *Layout) orZero(amounts []int64, kind int) []int64 {
	n := len(l.nodeID)
	if kind < 0 {
		return make([]int64, n)
	}
	return amounts[kind*n : (kind+1)*n]
}

// kind returns the place of a page size in kinds; -1 when this machine has no such pages.
func (l *Layout) kind(size unit.Bytes) int { return slices.Index(l.kinds, size) }

// memoryWidth is how many nodes an empty machine would need for all of asked: all nodes when it never could.
func (l *Layout) memoryWidth(asked []amount) int {
	n := len(l.nodeID)
	f := &family{within: full(n), must: newSet(n)}
	for _, a := range asked {
		f.loads = append(f.loads, load{l.orZero(l.allocatable, a.kind), a.bytes})
	}
	steps := searchSteps
	return cmp.Or(f.narrowest(n, n, &steps).count(), n)
}

// Block is memory of one kind that a container owns on some nodes together.
type Block struct {
	Nodes    []machine.NUMAID
	PageSize unit.Bytes // 0: ordinary memory
	Bytes    unit.Bytes
}

// fits reports whether nodes have all of asked free, nothing used again.
func (m *memory) fits(l *Layout, nodes set, asked []amount) bool {
	for _, a := range asked {
		have := load{weight: l.orZero(m.free, a.kind)}
		if have.sum(nodes) < a.bytes {
			return false
		}
	}
	return true
}

// mixes reports whether a block on nodes would break the rule on groups: several nodes of which one has blocks of its own
// or is in another group.
func (m *memory) mixes(nodes set) bool {
	if nodes.count() == 1 {
		return false
	}
	for i := range nodes.all {
		if m.blocks[i] > 0 {
			return true
		}
	}
	for _, g := range m.groups {
		if g.nodes.meets(nodes) && !g.nodes.equal(nodes) {
			return true
		}
	}
	return false
}
