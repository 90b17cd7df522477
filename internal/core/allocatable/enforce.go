package allocatable

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Enforced returns the values of the cgroup of all pods: capacity without the reservations, or the whole machine when
// the configuration does not enforce that. The eviction threshold is not subtracted from memory.
func (r Resources) Enforced() qos.Values {
	cpu := r.CPU.Capacity
	memory := r.Memory.Capacity
	pids := r.PIDs.Capacity
	if r.enforcePods {
		cpu = r.CPU.Allocatable
		memory = r.Unreserved()
		pids = r.PIDs.Allocatable
	}
	bound := unit.Limit[int64]{}
	if r.PIDs.Capacity > 0 {
		bound = unit.LimitTo(pids)
	}
	huge := map[unit.Bytes]unit.Bytes{}
	for _, h := range r.HugePages {
		huge[h.Size] = h.Allocatable
	}
	return qos.NodeValues(cpu, memory, bound, huge, r.cpus)
}

// Unreserved returns the memory that is not reserved, whether the reservations are enforced or not. It is more than
// allocatable memory: the eviction threshold and huge pages are not subtracted.
func (r Resources) Unreserved() unit.Bytes {
	return max(0, r.Memory.Capacity-plus(r.Memory.System, r.Memory.Kube))
}

// Group is a cgroup with a reservation, spelled as in enforceNodeAllocatable.
type Group string

// The groups.
const (
	SystemReserved Group = "system-reserved"
	KubeReserved   Group = "kube-reserved"
)

// EnforcedOn returns the values of a reserved cgroup. A reservation is also an upper limit: the processes in the group
// get no more than the reservation. For CPU that is so only while others want the CPU. If compressible is set, only CPU
// is limited. A resource without a reservation keeps the value that the cgroup has. protect makes the kernel exempt the
// reserved memory from reclaim (MemoryQoS).
func (r Resources) EnforcedOn(g Group, compressible, protect bool) qos.Values {
	reserved := r.system
	if g == KubeReserved {
		reserved = r.kube
	}
	var v qos.Values
	if reserved.CPU > 0 {
		v.CPUShares = unit.Of(qos.SharesOf(reserved.CPU))
	}
	if compressible {
		return v
	}
	if reserved.Memory > 0 {
		v.Memory = unit.LimitTo(reserved.Memory)
		if protect {
			v.MemoryMin = unit.Of(reserved.Memory)
		}
	}
	if reserved.PIDs > 0 {
		v.PIDs = unit.LimitTo(reserved.PIDs)
	}
	return v
}
