// Package cpus chooses the exclusive CPUs of a container. It does what the static policy of the kubelet's CPU manager
// does. Either it keeps sockets, NUMA nodes, caches and cores completely free where possible (choose.go), or it spreads
// the CPUs evenly over several nodes (distribute.go).
//
// It knows neither pods nor assignments: the caller passes the free CPUs. A hint says near which nodes to choose
// (package hints), and package numa knows which CPUs are reserved.
package cpus

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// Options are the rules by which CPUs are chosen. With the zero Options, sockets are filled one after the other, within
// them nodes, within these cores.
type Options struct {
	DistributeNUMA     bool // spread over several nodes evenly, instead of filling one after the other
	DistributeCores    bool // spread over cores, instead of taking whole cores first
	FullCores          bool // DistributeNUMA spreads whole cores
	PreferAlignByCache bool // prefer whole groups of CPUs that share a last-level cache, then parts of few groups
}

// Topology is the online CPUs of a machine, the groups that the hardware puts them in, and the rules by which to
// choose. It does not change. A NUMA node is identified by its place, its index in the order of node ids, and a CPU by
// its id.
type Topology struct {
	options Options

	CPUs bitset.Set // all online CPUs

	Nodes, Sockets, caches, Cores []Group
	cachesIn                      [][]int // by place of a node: indexes of its caches
	nodeOf                        []int   // by CPU id: place of its node
	SocketOf, cacheOf, CoreOf     []int   // by CPU id: indexes in the lists above

	outer, inner []Group // nodes and sockets: the level with fewer groups, then the other
	nodesFirst   bool    // outer is nodes

	Threads       int        // CPUs per core, rounded down if cores differ
	cacheCPUs     int        // CPUs per cache, rounded down if caches differ
	NodesWithCPUs bitset.Set // places of nodes with CPUs
}

// Group is the CPUs of a node, a socket, a cache or a core.
type Group struct {
	CPUs    bitset.Set
	Members []int // the same CPUs, in order
	// inside holds the indexes of the next smaller groups in it: inner groups in an outer one, cores in an inner one or
	// a cache.
	inside []int
}

// New prepares a machine that passed its Check.
func New(m machine.Machine, o Options) *Topology {
	t := &Topology{options: o}
	ids := 0
	for cpu := range m.CPUs.All() {
		ids = cpu + 1
	}
	t.CPUs = bitset.New(ids)
	for cpu := range m.CPUs.All() {
		t.CPUs.Add(cpu)
	}
	t.NodesWithCPUs = bitset.New(len(m.NUMANodes))
	for i, n := range m.NUMANodes {
		t.Nodes = append(t.Nodes, groupCPUs(ids, n.CPUs.All()))
		if !n.CPUs.IsEmpty() {
			t.NodesWithCPUs.Add(i)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(m.Sockets)) {
		t.Sockets = append(t.Sockets, groupCPUs(ids, m.Sockets[id].All()))
	}
	for _, id := range slices.Sorted(maps.Keys(m.L3)) {
		t.caches = append(t.caches, groupCPUs(ids, m.L3[id].All()))
	}
	for _, core := range m.Cores {
		t.Cores = append(t.Cores, groupCPUs(ids, core.All()))
	}
	t.nodeOf = index(t.Nodes, ids)
	t.SocketOf = index(t.Sockets, ids)
	t.cacheOf = index(t.caches, ids)
	t.CoreOf = index(t.Cores, ids)
	t.Threads, t.cacheCPUs = m.CPUs.Len()/len(t.Cores), m.CPUs.Len()/len(t.caches)
	t.nest()
	return t
}

// None returns the empty set of CPUs.
func (t *Topology) None() bitset.Set { return bitset.New(len(t.CPUs) * 64) }

// Online reports whether a CPU is online.
func (t *Topology) Online(cpu int) bool { return cpu < len(t.CPUs)*64 && t.CPUs.Has(cpu) }

// nest decides whether nodes or sockets are the outer level, by their numbers, as upstream does.
func (t *Topology) nest() {
	t.nodesFirst = len(t.Sockets) >= t.NodesWithCPUs.Count()
	for i := range t.Nodes {
		t.cachesIn = append(t.cachesIn, inside(t.Nodes[i], t.cacheOf))
	}
	for i := range t.caches {
		t.caches[i].inside = inside(t.caches[i], t.CoreOf)
	}
	t.outer = slices.Clone(t.Sockets)
	t.inner = slices.Clone(t.Nodes)
	innerOf := t.nodeOf
	if t.nodesFirst {
		t.outer, t.inner = t.inner, t.outer
		innerOf = t.SocketOf
	}
	for i := range t.outer {
		t.outer[i].inside = inside(t.outer[i], innerOf)
	}
	for i := range t.inner {
		t.inner[i].inside = inside(t.inner[i], t.CoreOf)
	}
}

func groupCPUs(ids int, cpus func(func(int) bool)) Group {
	g := Group{CPUs: bitset.New(ids)}
	for cpu := range cpus {
		g.CPUs.Add(cpu)
		g.Members = append(g.Members, cpu)
	}
	return g
}

func index(groups []Group, ids int) []int {
	of := make([]int, ids)
	for i := range groups {
		for _, cpu := range groups[i].Members {
			of[cpu] = i
		}
	}
	return of
}

func inside(g Group, of []int) []int {
	var places []int
	for _, cpu := range g.Members {
		places = append(places, of[cpu])
	}
	slices.Sort(places)
	return slices.Compact(places)
}
