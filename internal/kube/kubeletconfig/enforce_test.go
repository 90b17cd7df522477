package kubeletconfig

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

func TestPolicies(t *testing.T) {
	m := machine.Machine{Memory: 8 * unit.GiB, Swap: unit.GiB}
	const unreserved = 6 * unit.GiB
	v2 := Kernel{Unified: true, AccountsSwap: true, PageSize: 4096}
	protects := qos.MemoryPolicy{Factor: 0.9, NoLimit: unreserved, PageSize: 4096}
	on, tiered := protects, protects
	on.On, on.Factor = true, 0.5
	tiered.On, tiered.Tiered = true, true
	noSwap := qos.SwapPolicy{Accounted: true, Unified: true, Machine: m.Memory, Total: m.Swap}
	limited := noSwap
	limited.Limited = true
	for name, c := range map[string]struct {
		text   string
		kernel Kernel
		policy qos.Policy
		tiers  qos.TierPolicy
	}{
		"defaults": {"", v2,
			qos.Policy{CFSQuota: true, CFSPeriod: 100 * time.Millisecond, PodPIDs: -1, Memory: protects, Swap: noSwap},
			qos.TierPolicy{Memory: protects, Allocatable: unreserved}},
		"everything, gates on": {"podPidsLimit: 100\ncpuCFSQuota: false\ncpuCFSQuotaPeriod: 5ms\n" +
			"memorySwap: {swapBehavior: LimitedSwap}\n" +
			"featureGates: {MemoryQoS: true, QOSReserved: true}\nmemoryReservationPolicy: TieredReservation\n" +
			"qosReserved: {memory: 50%}\n", v2,
			qos.Policy{CFSPeriod: 5 * time.Millisecond, PodPIDs: 100, Memory: tiered, Swap: limited},
			qos.TierPolicy{Memory: tiered, Allocatable: unreserved, ReservesMemory: true, ReservedPercent: 50}},
		"0% is a bound too": {"featureGates: {QOSReserved: true}\nqosReserved: {memory: 0%}\n", v2,
			qos.Policy{CFSQuota: true, CFSPeriod: 100 * time.Millisecond, PodPIDs: -1, Memory: protects, Swap: noSwap},
			qos.TierPolicy{Memory: protects, Allocatable: unreserved, ReservesMemory: true}},
		"gates off": {"qosReserved: {memory: 50%}\nmemorySwap: {swapBehavior: NoSwap}\n", v2,
			qos.Policy{CFSQuota: true, CFSPeriod: 100 * time.Millisecond, PodPIDs: -1, Memory: protects, Swap: noSwap},
			qos.TierPolicy{Memory: protects, Allocatable: unreserved}},
		"a factor": {"featureGates: {MemoryQoS: true}\nmemoryThrottlingFactor: 0.5\n", v2,
			qos.Policy{CFSQuota: true, CFSPeriod: 100 * time.Millisecond, PodPIDs: -1, Memory: on, Swap: noSwap},
			qos.TierPolicy{Memory: on, Allocatable: unreserved}},
		"v1 has no protection": {"featureGates: {MemoryQoS: true}\n", Kernel{PageSize: 4096},
			qos.Policy{CFSQuota: true, CFSPeriod: 100 * time.Millisecond, PodPIDs: -1, Memory: protects,
				Swap: qos.SwapPolicy{Machine: m.Memory, Total: m.Swap}},
			qos.TierPolicy{Memory: protects, Allocatable: unreserved}},
	} {
		config, warnings, err := Parse([]byte(head+c.text), "/")
		if err != nil || len(warnings) > 0 && name != "gates off" {
			t.Fatalf("%s: %v, %v", name, warnings, err)
		}
		if got := QoSPolicy(config, m, unreserved, c.kernel); got != c.policy {
			t.Errorf("%s: policy\n%+v, want\n%+v", name, got, c.policy)
		}
		if got := TierPolicy(config, unreserved, c.kernel); got != c.tiers {
			t.Errorf("%s: tiers\n%+v, want\n%+v", name, got, c.tiers)
		}
	}
}

