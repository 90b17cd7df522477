package numa

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/cpus"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/memory"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Config is what a node's configuration says about who gets which CPUs, memory and devices. The zero Config gives nobody
// anything of their own: all CPUs are shared, and only devices are handed out.
type Config struct {
	CPU      CPUConfig
	Memory   MemoryConfig
	Topology TopologyConfig
}

// CPUConfig is the CPU manager's part. Only Static gives the rest a meaning.
type CPUConfig struct {
	Static bool

	Reserved      idset.Set // never exclusive; when empty or all offline, ReservedCount CPUs are chosen
	ReservedCount int       // CPUs kept back; with Reserved, its size

	FullPCPUsOnly      bool // whole cores or nothing
	StrictReservation  bool // reserved CPUs are not in the shared pool either
	DistributeNUMA     bool // over several nodes evenly, instead of filling one after the other
	DistributeCores    bool // over cores, instead of whole cores first
	AlignBySocket      bool // a socket is as good as a node
	PreferAlignByCache bool // whole groups of CPUs that share a last-level cache, then parts of few
}

// options returns the rules by which CPUs are chosen.
func (c CPUConfig) options() cpus.Options {
	return cpus.Options{
		DistributeNUMA:     c.DistributeNUMA,
		DistributeCores:    c.DistributeCores,
		FullCores:          c.FullPCPUsOnly,
		PreferAlignByCache: c.PreferAlignByCache,
	}
}

// MemoryConfig is the memory manager's part.
type MemoryConfig struct {
	Static   bool
	Reserved map[machine.NUMAID]map[unit.Bytes]unit.Bytes // by node and page size (0: ordinary memory), in bytes
}

// Policy says how well the resources of a pod have to agree on NUMA nodes.
type Policy = hints.Policy

// Policies, from indifferent to strict.
const (
	PolicyNone           = hints.PolicyNone
	PolicyBestEffort     = hints.PolicyBestEffort
	PolicyRestricted     = hints.PolicyRestricted
	PolicySingleNUMANode = hints.PolicySingleNUMANode
)

// TopologyConfig is the topology manager's part.
type TopologyConfig struct {
	Policy        Policy
	PodScope      bool // one hint for the whole pod; else one for each container
	PreferClosest bool // of equally many nodes those with the least distances
}

// check returns everything in c that m or c itself contradicts, in one error.
func (c Config) check(m machine.Machine) error {
	var problems []string
	bad := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if c.CPU.Static {
		c.checkCPU(m, bad)
	}
	for _, id := range slices.Sorted(maps.Keys(c.Memory.Reserved)) {
		sizes := c.Memory.Reserved[id]
		node, ok := m.NUMANode(id)
		if !ok {
			bad("reservedMemory: NUMA node %d: this machine has no such node", id)
			continue
		}
		for _, size := range slices.Sorted(maps.Keys(sizes)) {
			if amount, have := sizes[size], memory.OnNode(node, size); amount > have {
				bad("reservedMemory: NUMA node %d: %s: %v is reserved of %v", id, KindName(size), amount, have)
			}
		}
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("check NUMA configuration: %s", strings.Join(problems, "; "))
}

func (c Config) checkCPU(m machine.Machine, bad func(string, ...any)) {
	o := c.CPU
	if gone := o.Reserved.Minus(m.CPUs).Minus(m.Offline); !gone.IsEmpty() { // a CPU that went offline must not keep the node down
		bad("reservedSystemCPUs: %v: no CPU of this machine (%v are, and offline %v)", gone, m.CPUs, m.Offline)
	}
	switch n := max(o.Reserved.Len(), o.ReservedCount); {
	case n <= 0:
		bad("cpuManagerPolicy: static: reserve some CPU with systemReserved, kubeReserved or reservedSystemCPUs: else nothing would be left to share")
	case n > m.CPUs.Len():
		bad("cpuManagerPolicy: static: %d CPUs are reserved of %d", n, m.CPUs.Len())
	}
	for _, pair := range []struct {
		a, b         bool
		nameA, nameB string
	}{
		{o.FullPCPUsOnly, o.DistributeCores, "full-pcpus-only", "distribute-cpus-across-cores"},
		{o.DistributeNUMA, o.DistributeCores, "distribute-cpus-across-numa", "distribute-cpus-across-cores"},
		{o.PreferAlignByCache, o.DistributeCores, "prefer-align-cpus-by-uncorecache", "distribute-cpus-across-cores"},
		{o.PreferAlignByCache, o.DistributeNUMA, "prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"},
	} {
		if pair.a && pair.b {
			bad("cpuManagerPolicyOptions: %s and %s contradict each other: keep one", pair.nameA, pair.nameB)
		}
	}
	if !o.AlignBySocket {
		return
	}
	if c.Topology.Policy == PolicySingleNUMANode {
		bad("cpuManagerPolicyOptions: align-by-socket: contradicts topologyManagerPolicy single-numa-node: keep one")
	}
	if sockets, nodes := len(m.Sockets), nodesWithCPUs(m); sockets > nodes {
		bad("cpuManagerPolicyOptions: align-by-socket: %d sockets are more than %d NUMA nodes with CPUs: a socket is no more than a node here", sockets, nodes)
	}
}

func nodesWithCPUs(m machine.Machine) int {
	n := 0
	for _, node := range m.NUMANodes {
		if !node.CPUs.IsEmpty() {
			n++
		}
	}
	return n
}

// KindName returns the resource name of memory in pages of that size; 0 is ordinary memory.
func KindName(size unit.Bytes) string {
	if size == 0 {
		return "memory"
	}
	return "hugepages-" + size.String()
}
