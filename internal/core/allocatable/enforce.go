package allocatable

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Enforced returns the values of the group of all pods: the line without the eviction threshold, or the whole machine
// when the configuration does not enforce it.
func (l Line) Enforced() qos.Values {
	cpu, memory, pids := l.CPU.Capacity, l.Memory.Capacity, l.PIDs.Capacity
	if l.enforcePods {
		cpu, memory, pids = l.CPU.Allocatable, l.Unreserved(), l.PIDs.Allocatable
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

// Unreserved returns the memory that is reserved for nobody, whether that is enforced or not. It is more than what is
// allocatable: the eviction threshold and huge pages are not subtracted.
func (l Line) Unreserved() unit.Bytes {
	return max(0, l.Memory.Capacity-plus(l.Memory.System, l.Memory.Kube))
}

// Group is a cgroup that something is reserved for, as the configuration speaks of it.
type Group string

// Groups.
const (
	SystemReserved Group = "system-reserved"
	KubeReserved   Group = "kube-reserved"
)

// EnforcedOn returns the values of a reserved group. A reservation is a bound too: what is kept for the system is all it
// gets, of CPU only when others want it. With compressible only CPU is set. What nothing was reserved of stays as it is.
// protect has the kernel keep the reserved memory from reclaim (MemoryQoS).
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