func TestMachineWarnings(t *testing.T) {
	const both = "featureGates: {MemoryQoS: true}\nmemorySwap: {swapBehavior: LimitedSwap}\n"
	v2 := Kernel{Unified: true, AccountsSwap: true}
	for _, c := range []struct {
		text, kernel string
		k            Kernel
		want         []string // parts, one for each warning
	}{
		{"", "4.18.0-1-amd64", Kernel{}, nil},
		{both, "6.1.0-42-cloud-amd64", v2, nil},
		{both, "", v2, nil},
		{both, "6.1.0", Kernel{}, []string{"MemoryQoS: true: does nothing on cgroup v1",
			"LimitedSwap: does nothing on cgroup v1"}},
		{both, "5.8.18", v2, []string{"kernel 5.8.18 may hang processes that memory.high throttles: want 5.9"}},
		{both, "5.10.0", Kernel{Unified: true}, []string{"this kernel does not account for swap"}},
	} {
		config, _, err := Parse([]byte(head+c.text), "/")
		if err != nil {
			t.Fatal(err)
		}
		got := MachineWarnings(config, machine.Machine{Identity: machine.Identity{KernelVersion: c.kernel}}, c.k)
		if len(got) != len(c.want) {
			t.Errorf("%q on %s: %q, want %q", c.text, c.kernel, got, c.want)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(got[i], want) {
				t.Errorf("%q on %s: %q, want %q", c.text, c.kernel, got[i], want)
			}
		}
	}
}

func TestReservations(t *testing.T) {
	const groups = "systemReservedCgroup: /system.slice\nkubeReservedCgroup: /kube\nsystemReserved: {cpu: 250m}\n" +
		"kubeReserved: {memory: 1Gi}\n"
	system := Reservation{allocatable.SystemReserved, "systemReservedCgroup", "/system.slice", false}
	kube := Reservation{allocatable.KubeReserved, "kubeReservedCgroup", "/kube", false}
	compressible := func(r Reservation) Reservation { r.Compressible = true; return r }
	for enforce, want := range map[string][]Reservation{
		"[pods]":                           nil,
		"[none]":                           nil,
		"[]":                               nil,
		"[pods, system-reserved]":          {system},
		"[kube-reserved, system-reserved]": {system, kube},
		"[system-reserved-compressible, pods, kube-reserved-compressible]": {compressible(system), compressible(kube)},
	} {
		c, warnings, err := Parse([]byte(head+groups+"enforceNodeAllocatable: "+enforce+"\n"), "/")
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: %v, %v", enforce, warnings, err)
		}
		if got := Reservations(c); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", enforce, got, want)
		}
	}
}

// What cannot be enforced is refused before the start, all of it at once.
func TestBadEnforcement(t *testing.T) {
	_, _, err := Parse([]byte(head+`
enforceNodeAllocatable: [none, pods, kube-reserved, system-reserved-compressible]
cgroupsPerQOS: false
systemReservedCgroup: /system.slice
reservedSystemCPUs: 0-1
kubeletCgroups: /
`), "/")
	for _, want := range []string{
		`enforceNodeAllocatable: "none, pods, kube-reserved, system-reserved-compressible": none cannot be combined with other values`,
		`enforceNodeAllocatable: "pods": needs cgroupsPerQOS`,
		`enforceNodeAllocatable: "kube-reserved": needs kubeReservedCgroup`,
		`enforceNodeAllocatable: "kube-reserved": needs kubeReserved: nothing is reserved`,
		`enforceNodeAllocatable: "system-reserved-compressible": needs systemReserved: nothing is reserved`,
		`reservedSystemCPUs: "0-1": cannot be used with systemReservedCgroup`,
		`kubeletCgroups: "/": cannot be the machine's root`,
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in:\n%v", want, err)
		}
	}
}

func FuzzParsePercent(f *testing.F) {
	for _, seed := range []string{"50%", "0%", "100%", "101%", "-1%", "%", "5", "1e1%", "+5%"} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if n, err := parsePercent(text); err == nil && (n < 0 || n > 100) {
			t.Errorf("%q: %d", text, n)
		}
	})
}
