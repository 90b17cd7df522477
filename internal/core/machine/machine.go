// Package machine is the machine as a value: what it has, and who it is. Everything that decides about a machine takes
// it as a Machine, so that a described machine, a simulated one and this one are the same to it.
//
// It observes nothing: internal/host/procfs and internal/host/disk read a real machine. NUMA nodes, caches and devices
// join it with their own issue.
package machine

import (
	"fmt"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Machine is what a machine has.
type Machine struct {
	CPUs      idset.Set            // online logical CPUs
	Memory    unit.Bytes           // usable by the kernel (MemTotal)
	HugePages map[unit.Bytes]int64 // page size to how many are set aside; a size the kernel knows but has none of is 0
	Swap      unit.Bytes
	PIDs      int64 // most processes and threads at once; 0: not known
	NodeFS    Filesystem
	ImageFS   Filesystem // may be the same file system as NodeFS

	Identity Identity
}

// Filesystem is one file system.
type Filesystem struct {
	Capacity unit.Bytes
	Inodes   int64
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

// Check returns everything that cannot be true of a machine, in one error.
func (m Machine) Check() error {
	var problems []string
	bad := func(field string, value any, rule string) {
		problems = append(problems, fmt.Sprintf("%s: %v: %s", field, value, rule))
	}
	if m.CPUs.IsEmpty() {
		bad("cpus", "none", "want at least one")
	}
	if m.Memory <= 0 {
		bad("memory", m.Memory, "want more than nothing")
	}
	for size, count := range m.HugePages {
		if size <= 0 || size&(size-1) != 0 {
			bad("hugepages", size, "want a page size that is a power of two")
		}
		if count < 0 {
			bad(fmt.Sprintf("hugepages %v", size), count, "want a count")
		}
	}
	if m.Swap < 0 {
		bad("swap", m.Swap, "want none or more")
	}
	if m.NodeFS.Capacity <= 0 {
		bad("nodefs", m.NodeFS.Capacity, "want more than nothing")
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("check machine: %s", strings.Join(problems, "; "))
}
