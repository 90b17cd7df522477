package numa

import (
	"fmt"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Layout is what does not change while a node runs: its machine, prepared for quick decisions, and its configuration. All
// States of the node share it. NUMA nodes are known inside by their place in the order of their ids, CPUs by their ids.
type Layout struct {
	config Config

	nodeID   []machine.NUMAID
	place    map[machine.NUMAID]int
	distance [][]int // by place

	cpus          set // all online
	reserved      set
	reservedCores set // all threads of cores with a reserved CPU

	nodes, sockets, caches, cores []cpuGroup
	cachesIn                      [][]int // by place of a node: its caches
	nodeOf                        []int   // by CPU id
	socketOf, cacheOf, coreOf     []int   // by CPU id, places in the lists above

	outer, inner []cpuGroup // nodes and sockets: the larger level, then the smaller
	outerOf      []int      // by CPU id
	innerOf      []int
	nodesFirst   bool // outer is nodes

	threads   int // CPUs per core, rounded down on an uneven machine
	cacheCPUs int // CPUs per cache, likewise
	cpuNodes  set // places of nodes with CPUs

	kinds       []unit.Bytes // page sizes of memory, 0 (ordinary memory) first
	allocatable []int64      // by kind*nodes+place: what containers can own
}

// cpuGroup is the CPUs of a node, a socket, a cache or a core.
type cpuGroup struct {
	id      int
	cpus    set
	members []int // the same, in order
	inside  []int // places of smaller groups that share CPUs with it: of inner groups in outer ones, of cores in inner ones and in caches
}

// New prepares a machine that passed its Check. The error names everything in c that is wrong or that m contradicts.
func New(m machine.Machine, c Config) (*Layout, error) {
	if err := c.check(m); err != nil {
		return nil, err
	}
	l := &Layout{config: c, place: map[machine.NUMAID]int{}}
	for i, n := range m.NUMANodes {
		l.nodeID = append(l.nodeID, n.ID)
		l.place[n.ID] = i
	}
	for _, n := range m.NUMANodes {
		row := make([]int, len(m.NUMANodes))
		for to, d := range n.Distances {
			if i, ok := l.place[to]; ok {
				row[i] = d
			}
		}
		l.distance = append(l.distance, row)
	}
	l.layCPUs(m)
	l.layMemory(m)
	if err := l.reserve(); err != nil {
		return nil, err
	}
	return l, nil
}

func (l *Layout) layCPUs(m machine.Machine) {
	ids := 0
	for cpu := range m.CPUs.All() {
		ids = cpu + 1
	}
	l.cpus = newSet(ids)
	for cpu := range m.CPUs.All() {
		l.cpus.add(cpu)
	}
	l.cpuNodes = newSet(len(l.nodeID))
	for i, n := range m.NUMANodes {
		l.nodes = append(l.nodes, groupCPUs(int(n.ID), ids, n.CPUs.All()))
		if !n.CPUs.IsEmpty() {
			l.cpuNodes.add(i)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.Sockets)) {
		l.sockets = append(l.sockets, groupCPUs(int(id), ids, m.Sockets[id].All()))
	}
	for _, id := range slices.Sorted(maps.Keys(m.L3)) {
		l.caches = append(l.caches, groupCPUs(int(id), ids, m.L3[id].All()))
	}
	for _, core := range m.Cores {
		l.cores = append(l.cores, groupCPUs(core.Lowest(), ids, core.All()))
	}
	l.nodeOf, l.socketOf, l.cacheOf, l.coreOf = index(l.nodes, ids), index(l.sockets, ids), index(l.caches, ids), index(l.cores, ids)
	l.threads, l.cacheCPUs = m.CPUs.Len()/len(l.cores), m.CPUs.Len()/len(l.caches)
	l.nest()
}

// nest decides which of nodes and sockets is the larger level, as upstream does: by their numbers.
func (l *Layout) nest() {
	l.nodesFirst = len(l.sockets) >= l.cpuNodes.count()
	for i := range l.nodes {
		l.cachesIn = append(l.cachesIn, inside(l.nodes[i], l.cacheOf))
	}
	for i := range l.caches {
		l.caches[i].inside = inside(l.caches[i], l.coreOf)
	}
	l.outer, l.inner, l.outerOf, l.innerOf = slices.Clone(l.sockets), slices.Clone(l.nodes), l.socketOf, l.nodeOf
	if l.nodesFirst {
		l.outer, l.inner, l.outerOf, l.innerOf = l.inner, l.outer, l.innerOf, l.outerOf
	}
	for i := range l.outer {
		l.outer[i].inside = inside(l.outer[i], l.innerOf)
	}
	for i := range l.inner {
		l.inner[i].inside = inside(l.inner[i], l.coreOf)
	}
}

func groupCPUs(id, ids int, cpus func(func(int) bool)) cpuGroup {
	g := cpuGroup{id: id, cpus: newSet(ids)}
	for cpu := range cpus {
		g.cpus.add(cpu)
		g.members = append(g.members, cpu)
	}
	return g
}

func index(groups []cpuGroup, ids int) []int {
	of := make([]int, ids)
	for i := range groups {
		for _, cpu := range groups[i].members {
			of[cpu] = i
		}
	}
	return of
}

func inside(g cpuGroup, of []int) []int {
	var places []int
	for _, cpu := range g.members {
		places = append(places, of[cpu])
	}
	slices.Sort(places)
	return slices.Compact(places)
}

// layMemory works out what containers can own: what a node has, without what is reserved and, of ordinary memory, what
// huge pages took.
func (l *Layout) layMemory(m machine.Machine) {
	sizes := map[unit.Bytes]bool{0: true}
	for _, n := range m.NUMANodes {
		for size := range n.HugePages {
			sizes[size] = true
		}
	}
	l.kinds = slices.Sorted(maps.Keys(sizes))
	for _, size := range l.kinds {
		for _, n := range m.NUMANodes {
			free := onNode(n, size) - l.config.Memory.Reserved[n.ID][size]
			if size == 0 {
				for huge := range n.HugePages {
					free -= onNode(n, huge)
				}
			}
			l.allocatable = append(l.allocatable, int64(max(0, free)))
		}
	}
}

// reserve settles which CPUs are kept from exclusive use.
func (l *Layout) reserve() error {
	l.reserved, l.reservedCores = newSet(len(l.cpus)*64), newSet(len(l.cpus)*64)
	if !l.config.CPU.Static {
		return nil
	}
	for cpu := range l.config.CPU.Reserved.All() {
		if cpu < len(l.cpus)*64 && l.cpus.has(cpu) {
			l.reserved.add(cpu)
		}
	}
	if l.reserved.isEmpty() {
		taken, err := l.choose(l.cpus, l.config.CPU.ReservedCount)
		if err != nil {
			return fmt.Errorf("reserve %d CPUs: %w", l.config.CPU.ReservedCount, err)
		}
		l.reserved = taken
	}
	for cpu := range l.reserved.all {
		l.reservedCores.unite(l.cores[l.coreOf[cpu]].cpus)
	}
	return nil
}

// ids translates places of nodes.
func (l *Layout) ids(nodes set) []machine.NUMAID {
	out := make([]machine.NUMAID, 0, nodes.count())
	for i := range nodes.all {
		out = append(out, l.nodeID[i])
	}
	return out
}

// places translates ids of nodes; those that the machine does not have are left out.
func (l *Layout) places(ids []machine.NUMAID) set {
	s := newSet(len(l.nodeID))
	for _, id := range ids {
		if i, ok := l.place[id]; ok {
			s.add(i)
		}
	}
	return s
}
