package qos

import (
	"math"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// MemoryPolicy is what a node's configuration says about memory.min, memory.low and memory.high (KEP-2570, behind the gate
// MemoryQoS, cgroup v2 only). The zero MemoryPolicy sets none of them.
type MemoryPolicy struct {
	On       bool
	Tiered   bool       // memoryReservationPolicy TieredReservation: requests are protected from reclaim
	Factor   float64    // memoryThrottlingFactor: where between request and limit throttling begins; above 0, at most 1
	NoLimit  unit.Bytes // stands for the limit of a container without one: what the node can give to pods; 0: not known
	PageSize unit.Bytes // of the kernel, to which memory.high is rounded down
}

// protected is what is kept from reclaim for a request.
func (m MemoryPolicy) protected(request unit.Bytes) unit.Bytes {
	if !m.Tiered {
		return 0
	}
	return request
}

// protectPod sets a pod's protection: of a Guaranteed pod for good, of a Burstable one as long as others have some to give.
func (m MemoryPolicy) protectPod(v *Values, class Class, request unit.Bytes) {
	switch {
	case !m.On || !m.Tiered || request <= 0:
	case class == Guaranteed:
		v.MemoryMin = unit.Of(request)
	default:
		v.MemoryLow = unit.Of(request)
	}
}

// protectContainer sets a container's protection and the mark where it is throttled. Where nothing is protected it says so,
// to undo what another policy set.
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
	if request == limit { // there is nothing between the two, or nothing was asked for
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

// SwapPolicy is what a node's configuration says about swap (memorySwap). The zero SwapPolicy says nothing, which is right
// where the kernel does not account for swap.
type SwapPolicy struct {
	Accounted bool // the kernel has a swap controller
	Unified   bool // cgroup v2
	Limited   bool // swapBehavior LimitedSwap, else NoSwap
	Machine   unit.Bytes
	Total     unit.Bytes // swap space of the machine
}

// limit returns how much swap container c of p may use, on v1 how much memory and swap together: as much as its memory
// limit, which leaves none for swap alone. With LimitedSwap on v2, a Burstable container that requests some of its memory
// and not all gets that share of the machine's swap that its request is of the machine's memory (KEP-2400).
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
