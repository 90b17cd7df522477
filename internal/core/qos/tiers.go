package qos

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Requested is what the pods on a node request together, by class: what their tiers follow.
type Requested struct {
	BurstableCPU     unit.MilliCPU
	BurstableMemory  unit.Bytes
	GuaranteedMemory unit.Bytes
}

// Add counts p.
func (r *Requested) Add(p Pod) {
	requests := Requests(p)
	switch ClassOf(p) {
	case Guaranteed:
		r.GuaranteedMemory += requests.Memory.OrZero()
	case Burstable:
		r.BurstableCPU += requests.CPU.OrZero()
		r.BurstableMemory += requests.Memory.OrZero()
	}
}

// TierPolicy is what a node's configuration says about tiers.
type TierPolicy struct {
	Memory MemoryPolicy

	// ReservedPercent (qosReserved, behind the gate QOSReserved) is how much of what a class requests is kept from the
	// classes below it, so that they cannot take memory that was promised. ReservesMemory tells 0 percent, which bounds
	// each tier by what is allocatable, from no such setting.
	ReservesMemory  bool
	ReservedPercent int64 // 0 to 100
	Allocatable     unit.Bytes
}

// TierValues returns the values of the group of Burstable or BestEffort pods. Guaranteed pods have no tier of their own:
// they weigh directly against the other two in the node's group.
func TierValues(class Class, requested Requested, policy TierPolicy) Values {
	v := Values{CPUShares: unit.Of(SharesMin)}
	bound := policy.Allocatable - requested.GuaranteedMemory*unit.Bytes(policy.ReservedPercent)/100
	if class == Burstable {
		v.CPUShares = unit.Of(SharesOf(requested.BurstableCPU))
		if policy.Memory.On {
			v.MemoryLow = unit.Of(policy.Memory.protected(requested.BurstableMemory))
		}
	} else {
		bound -= requested.BurstableMemory * unit.Bytes(policy.ReservedPercent) / 100
	}
	if policy.ReservesMemory {
		v.Memory = unit.LimitTo(max(0, bound))
	}
	return v
}

// NodeProtection returns what of the node's group the kernel must not reclaim: what protects the pods in it counts only as
// far as the group above is protected too (memory.min in cgroup-v2.rst).
func NodeProtection(requested Requested, policy MemoryPolicy) Values {
	if !policy.On {
		return Values{}
	}
	return Values{MemoryMin: unit.Of(policy.protected(requested.GuaranteedMemory + requested.BurstableMemory))}
}

// NodeValues returns the values of the node's group (kubepods). The hard eviction threshold is not subtracted: pods may
// reach into it and are then evicted, not OOM-killed at its edge.
func NodeValues(cpu unit.MilliCPU, memory unit.Bytes, pids unit.Limit[int64], hugePages map[unit.Bytes]unit.Bytes, cpus idset.Set) Values {
	return Values{CPUShares: unit.Of(SharesOf(cpu)), Memory: unit.LimitTo(memory), PIDs: pids, HugePages: hugePages, CPUs: cpus}
}
