package qos

import (
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// amounts has CPU in thousandths and memory in MiB; a negative number leaves the resource absent.
func amounts(cpu, memory int64) Amounts {
	var a Amounts
	if cpu >= 0 {
		a.CPU = unit.Of(unit.MilliCPU(cpu))
	}
	if memory >= 0 {
		a.Memory = unit.Of(unit.Bytes(memory) * unit.MiB)
	}
	return a
}

func container(requests, limits Amounts) Container {
	return Container{Resources: Resources{Requests: requests, Limits: limits}}
}

func sidecar(requests, limits Amounts) Container {
	c := container(requests, limits)
	c.Sidecar = true
	return c
}

var none = Amounts{}

func TestClassOf(t *testing.T) {
	full := container(amounts(500, 128), amounts(500, 128))
	for name, c := range map[string]struct {
		pod  Pod
		want Class
	}{
		"nothing stated":               {Pod{Containers: []Container{container(none, none)}}, BestEffort},
		"zero counts as absent":        {Pod{Containers: []Container{container(amounts(0, 0), amounts(0, 0))}}, BestEffort},
		"equal everywhere":             {Pod{Containers: []Container{full, full}}, Guaranteed},
		"one container without limits": {Pod{Containers: []Container{full, container(none, none)}}, Burstable},
		"init container without limits": {
			Pod{Containers: []Container{full}, Init: []Container{container(none, none)}}, Burstable,
		},
		"request below limit": {Pod{Containers: []Container{container(amounts(250, 128), amounts(500, 128))}}, Burstable},
		"memory only":         {Pod{Containers: []Container{container(amounts(-1, 128), amounts(-1, 128))}}, Burstable},
		"limits only":         {Pod{Containers: []Container{container(none, amounts(500, 128))}}, Burstable},
		"differences that cancel out": {
			Pod{
				Containers: []Container{
					container(amounts(100, 128), amounts(200, 128)), container(amounts(200, 128), amounts(100, 128)),
				},
			},
			Guaranteed,
		},
		"pod level rules alone": {
			Pod{Containers: []Container{container(none, none)}, Level: &Resources{amounts(500, 128), amounts(500, 128)}},
			Guaranteed,
		},
		"pod level empty": {Pod{Containers: []Container{full}, Level: &Resources{}}, BestEffort},
		"pod level without memory limit": {
			Pod{Containers: []Container{full}, Level: &Resources{amounts(500, -1), amounts(500, -1)}}, Burstable,
		},
		"huge pages alone": {
			Pod{
				Containers: []Container{container(Amounts{HugePages: map[unit.Bytes]unit.Bytes{2 * unit.MiB: 4 * unit.MiB}}, none)},
			},
			BestEffort,
		},
		"recorded by the API server rules": {Pod{Containers: []Container{full}, Recorded: Burstable}, Burstable},
	} {
		if got := ClassOf(c.pod); got != c.want {
			t.Errorf("%s: class %s, want %s", name, got, c.want)
		}
	}
}

// Requests are max(containers + sidecars, most at one time of the start) + overhead.
func TestRequests(t *testing.T) {
	for name, c := range map[string]struct {
		pod  Pod
		want Amounts
	}{
		"sum": {
			Pod{Containers: []Container{container(amounts(100, 10), none), container(amounts(200, 20), none)}}, amounts(300, 30),
		},
		"init peak is larger in memory only": {Pod{
			Containers: []Container{container(amounts(300, 10), none)},
			Init:       []Container{container(amounts(200, 50), none), container(amounts(100, 60), none)},
		}, amounts(300, 60)},
		"sidecars run beside everything after them": {Pod{
			Containers: []Container{container(amounts(100, 100), none)},
			Init: []Container{
				container(amounts(500, 50), none), // alone: 500m
				sidecar(amounts(100, 30), none),
				container(amounts(450, 90), none), // with the sidecar: 550m, 120Mi
				sidecar(amounts(50, 10), none),
			},
		}, amounts(550, 140)},
		"overhead": {Pod{
			Containers: []Container{container(amounts(100, 10), none)},
			Overhead:   amounts(10, 5),
		}, amounts(110, 15)},
		"pod level overrides, resource by resource": {Pod{
			Containers: []Container{container(amounts(100, 10), none)}, Overhead: amounts(10, 5),
			Level: &Resources{Requests: amounts(1000, -1)},
		}, amounts(1010, 15)},
	} {
		got := Requests(c.pod)
		if got.CPU != c.want.CPU || got.Memory != c.want.Memory {
			t.Errorf("%s: requests %v and %v, want %v and %v", name, got.CPU, got.Memory, c.want.CPU, c.want.Memory)
		}
	}
}

// The two numbers of the issue: 500m is 50 ms of 100 ms, 128Mi is 134217728 bytes.
func TestPodValuesOfTheIssue(t *testing.T) {
	v := PodValues(Pod{Containers: []Container{container(amounts(500, 128), amounts(500, 128))}}, DefaultPolicy())
	if quota, ok := v.CPUQuota.Get(); !ok || quota.Microseconds() != 50000 || v.CPUPeriod.Microseconds() != 100000 {
		t.Errorf("quota %v of %v, want 50000 of 100000 microseconds", quota, v.CPUPeriod)
	}
	if memory, ok := v.Memory.Get(); !ok || memory != 134217728 {
		t.Errorf("memory limit %d, want 134217728", memory)
	}
	if shares := v.CPUShares.OrZero(); shares != 512 {
		t.Errorf("shares %d, want 512", shares)
	}
	if !v.PIDs.IsUnlimited() {
		t.Errorf("pids %v, want unlimited", v.PIDs)
	}
}

func TestPodValuesBindOnlyByCompleteLimits(t *testing.T) {
	limited := container(none, amounts(500, 128))
	for name, c := range map[string]struct {
		pod           Pod
		quota, memory bool
	}{
		"all limited":           {Pod{Containers: []Container{limited, limited}}, true, true},
		"one without":           {Pod{Containers: []Container{limited, container(none, none)}}, false, false},
		"one without CPU limit": {Pod{Containers: []Container{limited, container(none, amounts(-1, 64))}}, false, true},
		"init without": {Pod{Containers: []Container{limited}, Init: []Container{container(none, none)}}, false,
			false},
		"init after limited sidecar": {
			Pod{Containers: []Container{limited}, Init: []Container{sidecar(none, amounts(1, 1)), container(none, none)}}, true,
			true,
		},
		"pod level limits": {
			Pod{Containers: []Container{container(none, none)}, Level: &Resources{Limits: amounts(500, 128)}}, true, true,
		},
		"best effort": {Pod{Containers: []Container{container(none, none)}}, false, false},
		"zero limit is none": {Pod{Containers: []Container{container(amounts(100, 10), amounts(0, 0))}}, false,
			false},
		"quota without memory limit": {Pod{Containers: []Container{container(none, amounts(100, -1))}}, true, false},
		"sidecar without limit alone": {
			Pod{Containers: []Container{limited}, Init: []Container{sidecar(none, none)}}, false, false,
		},
	} {
		v := PodValues(c.pod, DefaultPolicy())
		if _, quota := v.CPUQuota.Get(); quota != c.quota || quota == v.CPUQuota.IsUnlimited() {
			t.Errorf("%s: CPU quota %+v, want bound %v", name, v.CPUQuota, c.quota)
		}
		if _, memory := v.Memory.Get(); memory != c.memory || memory == v.Memory.IsUnlimited() {
			t.Errorf("%s: memory %+v, want bound %v", name, v.Memory, c.memory)
		}
	}
}

func TestPolicy(t *testing.T) {
	pod := Pod{Containers: []Container{container(amounts(500, 128), amounts(500, 128))}}
	v := PodValues(pod, Policy{CFSQuota: false, CFSPeriod: CFSPeriodDefault, PodPIDs: 100})
	if !v.CPUQuota.IsUnlimited() {
		t.Errorf("quota %+v without cpuCFSQuota, want unlimited", v.CPUQuota)
	}
	if pids, ok := v.PIDs.Get(); !ok || pids != 100 {
		t.Errorf("pids %d, want 100", pids)
	}
	v = PodValues(pod, Policy{CFSQuota: true, CFSPeriod: 5 * time.Millisecond})
	if quota, _ := v.CPUQuota.Get(); quota != 2500*time.Microsecond {
		t.Errorf("quota %v of 5ms, want 2.5ms", quota)
	}
	tiny := Pod{Containers: []Container{container(amounts(1, 1), amounts(1, 1))}}
	v = PodValues(tiny, DefaultPolicy())
	if quota, _ := v.CPUQuota.Get(); quota != time.Millisecond || v.CPUShares.OrZero() != 2 {
		t.Errorf("1m: quota %v, shares %d; want 1ms and 2, the kernel's least", quota, v.CPUShares.OrZero())
	}
}

func TestContainerValues(t *testing.T) {
	huge := Amounts{HugePages: map[unit.Bytes]unit.Bytes{2 * unit.MiB: 8 * unit.MiB}}
	for name, c := range map[string]struct {
		pod    Pod
		c      Container
		shares Shares
		quota  time.Duration // 0: kept
		memory unit.Bytes    // 0: kept
		huge   unit.Bytes
	}{
		"nothing": {c: container(none, none), shares: 2},
		"limit stands for the request": {
			c:      container(none, amounts(2000, 64)),
			shares: 2048,
			quota:  200 * time.Millisecond,
			memory: 64 * unit.MiB,
		},
		"a zero request stands": {c: container(amounts(0, -1), amounts(2000, -1)), shares: 2, quota: 200 * time.Millisecond},
		"pod level limit": {
			pod:    Pod{Level: &Resources{Limits: amounts(1000, 32)}},
			c:      container(amounts(100, -1), none),
			shares: 102,
			quota:  100 * time.Millisecond,
			memory: 32 * unit.MiB,
		},
		"own limit before pod level": {
			pod:    Pod{Level: &Resources{Limits: amounts(1000, 32)}},
			c:      container(none, amounts(500, 16)),
			shares: 512,
			quota:  50 * time.Millisecond,
			memory: 16 * unit.MiB,
		},
		"huge pages":    {c: container(huge, huge), shares: 2, huge: 8 * unit.MiB},
		"capped shares": {c: container(amounts(300_000, -1), none), shares: 262144},
	} {
		v := ContainerValues(c.pod, c.c, DefaultPolicy())
		quota, _ := v.CPUQuota.Get()
		memory, _ := v.Memory.Get()
		if v.CPUShares.OrZero() != c.shares || quota != c.quota || memory != c.memory || v.HugePages[2*unit.MiB] != c.huge {
			t.Errorf("%s: got shares %d quota %v memory %v huge %v, want %d %v %v %v",
				name, v.CPUShares.OrZero(), quota, memory, v.HugePages[2*unit.MiB], c.shares, c.quota, c.memory, c.huge)
		}
	}
}

func TestWeight(t *testing.T) {
	for _, c := range []struct {
		shares Shares
		want   int64
	}{{0, 1}, {2, 1}, {1024, 39}, {262143, 9999}, {262144, 10000}} {
		if got := c.shares.Weight(); got != c.want {
			t.Errorf("%d shares: weight %d, want %d", c.shares, got, c.want)
		}
	}
}

func TestOOMScoreAdj(t *testing.T) {
	const capacity = 4000 * unit.MiB
	burst := func(mib int64) Container { return container(amounts(-1, mib), none) }
	for name, c := range map[string]struct {
		pod  Pod
		c    Container
		want int
	}{
		"guaranteed":           {Pod{Recorded: Guaranteed}, burst(1), -997},
		"node critical":        {Pod{Recorded: BestEffort, NodeCritical: true}, burst(1), -997},
		"best effort":          {Pod{Recorded: BestEffort}, container(none, none), 1000},
		"a tenth":              {Pod{Recorded: Burstable}, burst(400), 900},
		"nothing requested":    {Pod{Recorded: Burstable}, burst(0), 999},
		"everything":           {Pod{Recorded: Burstable}, burst(4000), 3},
		"more than everything": {Pod{Recorded: Burstable}, burst(8000), 3},
		"sidecar of larger ones": {
			Pod{Recorded: Burstable, Containers: []Container{burst(800), burst(400)}}, sidecar(amounts(-1, 4), none), 900,
		},
		"sidecar of smaller one": {
			Pod{Recorded: Burstable, Containers: []Container{burst(4)}}, sidecar(amounts(-1, 400), none), 900,
		},
		"pod level remainder is split": {Pod{
			Recorded: Burstable, Containers: []Container{burst(100), burst(100)},
			Level: &Resources{Requests: amounts(-1, 1000)},
		}, burst(100), 875},
	} {
		if got := OOMScoreAdj(c.pod, c.c, capacity); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
	if got := OOMScoreAdj(Pod{Recorded: Burstable}, burst(1), 0); got != 999 {
		t.Errorf("memory of the machine unknown: %d, want 999", got)
	}
}
