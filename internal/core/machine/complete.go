package machine

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Distances between the nodes of a machine that states none: the kernel's LOCAL_DISTANCE and REMOTE_DISTANCE
// (include/linux/topology.h), which are ACPI's defaults.
const (
	DistanceLocal  = 10
	DistanceRemote = 20
)

// Complete returns m with everything that a description may leave out: one node if there is none, default distances if
// no node has any, a core for each CPU that is in none, a socket for each node with CPUs, a die and an L3 group for
// each socket, and totals computed from the nodes. Complete changes nothing that m states, whether it is possible or
// not. Check decides that.
func (m Machine) Complete() Machine {
	m.NUMANodes = slices.Clone(m.NUMANodes)
	if len(m.NUMANodes) == 0 {
		m.NUMANodes = []NUMANode{{CPUs: m.CPUs, Memory: m.Memory, HugePages: m.HugePages}}
	}
	slices.SortStableFunc(m.NUMANodes, func(a, b NUMANode) int { return int(a.ID - b.ID) })
	m.completeTotals()
	m.completeDistances()
	m.completeTopology()
	if m.ImageFS == (Filesystem{}) {
		m.ImageFS = m.NodeFS
	}
	return m
}

func (m *Machine) completeTotals() {
	var cpus idset.Set
	var memory unit.Bytes
	pages := map[unit.Bytes]int64{}
	for i, n := range m.NUMANodes {
		cpus, memory = cpus.Union(n.CPUs), memory+n.Memory
		for size, count := range n.HugePages {
			pages[size] += count
		}
		m.NUMANodes[i].HugePages = withPages(n.HugePages)
	}
	if m.CPUs.IsEmpty() {
		m.CPUs = cpus
	}
	if m.Memory == 0 {
		m.Memory = memory
	}
	maps.Copy(pages, m.HugePages)
	if len(pages) > 0 {
		m.HugePages = pages
	}
}

func (m *Machine) completeDistances() {
	for _, n := range m.NUMANodes {
		if len(n.Distances) > 0 {
			return
		}
	}
	for i := range m.NUMANodes {
		from := &m.NUMANodes[i]
		from.Distances = map[NUMAID]int{}
		for _, to := range m.NUMANodes {
			from.Distances[to.ID] = DistanceRemote
		}
		from.Distances[from.ID] = DistanceLocal
	}
}

func (m *Machine) completeTopology() {
	if len(m.Sockets) == 0 {
		m.Sockets = map[SocketID]idset.Set{}
		for _, n := range m.NUMANodes {
			if !n.CPUs.IsEmpty() {
				m.Sockets[SocketID(n.ID)] = n.CPUs
			}
		}
	}
	if len(m.Dies) == 0 {
		m.Dies = slices.Collect(maps.Values(m.Sockets))
	}
	if len(m.L3) == 0 {
		m.L3 = map[CacheID]idset.Set{}
		for id, cpus := range m.Sockets {
			m.L3[CacheID(id)] = cpus
		}
	}
	cores, alone := slices.Clone(m.Cores), m.CPUs
	for _, threads := range cores {
		alone = alone.Minus(threads)
	}
	for cpu := range alone.All() {
		cores = append(cores, idset.Of(cpu))
	}
	m.Cores, m.Dies = byLowest(cores), byLowest(m.Dies)
}

// byLowest returns the sets sorted by their lowest ids.
func byLowest(sets []idset.Set) []idset.Set {
	return slices.SortedStableFunc(slices.Values(sets), func(a, b idset.Set) int { return a.Lowest() - b.Lowest() })
}

// withPages returns the page sizes with at least one page; nil when there are none.
func withPages(pages map[unit.Bytes]int64) map[unit.Bytes]int64 {
	var out map[unit.Bytes]int64
	for size, count := range pages {
		if count == 0 {
			continue
		}
		if out == nil {
			out = map[unit.Bytes]int64{}
		}
		out[size] = count
	}
	return out
}
