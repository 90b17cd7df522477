package qos

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Shares is the relative CPU weight of a cgroup on v1's scale, where 1024 is one CPU. Weight converts it to v2's scale.
type Shares int64

// Origin: SCHED_FIXEDPOINT limits of the kernel's fair scheduler (MIN_SHARES, MAX_SHARES in kernel/sched/sched.h).
const (
	SharesMin    Shares = 2
	SharesMax    Shares = 262144
	sharesPerCPU        = 1024
)

// Weight returns s on cgroup v2's scale [1, 10000]. It is the linear map that the kubelet uses for pods and tiers.
// Runtimes use another map for containers. That does no harm, because pods are only compared with pods.
func (s Shares) Weight() int64 {
	switch {
	case s >= SharesMax:
		return 10000
	case s < SharesMin:
		return 1
	}
	return 1 + int64(s-SharesMin)*9999/int64(SharesMax-SharesMin)
}

// SharesOf returns the shares of a CPU request. Without a request it is the smallest weight of the kernel, not its
// default.
func SharesOf(cpu unit.MilliCPU) Shares {
	return min(max(Shares(int64(cpu)*sharesPerCPU/int64(unit.CPU)), SharesMin), SharesMax)
}

// Values are the settings of one cgroup. The zero Values change nothing.
type Values struct {
	CPUShares unit.Amount[Shares]
	CPUQuota  unit.Limit[time.Duration] // CPU time per CPUPeriod; written in microseconds
	CPUPeriod time.Duration             // belongs to CPUQuota; 0: keep
	Memory    unit.Limit[unit.Bytes]
	PIDs      unit.Limit[int64]
	// Page size to bytes; nil: keep all; a size missing from a non-nil map is limited to 0.
	HugePages map[unit.Bytes]unit.Bytes
	CPUs      idset.Set // CPUs that the group may run on; empty: keep

	// The fields below are only for cgroup v2; v1 has nothing like them.
	MemoryMin unit.Amount[unit.Bytes] // never reclaimed
	MemoryLow unit.Amount[unit.Bytes] // reclaimed last
	// Above it the group is throttled and its memory reclaimed, but nothing is killed.
	MemoryHigh unit.Limit[unit.Bytes]
	Swap       unit.Limit[unit.Bytes] // in addition to Memory, not the sum of both as on v1
}

// Policy is the configuration that values depend on.
type Policy struct {
	CFSQuota bool // enforce CPU limits at all (cpuCFSQuota); default true
	// Period over which CPU limits are enforced (cpuCFSQuotaPeriod); default 100 ms, the kernel allows 1 ms to 1 s.
	CFSPeriod time.Duration
	PodPIDs   int64 // limit of processes and threads per pod (podPidsLimit); 0 or less: none
	Memory    MemoryPolicy
	Swap      SwapPolicy
}

// DefaultPolicy is the kubelet's default.
func DefaultPolicy() Policy {
	return Policy{CFSQuota: true, CFSPeriod: CFSPeriodDefault, PodPIDs: -1}
}

const (
	// CFSPeriodDefault is the kernel's default (kernel/sched/fair.c). With longer periods containers stall less often
	// and longer.
	CFSPeriodDefault = 100 * time.Millisecond

	// cfsQuotaMin is the smallest quota that the kernel accepts (min_cfs_quota_period in kernel/sched/core.c).
	cfsQuotaMin = time.Millisecond
)

// quotaOf returns the CPU time per period that a CPU limit allows: 500m with a period of 100 ms is 50 ms.
func quotaOf(cpu unit.MilliCPU, period time.Duration) time.Duration {
	micros := int64(cpu) * period.Microseconds() / int64(unit.CPU)
	return max(time.Duration(micros)*time.Microsecond, cfsQuotaMin)
}

// PodValues returns the values of p's own group. A pod that is not Guaranteed is limited only by limits that each of
// its containers states (or the pod as a whole). Otherwise one container's limit would limit the other containers.
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

// ContainerValues returns the values that the runtime should set for container c of p. A resource without a limit is
// kept (0 in CRI).
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
