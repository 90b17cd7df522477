package lab

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A board is a machine in QEMU's terms: equal numbers of dies per socket, cores per die and threads per core, CPUs
// numbered in that order, and NUMA nodes 0, 1, 2, ... that consist of whole CPUs.
type board struct {
	sockets, dies, cores, threads int   // dies per socket, cores per die, threads per core
	node                          []int // the NUMA node of each CPU
	nodes                         []boardNode
	isolated                      idset.Set
	nodeFS                        machine.Filesystem
	imageFS                       machine.Filesystem // without a capacity: the same as nodeFS
	swap                          unit.Bytes
	pids                          int64 // 0: the kernel's default
}

type boardNode struct {
	memory    unit.Bytes // what the kernel must be able to use; 0: none
	installed unit.Bytes // what the board has
	pages     map[unit.Bytes]int64
	distances []int // to each node
}

// memoryBlock is the unit of a node's memory: the kernel's sections, since it rejects firmware tables with smaller
// units (mm/memory_hotplug.c, node_map_pfn_alignment), and its memory blocks on machines with less than 64 GiB.
const memoryBlock = 128 * unit.MiB

// How much of a node's memory a kernel uses itself, at most (measured 2026-11 with Debian's 6.1: 52 MiB of a first node
// of 1 GiB, 18 MiB of another; 1.6 % are the structs of its pages). A node whose description does not say how much is
// installed gets that much more.
const (
	keptFirst    = 64 * unit.MiB // in the first node, which contains the kernel
	keptFraction = 50            // one fiftieth of each node
)

// newBoard converts m to QEMU's terms. The error names everything that QEMU cannot represent.
func newBoard(m machine.Machine) (board, error) {
	b := board{isolated: m.Isolated, nodeFS: m.NodeFS, swap: m.Swap, pids: m.PIDs}
	if m.ImageFS != m.NodeFS {
		b.imageFS = m.ImageFS
	}
	var p problems
	b.placeCPUs(m, &p)
	b.placeNodes(m, &p)
	for name, fs := range map[string]machine.Filesystem{"nodefs": b.nodeFS, "imagefs": b.imageFS} {
		if fs.Capacity%blockSize != 0 {
			p.add("filesystems.%s: capacity %v: want a multiple of %v", name, fs.Capacity, blockSize)
		}
	}
	if b.swap%blockSize != 0 {
		p.add("swap: %v: want a multiple of %v", b.swap, blockSize)
	}
	if !m.Offline.IsEmpty() {
		p.add("offline: %v: guests boot with all CPUs: take them offline afterwards", m.Offline)
	}
	if len(m.Devices) > 0 || len(m.PCIDevices) > 0 {
		p.add("devices, pciDevices: guests have none")
	}
	if len(p) > 0 {
		slices.Sort(p)
		return board{}, fmt.Errorf("convert the machine to QEMU's terms: %s", strings.Join(p, "; "))
	}
	return b, nil
}

type problems []string

func (p *problems) add(format string, args ...any) { *p = append(*p, fmt.Sprintf(format, args...)) }

// placeCPUs finds the numbers of sockets, dies, cores and threads of m's topology.
func (b *board) placeCPUs(m machine.Machine, p *problems) {
	cpus := m.CPUs.Len()
	if !m.CPUs.Equal(span(0, cpus)) {
		p.add("cpus: %v: want 0-%d, without holes", m.CPUs, cpus-1)
		return
	}
	sockets, ids := []idset.Set{}, 0
	for _, id := range slices.Sorted(maps.Keys(m.Sockets)) {
		if int(id) != ids {
			p.add("sockets: %d: want the ids 0, 1, 2, ... without holes", id)
		}
		ids++
		sockets = append(sockets, m.Sockets[id])
	}
	inSocket := equalSpans("sockets", sockets, p)
	inDie := equalSpans("dies", m.Dies, p)
	inCore := equalSpans("threadSiblings", m.Cores, p)
	if len(*p) > 0 {
		return
	}
	if inSocket%inDie != 0 || inDie%inCore != 0 {
		p.add("threadSiblings, dies, sockets: %d, %d and %d CPUs in one: want each to be a multiple of the one before",
			inCore, inDie, inSocket)
		return
	}
	b.sockets = cpus / inSocket
	b.dies = inSocket / inDie
	b.cores = inDie / inCore
	b.threads = inCore
	shared := slices.SortedFunc(maps.Values(m.L3), func(a, c idset.Set) int { return a.Lowest() - c.Lowest() })
	if !slices.EqualFunc(shared, m.Dies, idset.Set.Equal) {
		p.add("l3: %v: QEMU's dies have one each: want %v", shared, m.Dies)
	}
}

