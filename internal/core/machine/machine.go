// Package machine is the machine as a value: what it has, how its parts lie to each other, and who it is. Everything that
// decides about a machine takes it as a Machine, so that a described machine, a simulated one and this one are the same
// to it.
//
// # Model
//
// A machine has online logical CPUs and NUMA nodes. Each level of the processor's topology (sockets, dies, L3 groups,
// cores) is a partition of the online CPUs: every CPU is in exactly one group of each level. A core is the set of its
// threads. Levels above the core need not nest: a socket may hold several NUMA nodes, and a NUMA node several sockets.
// NUMA nodes are a partition too, except that a node may have no CPUs (memory expanders, GPU memory) or no memory.
//
// Ids are the hardware's names: sparse ({0,2-4} is a real machine), never an index. What the hardware numbers is keyed by
// its number; cores and dies, whose numbers are unique only within a socket, are named by their lowest CPU.
//
// # Invariants
//
// A Machine that passed Check is complete: every level covers every CPU, and distances are known between all nodes.
// Complete fills in what a description may leave out.
//
// # What it does not do
//
// It observes nothing: internal/host/machineinfo reads a real machine, internal/kube/machinefile a described one. It knows
// nothing of what is in use.
package machine

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// NUMAID is the kernel's number of a NUMA node.
type NUMAID int

// NUMAIDMax is the largest number of a NUMA node: Linux has CONFIG_NODES_SHIFT of at most 10 on every architecture.
const NUMAIDMax NUMAID = 1<<10 - 1

// SocketID is the number of a socket (the kernel's physical_package_id).
type SocketID int

// CacheID is the number of a cache among those of its level.
type CacheID int

// Machine is what a machine has.
type Machine struct {
	CPUs     idset.Set // online logical CPUs
	Offline  idset.Set // present, but switched off
	Isolated idset.Set // taken out of the kernel's load balancing (isolcpus); among CPUs and Offline

	Memory    unit.Bytes           // usable by the kernel (MemTotal). Kernels count nodes separately: it need not be their sum
	HugePages map[unit.Bytes]int64 // page size to how many are set aside, on all nodes; a size the kernel knows but has none of is 0
	Swap      unit.Bytes
	PIDs      int64 // most processes and threads at once; 0: not known

	NUMANodes []NUMANode             // by id; a machine without NUMA has one, 0
	Sockets   map[SocketID]idset.Set // partition of CPUs
	Dies      []idset.Set            // partition of CPUs, by lowest
	L3        map[CacheID]idset.Set  // partition of CPUs by the last-level cache they share; where none is known, by socket
	Cores     []idset.Set            // partition of CPUs into the threads of one core, by lowest

	NodeFS  Filesystem
	ImageFS Filesystem // may be the same file system as NodeFS

	Devices    map[string]map[string][]NUMAID // extended resource to device id to the nodes it is near; none: no preference
	PCIDevices []PCIDevice                    // by address; those whose node is known

	Identity Identity
}

// NUMANode is one NUMA node.
type NUMANode struct {
	ID        NUMAID
	CPUs      idset.Set            // online; empty: memory only
	Memory    unit.Bytes           // usable by the kernel; 0: CPUs only
	Installed unit.Bytes           // as the firmware handed it over, before the kernel took its share; 0: not known
	HugePages map[unit.Bytes]int64 // page size to how many are set aside here; sizes without pages are left out
	Distances map[NUMAID]int       // to every node, itself included, in ACPI's scale: 10 is local
}

// Filesystem is one file system.
type Filesystem struct {
	Capacity unit.Bytes
	Inodes   int64
}

// PCIDevice is one function of a PCI device.
type PCIDevice struct {
	Address               string // domain:bus:device.function, as in 0000:3b:00.0
	Class, Vendor, Device uint32 // class is 24 bits, the others 16
	NUMANode              NUMAID
}

// Identity tells a machine from others and from its former selves.
type Identity struct {
	MachineID     string // stable over reboots
	SystemUUID    string // the firmware's; MachineID where it has none
	BootID        string // another one at each boot
	KernelVersion string
	OSImage       string // like "Debian GNU/Linux 12 (bookworm)"
	Architecture  string // as Go spells it: amd64
}

// NUMANode returns the node of that id, and whether there is one.
func (m Machine) NUMANode(id NUMAID) (NUMANode, bool) {
	i, ok := slices.BinarySearchFunc(m.NUMANodes, id, func(n NUMANode, id NUMAID) int { return int(n.ID - id) })
	if !ok {
		return NUMANode{}, false
	}
	return m.NUMANodes[i], true
}

// Installed returns m with the memory of each node as the firmware handed it over, where that is known. What a kernel
// keeps for itself differs from version to version and from boot to boot; this does not.
func (m Machine) Installed() Machine {
	m.NUMANodes = slices.Clone(m.NUMANodes)
	m.Memory = 0
	for i := range m.NUMANodes {
		n := &m.NUMANodes[i]
		if n.Installed > 0 {
			n.Memory, n.Installed = n.Installed, 0
		}
		m.Memory += n.Memory
	}
	return m
}
