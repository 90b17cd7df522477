package qos

import (
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func TestTierValues(t *testing.T) {
	var sum Requested
	for _, p := range []Pod{
		{Containers: []Container{container(amounts(1000, 100), amounts(1000, 100))}},
		{Containers: []Container{container(amounts(500, 64), none)}},
		{Containers: []Container{container(amounts(1000, 36), none)}, Overhead: amounts(-1, 10)},
		{Containers: []Container{container(none, none)}},
	} {
		sum.Add(p)
	}
	if want := (Requested{BurstableCPU: 1500, BurstableMemory: 110 * unit.MiB,
		GuaranteedMemory: 100 * unit.MiB}); sum != want {
		t.Fatalf("requested %+v, want %+v", sum, want)
	}
	half := TierPolicy{ReservesMemory: true, ReservedPercent: 50, Allocatable: unit.GiB}
	for name, c := range map[string]struct {
		class  Class
		sum    Requested
		policy TierPolicy
		want   string // shares, memory, low
	}{
		"burstable":                  {Burstable, sum, TierPolicy{}, "1536 kept absent"},
		"burstable without pods":     {Burstable, Requested{}, TierPolicy{}, "2 kept absent"},
		"best effort":                {BestEffort, sum, TierPolicy{}, "2 kept absent"},
		"burstable, half reserved":   {Burstable, sum, half, "1536 974Mi absent"},
		"best effort, half reserved": {BestEffort, sum, half, "2 919Mi absent"},
		"best effort, nothing reserved": {
			BestEffort, sum, TierPolicy{ReservesMemory: true, Allocatable: unit.GiB}, "2 1Gi absent",
		},
		"best effort, more than there": {
			BestEffort, sum, TierPolicy{ReservesMemory: true, ReservedPercent: 100, Allocatable: 64 * unit.MiB}, "2 0 absent",
		},
		"burstable, requests protected": {
			Burstable, sum, TierPolicy{Memory: MemoryPolicy{On: true, Tiered: true}}, "1536 kept 110Mi",
		},
		"burstable, nothing protected": {Burstable, sum, TierPolicy{Memory: MemoryPolicy{On: true}}, "1536 kept 0"},
		"best effort is never protected": {
			BestEffort, sum, TierPolicy{Memory: MemoryPolicy{On: true, Tiered: true}}, "2 kept absent",
		},
	} {
		v := TierValues(c.class, c.sum, c.policy)
		if got := v.CPUShares.String() + " " + v.Memory.String() + " " + v.MemoryLow.String(); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	for policy, want := range map[MemoryPolicy]string{{}: "absent", {On: true}: "0", {On: true, Tiered: true}: "210Mi"} {
		if got := NodeProtection(sum, policy).MemoryMin.String(); got != want {
			t.Errorf("%+v: node's memory.min %s, want %s", policy, got, want)
		}
	}
	v := NodeValues(2000, unit.GiB, unit.Limit[int64]{}, nil, idset.Of(0, 1))
	if memory, _ := v.Memory.Get(); v.CPUShares.OrZero() != 2048 || memory != unit.GiB || !v.PIDs.IsKept() ||
		v.CPUs.String() != "0-1" {
		t.Errorf("node values %+v", v)
	}
}

// memory.high is floor((request + factor * (limit - request)) / page) * page.
func TestMemoryQoS(t *testing.T) {
	off, on := MemoryPolicy{}, MemoryPolicy{On: true, Factor: 0.9, NoLimit: unit.GiB, PageSize: 4096}
	tiered := on
	tiered.Tiered = true
	sizeless := on
	sizeless.NoLimit = 0
	for name, c := range map[string]struct {
		policy    MemoryPolicy
		c         Container
		container string // min, low, high
		pod       string // min, low
	}{
		"off": {off, container(amounts(-1, 100), amounts(-1, 200)), "absent absent kept",
			"absent absent"},
		"burstable":                {on, container(amounts(-1, 100), amounts(-1, 200)), "0 0 190Mi", "absent absent"},
		"no limit":                 {on, container(amounts(-1, 100), none), "0 0 953956Ki", "absent absent"},
		"no limit, node not known": {sizeless, container(amounts(-1, 100), none), "0 0 kept", "absent absent"},
		"no request":               {on, container(none, amounts(-1, 100)), "0 0 90Mi", "absent absent"},
		"best effort":              {on, container(none, none), "0 0 kept", "absent absent"},
		"request is the limit":     {on, container(amounts(-1, 100), amounts(-1, 100)), "0 0 kept", "absent absent"},
		"guaranteed, tiered": {tiered, container(amounts(1, 100), amounts(1, 100)), "100Mi absent kept",
			"100Mi absent"},
		"burstable, tiered": {tiered, container(amounts(-1, 100), amounts(-1, 200)), "absent 100Mi 190Mi",
			"absent 100Mi"},
		"burstable without it, tiered": {tiered, container(amounts(1, -1), none), "0 0 kept", "absent absent"},
		"mark within the request's page": {
			on, container(Amounts{Memory: unit.Of(unit.Bytes(8192))}, Amounts{Memory: unit.Of(unit.Bytes(8193))}), "0 0 kept",
			"absent absent",
		},
	} {
		policy := DefaultPolicy()
		policy.Memory = c.policy
		p := Pod{Containers: []Container{c.c}}
		v := ContainerValues(p, c.c, policy)
		if got := v.MemoryMin.String() + " " + v.MemoryLow.String() + " " + v.MemoryHigh.String(); got != c.container {
			t.Errorf("%s: container %s, want %s", name, got, c.container)
		}
		v = PodValues(p, policy)
		if got := v.MemoryMin.String() + " " + v.MemoryLow.String(); got != c.pod || !v.MemoryHigh.IsKept() {
			t.Errorf("%s: pod %s, high %v, want %s", name, got, v.MemoryHigh, c.pod)
		}
	}
}

func TestSwap(t *testing.T) {
	none2 := SwapPolicy{Accounted: true, Unified: true, Machine: 4 * unit.GiB, Total: 2 * unit.GiB}
	limited := none2
	limited.Limited = true
	burst := container(amounts(-1, 1024), amounts(-1, 2048))
	for name, c := range map[string]struct {
		policy   SwapPolicy
		c        Container
		critical bool
		want     string
	}{
		"not accounted":                    {SwapPolicy{Unified: true, Limited: true}, burst, false, "kept"},
		"NoSwap":                           {none2, burst, false, "0"},
		"v1 counts memory and swap as one": {SwapPolicy{Accounted: true, Limited: true}, burst, false, "2Gi"},
		"v1 without a limit":               {SwapPolicy{Accounted: true}, container(none, none), false, "kept"},
		"a quarter of the memory":          {limited, burst, false, "512Mi"},
		"no limit":                         {limited, container(amounts(-1, 1024), none), false, "512Mi"},
		"limit only":                       {limited, container(none, amounts(-1, 100)), false, "0"},
		"request is the limit":             {limited, container(amounts(-1, 100), amounts(-1, 100)), false, "0"},
		"best effort":                      {limited, container(none, none), false, "0"},
		"guaranteed":                       {limited, container(amounts(1, 100), amounts(1, 100)), false, "0"},
		"critical":                         {limited, burst, true, "0"},
		"more than the machine":            {limited, container(amounts(-1, 8192), none), false, "0"},
	} {
		policy := DefaultPolicy()
		policy.Swap = c.policy
		got := ContainerValues(Pod{Containers: []Container{c.c}, Critical: c.critical}, c.c, policy).Swap.String()
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