// equalSpans returns how many CPUs are in each group. The groups must be in the order of their CPUs and of equal size.
func equalSpans(what string, groups []idset.Set, p *problems) int {
	size := groups[0].Len()
	for i, group := range groups {
		if want := span(i*size, size); !group.Equal(want) {
			p.add("%s: %v: QEMU numbers CPUs thread by thread, core by core, and all groups have one size: want %v", what, group,
				want)
			break
		}
	}
	return size
}

func span(first, count int) idset.Set {
	ids := make([]int, count)
	for i := range ids {
		ids[i] = first + i
	}
	return idset.Of(ids...)
}

func (b *board) placeNodes(m machine.Machine, p *problems) {
	b.node = make([]int, m.CPUs.Len())
	bare := -1 // the last node without CPUs so far
	for i, n := range m.NUMANodes {
		field := fmt.Sprintf("numaNodes[%d]", i)
		if int(n.ID) != i {
			p.add("%s: id %d: QEMU wants ids without holes: %d", field, n.ID, i)
		}
		node := boardNode{memory: n.Memory, installed: n.Installed, pages: n.HugePages}
		for cpu := range n.CPUs.All() {
			if cpu < len(b.node) {
				b.node[cpu] = i
			}
		}
		if n.CPUs.IsEmpty() {
			bare = i
		} else if bare >= 0 {
			p.add("%s: the kernel numbers nodes with CPUs before those without: put node %d last", field, bare)
		}
		for _, to := range m.NUMANodes {
			node.distances = append(node.distances, n.Distances[to.ID])
		}
		for size := range n.HugePages {
			if size != 2*unit.MiB && size != unit.GiB {
				p.add("%s: hugepages %v: this processor has 2Mi and 1Gi", field, size)
			}
		}
		node.install(field, i == 0, p)
		b.nodes = append(b.nodes, node)
	}
	if sum := b.sum(func(n boardNode) unit.Bytes { return n.memory }); m.Memory != sum {
		p.add("memory: %v: want the sum of the nodes', %v", m.Memory, sum)
	}
}

// install sets how much memory the node gets, if the description does not say.
func (n *boardNode) install(field string, first bool, p *problems) {
	switch {
	case n.memory%blockSize != 0:
		p.add("%s: memory %v: want a multiple of %v", field, n.memory, blockSize)
	case n.installed%memoryBlock != 0:
		p.add("%s: installed %v: want a multiple of %v", field, n.installed, memoryBlock)
	case first && n.memory == 0:
		p.add("%s: memory 0: the kernel starts from the first node's", field)
	}
	if n.memory == 0 || n.installed != 0 {
		return
	}
	kept := n.memory / keptFraction
	if first {
		kept += keptFirst
	}
	n.installed = (n.memory + kept + memoryBlock - 1) / memoryBlock * memoryBlock
}

func (b board) sum(of func(boardNode) unit.Bytes) (total unit.Bytes) {
	for _, n := range b.nodes {
		total += of(n)
	}
	return total
}

func (b board) installed() unit.Bytes {
	return b.sum(func(n boardNode) unit.Bytes { return n.installed })
}
