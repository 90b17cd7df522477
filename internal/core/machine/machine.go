// Package machine describes a machine as a value: its CPUs, memory, topology, devices and identity. All code that
// decides about a machine takes a Machine. So it makes no difference whether the machine is real, simulated or only
// described.
//
// # Model
//
// A machine has online logical CPUs and NUMA nodes. Each level of the processor's topology (sockets, dies, L3 groups,
// cores) is a partition of the online CPUs: every CPU is in exactly one group of each level. A core is the set of its
// threads. Levels above the core need not nest: a socket may contain several NUMA nodes, and a NUMA node several
// sockets. NUMA nodes are a partition too, except that a node may have no CPUs (memory expanders, GPU memory) or no
// memory.
//
// Ids are the hardware's names. They may have gaps ({0,2-4} is a real machine) and are never indexes. Groups that the
// hardware numbers are identified by that number. Cores and dies, whose numbers are unique only within a socket, are
// identified by their lowest CPU.
//
// # Invariants
//
// A Machine that passed Check is complete: every level covers every CPU, and distances are known between all nodes.
// Complete fills in what a description may leave out.
//
// # What it does not do
//
// It observes nothing: internal/host/machineinfo reads a real machine, and internal/kube/machinefile a description. It
// does not say what is in use.
package machine

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// NUMAID is the kernel's id of a NUMA node.
type NUMAID int

// NUMAIDMax is the largest id of a NUMA node: in Linux CONFIG_NODES_SHIFT is at most 10 on every architecture.
const NUMAIDMax NUMAID = 1<<10 - 1

// SocketID is the id of a socket (the kernel's physical_package_id).
type SocketID int

// CacheID is the id of a cache among the caches of its level.
type CacheID int

// Machine is the description of a machine.
type Machine struct {
	CPUs     idset.Set // online logical CPUs
	Offline  idset.Set // present, but switched off
	Isolated idset.Set // excluded from the kernel's load balancing (isolcpus); part of CPUs and Offline

	// Usable by the kernel (MemTotal); not always the sum of the nodes, because the kernel counts them separately.
	Memory unit.Bytes
	// By page size: number of pages set aside on all nodes; 0 for a size that the kernel supports but has no pages of.
	HugePages map[unit.Bytes]int64
	Swap      unit.Bytes
	PIDs      int64 // limit of processes and threads; 0: not known

	NUMANodes []NUMANode             // sorted by id; a machine without NUMA has one, with id 0
	Sockets   map[SocketID]idset.Set // partition of CPUs
	Dies      []idset.Set            // partition of CPUs, sorted by lowest CPU
	L3        map[CacheID]idset.Set  // partition of CPUs by shared last-level cache; by socket if that is not known
	Cores     []idset.Set            // partition of CPUs into the threads of one core, sorted by lowest CPU

	NodeFS  Filesystem
	ImageFS Filesystem // may be the same file system as NodeFS

	// By extended resource and device id: the nodes that the device is near; none: no preference.
	Devices    map[string]map[string][]NUMAID
	PCIDevices []PCIDevice // sorted by address; only devices whose NUMA node is known

	Identity Identity
}

// NUMANode is one NUMA node.
type NUMANode struct {
	ID        NUMAID
	CPUs      idset.Set  // online; empty: memory only
	Memory    unit.Bytes // usable by the kernel; 0: the node has CPUs only
	Installed unit.Bytes // as reported by the firmware, before the kernel reserved its part; 0: not known
	// By page size: number of pages set aside on this node; sizes without pages are left out.
	HugePages map[unit.Bytes]int64
	Distances map[NUMAID]int // to every node including itself, on ACPI's scale: 10 is local
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

// Identity identifies a machine and its present boot.
type Identity struct {
	MachineID     string // stable over reboots
	SystemUUID    string // the firmware's; MachineID if it has none
	BootID        string // changes with each boot
	KernelVersion string
	OSImage       string // like "Debian GNU/Linux 12 (bookworm)"
	Architecture  string // as Go spells it: amd64
}

// NUMANode returns the node with that id, and whether it exists.
func (m Machine) NUMANode(id NUMAID) (NUMANode, bool) {
	i, ok := slices.BinarySearchFunc(m.NUMANodes, id, func(n NUMANode, id NUMAID) int { return int(n.ID - id) })
	if !ok {
		return NUMANode{}, false
	}
	return m.NUMANodes[i], true
}

// Installed returns m with the memory of each node as reported by the firmware, where that is known. How much memory a
// kernel reserves for itself differs between versions and between boots. The firmware's number does not.
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
