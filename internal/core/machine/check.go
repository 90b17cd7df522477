package machine

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Limits of a distance in ACPI's System Locality Information Table: values below 10 are reserved, and 255 means
// unreachable.
const (
	distanceMin = 10
	distanceMax = 255
)

// Check returns everything that is impossible in a complete machine, in one error.
func (m Machine) Check() error {
	var p problems
	m.checkCPUs(&p)
	m.checkMemory(&p)
	m.checkNUMANodes(&p)
	m.checkDistances(&p)
	m.checkTopology(&p)
	m.checkDevices(&p)
	if len(p) == 0 {
		return nil
	}
	return Impossible(p)
}

// Impossible is the list of problems of a machine.
type Impossible []string

// Error returns all problems in one line.
func (p Impossible) Error() string { return "check machine: " + strings.Join(p, "; ") }

type problems []string

func (p *problems) add(field string, value any, rule string, args ...any) {
	*p = append(*p, fmt.Sprintf("%s: %v: %s", field, value, fmt.Sprintf(rule, args...)))
}

func (m Machine) checkCPUs(p *problems) {
	if m.CPUs.IsEmpty() {
		p.add("cpus", "none", "want at least one")
	}
	if both := m.Offline.Intersect(m.CPUs); !both.IsEmpty() {
		p.add("offline", both, "is online too")
	}
	if gone := m.Isolated.Minus(m.CPUs).Minus(m.Offline); !gone.IsEmpty() {
		p.add("isolated", gone, "is no CPU of this machine")
	}
}

func (m Machine) checkMemory(p *problems) {
	if m.Memory <= 0 {
		p.add("memory", m.Memory, "want more than nothing")
	}
	checkPages("hugepages", m.HugePages, p)
	if m.Swap < 0 {
		p.add("swap", m.Swap, "want none or more")
	}
	if m.PIDs < 0 {
		p.add("pids", m.PIDs, "want a count, or 0 when it is not known")
	}
	for _, fs := range []struct {
		name string
		Filesystem
	}{{"nodefs", m.NodeFS}, {"imagefs", m.ImageFS}} {
		if fs.Capacity <= 0 {
			p.add(fs.name, fs.Capacity, "want more than nothing")
		}
		if fs.Inodes < 0 {
			p.add(fs.name+" inodes", fs.Inodes, "want a count, or 0 when there is no fixed number")
		}
	}
}

func checkPages(field string, pages map[unit.Bytes]int64, p *problems) {
	for size, count := range sorted(pages) {
		if size <= 0 || size&(size-1) != 0 {
			p.add(field, size, "want a page size that is a power of two")
		}
		if count < 0 {
			p.add(fmt.Sprintf("%s %v", field, size), count, "want a count")
		}
	}
}

func (m Machine) checkNUMANodes(p *problems) {
	if len(m.NUMANodes) == 0 {
		p.add("numa nodes", "none", "want at least one")
		return
	}
	parts := map[NUMAID]idset.Set{}
	pages := map[unit.Bytes]int64{}
	for i, n := range m.NUMANodes {
		field := fmt.Sprintf("numa node %d", n.ID)
		switch {
		case n.ID < 0 || n.ID > NUMAIDMax:
			p.add(field, n.ID, "want an id of 0 to %d", NUMAIDMax)
		case i > 0 && n.ID == m.NUMANodes[i-1].ID:
			p.add(field, n.ID, "is there twice")
		case i > 0 && n.ID < m.NUMANodes[i-1].ID:
			p.add(field, n.ID, "want nodes in the order of their ids")
		}
		if n.Memory < 0 {
			p.add(field+" memory", n.Memory, "want none or more")
		}
		if n.Installed != 0 && n.Installed < n.Memory {
			p.add(field+" installed", n.Installed, "is less than the %v of memory in use of it", n.Memory)
		}
		checkPages(field+" hugepages", n.HugePages, p)
		for size, count := range n.HugePages {
			pages[size] += count
		}
		if _, twice := parts[n.ID]; !twice && !n.CPUs.IsEmpty() {
			parts[n.ID] = n.CPUs
		}
	}
	checkPartition("numa node", sorted(parts), m.CPUs, p)
	for size := range m.HugePages {
		pages[size] += 0 // so that page sizes that no node has are compared too
	}
	for size, count := range sorted(pages) {
		if total := m.HugePages[size]; total != count {
			p.add(fmt.Sprintf("hugepages %v", size), total, "the nodes have %d", count)
		}
	}
}

