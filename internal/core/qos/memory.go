package qos

import (
	"math"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// MemoryPolicy is the configuration of memory.min, memory.low and memory.high (KEP-2570, behind the gate MemoryQoS,
// cgroup v2 only). The zero MemoryPolicy sets none of them.
type MemoryPolicy struct {
	// On: the gate MemoryQoS is on.
	On     bool
	Tiered bool // memoryReservationPolicy TieredReservation: memory requests are protected from reclaim
	// Factor is memoryThrottlingFactor: at which part of the way from request to limit throttling begins; above 0, at most
	// 1.
	Factor   float64
	NoLimit  unit.Bytes // used as the limit of a container without one: allocatable memory of the node; 0: not known
	PageSize unit.Bytes // of the kernel; memory.high is rounded down to a multiple of it
}

// protected returns how much of a request is protected from reclaim.
func (m MemoryPolicy) protected(request unit.Bytes) unit.Bytes {
	if !m.Tiered {
		return 0
	}
	return request
}

// protectPod sets a pod's protection: memory.min for a Guaranteed pod; for a Burstable one memory.low, which yields if
// no other memory can be reclaimed.
func (m MemoryPolicy) protectPod(v *Values, class Class, request unit.Bytes) {
	switch {
	case !m.On || !m.Tiered || request <= 0:
	case class == Guaranteed:
		v.MemoryMin = unit.Of(request)
	default:
		v.MemoryLow = unit.Of(request)
	}
}

// protectContainer sets a container's protection and the usage at which it is throttled. If nothing is protected it
// writes zeros, to undo what another policy has set.
func (m MemoryPolicy) protectContainer(v *Values, class Class, c Container) {
	if !m.On {
		return
	}
	request, limit := c.Requests.Memory.OrZero(), c.Limits.Memory.OrZero()
	switch {
	case !m.Tiered || request == 0:
		v.MemoryMin, v.MemoryLow = unit.Of(unit.Bytes(0)), unit.Of(unit.Bytes(0))
	case class == Guaranteed:
		v.MemoryMin = unit.Of(request)
	default:
		v.MemoryLow = unit.Of(request)
	}
	if request == limit { // nothing is between the two, or nothing was requested
		return
	}
	if limit == 0 {
		limit = m.NoLimit
	}
	if limit == 0 || m.PageSize <= 0 {
		return
	}
	mark := math.Floor(float64(request) + (float64(limit)-float64(request))*m.Factor)
	if high := unit.Bytes(mark/float64(m.PageSize)) * m.PageSize; high > request {
		v.MemoryHigh = unit.LimitTo(high)
	}
}

// SwapPolicy is the configuration of swap (memorySwap). The zero SwapPolicy sets nothing, which is right if the kernel
// does not account for swap.
type SwapPolicy struct {
	Accounted bool       // the kernel has a swap controller
	Unified   bool       // cgroup v2
	Limited   bool       // swapBehavior LimitedSwap; otherwise NoSwap
	Machine   unit.Bytes // memory of the machine
	Total     unit.Bytes // swap space of the machine
}

// limit returns how much swap container c of p may use. On v1 that is memory and swap together: as much as its memory
// limit, which leaves nothing for swap. With LimitedSwap on v2, a Burstable container that requests some memory, but
// less than its limit, gets a share of the machine's swap: its memory request divided by the machine's memory
// (KEP-2400).
func (s SwapPolicy) limit(p Pod, c Container, memory unit.Limit[unit.Bytes]) unit.Limit[unit.Bytes] {
	if !s.Accounted {
		return unit.Limit[unit.Bytes]{}
	}
	if !s.Unified {
		return memory
	}
	request, limit := c.Requests.Memory.OrZero(), c.Limits.Memory.OrZero()
	if !s.Limited || p.Critical || ClassOf(p) != Burstable || request == limit || s.Machine <= 0 || request > s.Machine {
		return unit.LimitTo(unit.Bytes(0))
	}
	return unit.LimitTo(unit.Bytes(float64(request) / float64(s.Machine) * float64(s.Total)))
}
