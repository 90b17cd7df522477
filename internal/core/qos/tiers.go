package qos

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Requested is what all pods on a node request, by QoS class. The values of the tiers follow from it.
type Requested struct {
	BurstableCPU     unit.MilliCPU
	BurstableMemory  unit.Bytes
	GuaranteedMemory unit.Bytes
}

// Add adds the requests of p.
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

// TierPolicy is the configuration of the tiers.
type TierPolicy struct {
	Memory MemoryPolicy

	// ReservedPercent (qosReserved, behind the gate QOSReserved) is which part of the requests of a QoS class is
	// withheld from the classes below it, so that they cannot use that memory. If ReservesMemory is set, 0 percent
	// limits each tier to allocatable memory. If it is not set, tiers have no such limit.
	ReservesMemory  bool
	ReservedPercent int64 // 0 to 100
	// Allocatable is the node's allocatable memory.
	Allocatable unit.Bytes
}

// TierValues returns the values of the group of all Burstable or all BestEffort pods. Guaranteed pods have no tier: in
// the node's group they compete directly with the two tiers.
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

// NodeProtection returns the memory of the node's group that the kernel must not reclaim. The protection of the pods in
// it is effective only up to the protection of the group above (memory.min in cgroup-v2.rst).
func NodeProtection(requested Requested, policy MemoryPolicy) Values {
	if !policy.On {
		return Values{}
	}
	return Values{MemoryMin: unit.Of(policy.protected(requested.GuaranteedMemory + requested.BurstableMemory))}
}

// NodeValues returns the values of the node's group (kubepods). The hard eviction threshold is not subtracted: pods may
// use that memory and are then evicted, and not OOM-killed at its edge.
func NodeValues(
	cpu unit.MilliCPU, memory unit.Bytes, pids unit.Limit[int64], hugePages map[unit.Bytes]unit.Bytes, cpus idset.Set,
) Values {
	return Values{
		CPUShares: unit.Of(SharesOf(cpu)),
		Memory:    unit.LimitTo(memory),
		PIDs:      pids,
		HugePages: hugePages,
		CPUs:      cpus,
	}
}