func (m Machine) checkDistances(p *problems) {
	for _, from := range m.NUMANodes {
		field := fmt.Sprintf("numa node %d distances", from.ID)
		for to, d := range sorted(from.Distances) {
			if _, ok := m.NUMANode(to); !ok {
				p.add(field, to, "there is no such node")
			}
			if d < distanceMin || d > distanceMax {
				p.add(fmt.Sprintf("%s to %d", field, to), d, "want %d to %d", distanceMin, distanceMax)
			}
		}
		for _, to := range m.NUMANodes {
			if _, ok := from.Distances[to.ID]; !ok {
				p.add(field, to.ID, "the distance to this node is missing")
			}
		}
	}
}

func (m Machine) checkTopology(p *problems) {
	checkPartition("socket", sorted(m.Sockets), m.CPUs, p)
	checkPartition("die", slices.All(m.Dies), m.CPUs, p)
	checkPartition("l3 group", sorted(m.L3), m.CPUs, p)
	checkPartition("core", slices.All(m.Cores), m.CPUs, p)
	var socketOf [idset.Max + 1]SocketID // by CPU
	for cpu := range socketOf {
		socketOf[cpu] = noSocket
	}
	for id, cpus := range sorted(m.Sockets) {
		for cpu := range cpus.All() {
			socketOf[cpu] = id
		}
	}
	for _, level := range []struct {
		name   string
		groups []idset.Set
	}{{"core", m.Cores}, {"die", m.Dies}} {
		for _, cpus := range level.groups {
			if id, split := splitSocket(cpus, socketOf[:]); split {
				p.add(level.name, cpus, "is partly in socket %d, partly not", id)
			}
		}
	}
}

// noSocket stands for CPUs that are in no socket. It is larger than every socket id.
const noSocket = SocketID(math.MaxInt)

// splitSocket returns the lowest socket that has some of cpus, but not all. It takes one step for each CPU, because a
// machine can have as many cores as sockets.
func splitSocket(cpus idset.Set, socketOf []SocketID) (lowest SocketID, split bool) {
	lowest = noSocket
	highest := SocketID(math.MinInt)
	for cpu := range cpus.All() {
		lowest, highest = min(lowest, socketOf[cpu]), max(highest, socketOf[cpu])
	}
	return lowest, lowest < highest
}

// checkPartition reports CPUs that are in no group or in two, and empty groups.
func checkPartition[ID ~int](what string, groups iter.Seq2[ID, idset.Set], all idset.Set, p *problems) {
	var seen idset.Set
	for id, cpus := range groups {
		field := fmt.Sprintf("%s %d", what, id)
		if id < 0 {
			p.add(field, id, "want an id of 0 or more")
		}
		if cpus.IsEmpty() {
			p.add(field, "none", "want CPUs")
		}
		if unknown := cpus.Minus(all); !unknown.IsEmpty() {
			p.add(field, unknown, "is no online CPU of this machine (%v are)", all)
		}
		if twice := cpus.Intersect(seen); !twice.IsEmpty() {
			p.add(field, twice, "is in another %s too", what)
		}
		seen = seen.Union(cpus)
	}
	if missing := all.Minus(seen); !missing.IsEmpty() {
		p.add(what+"s", missing, "is in none")
	}
}

func (m Machine) checkDevices(p *problems) {
	for resource, ids := range sorted(m.Devices) {
		if resource == "" {
			p.add("devices", `""`, "want the name of a resource")
		}
		for id, nodes := range sorted(ids) {
			m.checkNear(fmt.Sprintf("device %s of %s", id, resource), nodes, p)
		}
	}
	for i, d := range m.PCIDevices {
		field := "pci device " + d.Address
		m.checkNear(field, []NUMAID{d.NUMANode}, p)
		if i > 0 && d.Address <= m.PCIDevices[i-1].Address {
			p.add(field, d.Address, "want devices in the order of their addresses, each once")
		}
		if d.Class >= 1<<24 || d.Vendor >= 1<<16 || d.Device >= 1<<16 {
			p.add(field, fmt.Sprintf("class %#x, vendor %#x, device %#x", d.Class, d.Vendor, d.Device),
				"want 24, 16 and 16 bits")
		}
	}
}

// checkNear reports nodes that do not exist, are listed twice, or are not in order.
func (m Machine) checkNear(field string, nodes []NUMAID, p *problems) {
	for i, id := range nodes {
		if _, ok := m.NUMANode(id); !ok {
			p.add(field, id, "there is no such numa node")
		}
		if i > 0 && id <= nodes[i-1] {
			p.add(field, id, "want numa nodes in order, each once")
		}
	}
}

// sorted yields the entries of m in the order of their keys, so that two checks of one machine give the same text.
func sorted[K cmp.Ordered, V any](m map[K]V) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}
