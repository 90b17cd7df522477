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

// Config is the node's configuration of the managers. With the zero Config nothing is assigned except devices, and all
// CPUs are shared.
type Config struct {
	CPU      CPUConfig
	Memory   MemoryConfig
	Topology TopologyConfig
}

// CPUConfig is the CPU manager's part. The other fields matter only if Static is set.
type CPUConfig struct {
	Static bool // cpuManagerPolicy: static

	// Reserved is reservedSystemCPUs: never exclusive; when empty or all offline, ReservedCount CPUs are chosen.
	Reserved      idset.Set
	ReservedCount int // number of reserved CPUs; with Reserved, its size

	FullPCPUsOnly      bool // assign whole cores only
	StrictReservation  bool // reserved CPUs are not in the shared pool either
	DistributeNUMA     bool // spread over several nodes evenly, instead of filling one after the other
	DistributeCores    bool // spread over cores, instead of taking whole cores first
	AlignBySocket      bool // CPUs of one socket count as aligned, as those of one node do
	PreferAlignByCache bool // prefer whole groups of CPUs that share a last-level cache, then parts of few groups
}

// Names of options of cpuManagerPolicyOptions.
const (
	optionFullPCPUs         = "full-pcpus-only"
	optionStrictReservation = "strict-cpu-reservation"
	optionDistributeNUMA    = "distribute-cpus-across-numa"
	optionDistributeCores   = "distribute-cpus-across-cores"
	optionAlignBySocket     = "align-by-socket"
	optionAlignByCache      = "prefer-align-cpus-by-uncorecache"
)

// Options returns the fields that are options of cpuManagerPolicyOptions, by their names.
func (c *CPUConfig) Options() map[string]*bool {
	return map[string]*bool{
		optionFullPCPUs:         &c.FullPCPUsOnly,
		optionStrictReservation: &c.StrictReservation,
		optionDistributeNUMA:    &c.DistributeNUMA,
		optionDistributeCores:   &c.DistributeCores,
		optionAlignBySocket:     &c.AlignBySocket,
		optionAlignByCache:      &c.PreferAlignByCache,
	}
}

// options returns the rules by which package cpus chooses.
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
	// Static: memoryManagerPolicy: Static.
	Static bool
	// Reserved is reservedMemory: by node and page size (0: ordinary memory), in bytes.
	Reserved map[machine.NUMAID]map[unit.Bytes]unit.Bytes
}

// Policy says how well the resources of a pod must be aligned to NUMA nodes.
type Policy = hints.Policy

// The policies, from the least to the most strict.
const (
	PolicyNone           = hints.PolicyNone
	PolicyBestEffort     = hints.PolicyBestEffort
	PolicyRestricted     = hints.PolicyRestricted
	PolicySingleNUMANode = hints.PolicySingleNUMANode
)

// TopologyConfig is the topology manager's part.
type TopologyConfig struct {
	Policy        Policy
	PodScope      bool // one hint for the whole pod; otherwise one for each container
	PreferClosest bool // among sets with equally many nodes prefer the one with the smallest distances
}

// check returns everything in c that contradicts m or itself, in one error.
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
	// A CPU that went offline is no error, so that the agent still starts.
	if gone := o.Reserved.Minus(m.CPUs).Minus(m.Offline); !gone.IsEmpty() {
		bad("reservedSystemCPUs: %v: this machine has no such CPUs (online %v, offline %v)", gone, m.CPUs, m.Offline)
	}
	switch n := max(o.Reserved.Len(), o.ReservedCount); {
	case n <= 0:
		bad("cpuManagerPolicy: static: reserve some CPU with systemReserved, kubeReserved or reservedSystemCPUs: else " +
			"nothing would be left to share")
	case n > m.CPUs.Len():
		bad("cpuManagerPolicy: static: %d CPUs are reserved of %d", n, m.CPUs.Len())
	}
	for _, pair := range []struct {
		a, b         bool
		nameA, nameB string
	}{
		{o.FullPCPUsOnly, o.DistributeCores, optionFullPCPUs, optionDistributeCores},
		{o.DistributeNUMA, o.DistributeCores, optionDistributeNUMA, optionDistributeCores},
		{o.PreferAlignByCache, o.DistributeCores, optionAlignByCache, optionDistributeCores},
		{o.PreferAlignByCache, o.DistributeNUMA, optionAlignByCache, optionDistributeNUMA},
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
		bad("cpuManagerPolicyOptions: align-by-socket: %d sockets are more than %d NUMA nodes with CPUs: a socket is no "+
			"more than a node here", sockets, nodes)
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

// KindName returns the resource name of memory with that page size; 0 is ordinary memory.
func KindName(size unit.Bytes) string {
	if size == 0 {
		return "memory"
	}
	return "hugepages-" + size.String()
}
