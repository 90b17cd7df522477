package qos

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Shares is the relative CPU weight of a cgroup in v1's scale, where 1024 is one CPU. v2's scale is Weight.
type Shares int64

// Origin: SCHED_FIXEDPOINT limits of the kernel's fair scheduler (MIN_SHARES, MAX_SHARES in kernel/sched/sched.h).
const (
	SharesMin    Shares = 2
	SharesMax    Shares = 262144
	sharesPerCPU        = 1024
)

// Weight returns s in cgroup v2's scale [1, 10000]. It is the linear map of the kubelet, by which pods and tiers are
// weighed; runtimes have their own map for containers. Pods are compared only with pods, so both may stand.
func (s Shares) Weight() int64 {
	switch {
	case s >= SharesMax:
		return 10000
	case s < SharesMin:
		return 1
	}
	return 1 + int64(s-SharesMin)*9999/int64(SharesMax-SharesMin)
}

// SharesOf returns the shares of a CPU request. No request means the least weight the kernel has, not its default.
func SharesOf(cpu unit.MilliCPU) Shares {
	return min(max(Shares(int64(cpu)*sharesPerCPU/int64(unit.CPU)), SharesMin), SharesMax)
}

// Values are what one cgroup is set to. The zero Values say nothing.
type Values struct {
	CPUShares unit.Amount[Shares]
	CPUQuota  unit.Limit[time.Duration] // CPU time per CPUPeriod; written in microseconds
	CPUPeriod time.Duration             // goes with CPUQuota; 0: keep
	Memory    unit.Limit[unit.Bytes]
	PIDs      unit.Limit[int64]
	HugePages map[unit.Bytes]unit.Bytes // page size to bytes; nil: keep all; a size missing from a non-nil map is limited to 0
	CPUs      idset.Set                 // the group may run on; empty: keep

	// The rest is cgroup v2's; v1 has nothing like it, and does not get it.
	MemoryMin  unit.Amount[unit.Bytes] // never reclaimed
	MemoryLow  unit.Amount[unit.Bytes] // reclaimed last
	MemoryHigh unit.Limit[unit.Bytes]  // above it the group is throttled and reclaimed from, not killed
	Swap       unit.Limit[unit.Bytes]  // beside Memory, not together with it as on v1
}

// Policy is what a node's configuration says about the values.
type Policy struct {
	CFSQuota  bool          // enforce CPU limits at all (cpuCFSQuota); default true
	CFSPeriod time.Duration // over which CPU limits are enforced (cpuCFSQuotaPeriod); default 100 ms, kernel allows 1 ms to 1 s
	PodPIDs   int64         // most processes and threads per pod (podPidsLimit); 0 or less: no limit
	Memory    MemoryPolicy
	Swap      SwapPolicy
}

// DefaultPolicy is the kubelet's.
func DefaultPolicy() Policy {
	return Policy{CFSQuota: true, CFSPeriod: CFSPeriodDefault, PodPIDs: -1}
}

const (
	// CFSPeriodDefault is the kernel's own default (kernel/sched/fair.c). Longer periods mean rarer but longer stalls.
	CFSPeriodDefault = 100 * time.Millisecond

	// cfsQuotaMin is the least quota the kernel accepts (min_cfs_quota_period in kernel/sched/core.c).
	cfsQuotaMin = time.Millisecond
)

// quotaOf returns the CPU time per period that a CPU limit allows. 500m of 100 ms is 50 ms.
func quotaOf(cpu unit.MilliCPU, period time.Duration) time.Duration {
	micros := int64(cpu) * period.Microseconds() / int64(unit.CPU)
	return max(time.Duration(micros)*time.Microsecond, cfsQuotaMin)
}

// PodValues returns the values of p's own group. A pod that is not Guaranteed is bound only by limits that each of its
// containers states (or the pod as a whole): otherwise one container's limit would bind its neighbours.
func PodValues(p Pod, policy Policy) Values {
	requests := Requests(p)
	cpuLimited, memoryLimited := true, true
	limit := limits(p, func(a Amounts) {
		cpuLimited = cpuLimited && a.CPU.OrZero() != 0
		memoryLimited = memoryLimited && a.Memory.OrZero() != 0
	})
	if p.Level != nil {
		cpuLimited = cpuLimited || p.Level.Limits.CPU.OrZero() != 0
		memoryLimited = memoryLimited || p.Level.Limits.Memory.OrZero() != 0
	}
	class := ClassOf(p)
	v := Values{
		CPUShares: unit.Of(SharesOf(requests.CPU.OrZero())),
		CPUQuota:  unit.Unlimited[time.Duration](),
		CPUPeriod: policy.CFSPeriod,
		Memory:    unit.Unlimited[unit.Bytes](),
		HugePages: merge(requests.HugePages, nil),
		PIDs:      unit.Unlimited[int64](),
	}
	if v.HugePages == nil {
		v.HugePages = map[unit.Bytes]unit.Bytes{}
	}
	if policy.PodPIDs > 0 {
		v.PIDs = unit.LimitTo(policy.PodPIDs)
	}
	policy.Memory.protectPod(&v, class, requests.Memory.OrZero())
	if class == BestEffort {
		v.CPUShares = unit.Of(SharesMin)
		return v
	}
	if (class == Guaranteed || cpuLimited) && policy.CFSQuota && limit.CPU.OrZero() > 0 {
		v.CPUQuota = unit.LimitTo(quotaOf(limit.CPU.OrZero(), policy.CFSPeriod))
	}
	if (class == Guaranteed || memoryLimited) && limit.Memory.OrZero() > 0 {
		v.Memory = unit.LimitTo(limit.Memory.OrZero())
	}
	return v
}

// ContainerValues returns what the runtime is asked to set for container c of p. What has no limit is kept (0 in CRI).
func ContainerValues(p Pod, c Container, policy Policy) Values {
	limit := c.Limits
	if p.Level != nil {
		if limit.CPU.OrZero() == 0 {
			limit.CPU = p.Level.Limits.CPU
		}
		if limit.Memory.OrZero() == 0 {
			limit.Memory = p.Level.Limits.Memory
		}
		limit.HugePages = merge(p.Level.Limits.HugePages, c.Limits.HugePages)
	}
	request, stated := c.Requests.CPU.Get()
	if !stated {
		request = limit.CPU.OrZero()
	}
	v := Values{CPUShares: unit.Of(SharesOf(request)), HugePages: merge(limit.HugePages, nil)}
	if v.HugePages == nil {
		v.HugePages = map[unit.Bytes]unit.Bytes{}
	}
	if policy.CFSQuota {
		v.CPUPeriod = policy.CFSPeriod
		if cpu := limit.CPU.OrZero(); cpu > 0 {
			v.CPUQuota = unit.LimitTo(quotaOf(cpu, policy.CFSPeriod))
		}
	}
	if memory := limit.Memory.OrZero(); memory > 0 {
		v.Memory = unit.LimitTo(memory)
	}
	policy.Memory.protectContainer(&v, ClassOf(p), c)
	v.Swap = policy.Swap.limit(p, c, v.Memory)
	return v
}
