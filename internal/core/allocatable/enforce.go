package allocatable

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Enforced returns the values of the cgroup of all pods: capacity without the reservations, or the whole machine when
// the configuration does not enforce that. The eviction threshold is not subtracted from memory.
func (l Line) Enforced() qos.Values {
	cpu := l.CPU.Capacity
	memory := l.Memory.Capacity
	pids := l.PIDs.Capacity
	if l.enforcePods {
		cpu = l.CPU.Allocatable
		memory = l.Unreserved()
		pids = l.PIDs.Allocatable
	}
	bound := unit.Limit[int64]{}
	if l.PIDs.Capacity > 0 {
		bound = unit.LimitTo(pids)
	}
	huge := map[unit.Bytes]unit.Bytes{}
	for _, h := range l.HugePages {
		huge[h.Size] = h.Allocatable
	}
	return qos.NodeValues(cpu, memory, bound, huge, l.cpus)
}

// Unreserved returns the memory that is not reserved, whether the reservations are enforced or not. It is more than
// allocatable memory: the eviction threshold and huge pages are not subtracted.
func (l Line) Unreserved() unit.Bytes {
	return max(0, l.Memory.Capacity-plus(l.Memory.System, l.Memory.Kube))
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
func (l Line) EnforcedOn(g Group, compressible, protect bool) qos.Values {
	r := l.system
	if g == KubeReserved {
		r = l.kube
	}
	var v qos.Values
	if r.CPU > 0 {
		v.CPUShares = unit.Of(qos.SharesOf(r.CPU))
	}
	if compressible {
		return v
	}
	if r.Memory > 0 {
		v.Memory = unit.LimitTo(r.Memory)
		if protect {
			v.MemoryMin = unit.Of(r.Memory)
		}
	}
	if r.PIDs > 0 {
		v.PIDs = unit.LimitTo(r.PIDs)
	}
	return v
}
