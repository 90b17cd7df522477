package allocatable

import (
	"math"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// example is the machine of the worked example in issue 3.
func example() machine.Machine {
	return machine.Machine{
		CPUs:   idset.Of(0, 1),
		Memory: 4039556 * unit.KiB,
		NodeFS: machine.Filesystem{Capacity: 64800356 * unit.KiB},
		PIDs:   32768,
	}
}

func share(t *testing.T, text string) Threshold {
	t.Helper()
	threshold, err := ParseShare(text)
	if err != nil {
		t.Fatal(err)
	}
	return threshold
}

// TestWorkedExample checks the table of issue 3, to the byte.
func TestWorkedExample(t *testing.T) {
	defaults := map[Signal]Threshold{MemoryAvailable: {Amount: int64(100 * unit.MiB)}, NodeFSAvailable: share(t, "10%")}
	for name, c := range map[string]struct {
		settings             Settings
		cpu, memory, storage string
		enforced             unit.Bytes
	}{
		"defaults": {Settings{EvictionHard: defaults, MaxPods: 110, EnforcePods: true},
			"2", "3937156Ki", "59720007991", 4039556 * unit.KiB},
		"reserved": {Settings{
			System: Reserved{CPU: 250, Memory: 500 * unit.MiB},
			Kube:   Reserved{CPU: 500, Memory: unit.GiB},
			EvictionHard: map[Signal]Threshold{
				MemoryAvailable: {Amount: int64(200 * unit.MiB)},
				NodeFSAvailable: {Amount: int64(20 * unit.GiB)},
			},
			MaxPods: 110, EnforcePods: true,
		}, "1250m", "2274180Ki", "43828836Ki", 2478980 * unit.KiB},
	} {
		l, err := Compute(example(), c.settings)
		if err != nil {
			t.Fatal(err)
		}
		if l.CPU.Allocatable.String() != c.cpu || l.Memory.Allocatable.String() != c.memory ||
			l.EphemeralStorage.Allocatable.String() != c.storage || l.Pods.Allocatable != 110 {
			t.Errorf("%s: cpu %v memory %v storage %v pods %d, want %s %s %s 110", name, l.CPU.Allocatable, l.Memory.Allocatable,
				l.EphemeralStorage.Allocatable, l.Pods.Allocatable, c.cpu, c.memory, c.storage)
		}
		if got, _ := l.Enforced().Memory.Get(); got != c.enforced {
			t.Errorf("%s: pods are held to %v, want %v (the threshold is not subtracted)", name, got, c.enforced)
		}
	}
}

func TestHugePagesComeOffMemory(t *testing.T) {
	m := example()
	m.HugePages = map[unit.Bytes]int64{unit.GiB: 1, 2 * unit.MiB: 512}
	l, err := Compute(m, Settings{MaxPods: 110})
	if err != nil {
		t.Fatal(err)
	}
	if want := 4039556*unit.KiB - 2*unit.GiB; l.Memory.Allocatable != want {
		t.Errorf("allocatable memory %v, want %v", l.Memory.Allocatable, want)
	}
	if len(l.HugePages) != 2 || l.HugePages[0].Size != 2*unit.MiB || l.HugePages[0].Allocatable != unit.GiB {
		t.Errorf("huge pages %+v", l.HugePages)
	}
	m.HugePages = map[unit.Bytes]int64{unit.GiB: 8}
	if l, err = Compute(m, Settings{MaxPods: 110}); err != nil || l.Memory.Allocatable != 0 || len(l.Notes) != 1 ||
		!strings.Contains(l.Notes[0], "huge pages take 8Gi") {
		t.Errorf("more huge pages than memory: %v, %v, %v", l.Memory.Allocatable, l.Notes, err)
	}
}

// TestNotes checks that there are Notes on settings with a surprising effect, and none on ordinary settings.
func TestNotes(t *testing.T) {
	hard := func(signal Signal, threshold Threshold) map[Signal]Threshold {
		return map[Signal]Threshold{signal: threshold}
	}
	for name, c := range map[string]struct {
		settings Settings
		huge     int64 // pages of 2Mi
		want     []string
	}{
		"ordinary": {
			Settings{EnforcePods: true, EvictionHard: hard(MemoryAvailable, Threshold{Amount: int64(100 * unit.MiB)})}, 0, nil,
		},
		"reserved CPUs": {
			Settings{EnforcePods: true, ReservedCPUs: 1, System: Reserved{CPU: 100}}, 0,
			[]string{
				"reservedSystemCPUs moves no process",
				"reservedSystemCPUs replaces the reserved CPU: 1 whole CPUs instead of systemReserved 100m and kubeReserved 0",
			},
		},
		"pods per core": {
			Settings{EnforcePods: true, PodsPerCore: 10}, 0,
			[]string{"podsPerCore 10 on 2 CPUs allows 20 pods, fewer than maxPods 110"},
		},
		"dropped defaults": {
			Settings{EnforcePods: true, Dropped: []Signal{NodeFSAvailable, ImageFSAvailable}}, 0,
			[]string{"does not contain imagefs.available, nodefs.available"},
		},
		"threshold not subtracted": {
			Settings{
				EnforcePods:  true,
				System:       Reserved{Memory: unit.GiB},
				EvictionHard: hard(MemoryAvailable, Threshold{Amount: int64(unit.MiB)}),
			},
			0, []string{"limits all pods together to 2990980Ki of memory, 1Mi above allocatable"},
		},
		"share of memory": {
			Settings{EnforcePods: true, EvictionHard: hard(MemoryAvailable, share(t, "10%"))}, 0,
			[]string{"memory.available is a percentage of the machine's memory"},
		},
		"a forgotten suffix": {
			Settings{EnforcePods: true, EvictionHard: hard(NodeFSAvailable, Threshold{Amount: 100})}, 0,
			[]string{"nodefs.available is 100 bytes: was a unit meant, as in 100Mi"},
		},
		"more than there is": {
			Settings{EnforcePods: true, EvictionHard: hard(ImageFSAvailable, Threshold{Amount: int64(unit.TiB)})}, 0,
			[]string{"imagefs.available 1Ti is more than the capacity of 100Gi"},
		},
		"not enforced": {Settings{System: Reserved{CPU: 100}}, 0, []string{"enforceNodeAllocatable does not contain pods"}},
		"huge pages": {Settings{EnforcePods: true}, 512, []string{"huge pages reduce allocatable memory by 1Gi",
			"the kernel does not count huge pages as memory: it limits all pods together to 4039556Ki of ordinary memory, but " +
				"there is only 2990980Ki"}},
		"no local storage": {
			Settings{EnforcePods: true, StorageUncounted: true}, 0, []string{"this node does not report ephemeral-storage"},
		},
		"nothing left": {Settings{EnforcePods: true, System: Reserved{CPU: 2000}}, 0, []string{"allocatable cpu is 0"}},
	} {
		m := example()
		m.ImageFS.Capacity = 100 * unit.GiB
		m.HugePages = map[unit.Bytes]int64{2 * unit.MiB: c.huge}
		c.settings.MaxPods = 110
		l, err := Compute(m, c.settings)
		if err != nil || len(l.Notes) != len(c.want) {
			t.Errorf("%s: %q, %v", name, l.Notes, err)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(strings.Join(l.Notes, "\n"), want) {
				t.Errorf("%s: want note %d %q in %q", name, i, want, l.Notes)
			}
		}
	}
}

func TestReservedCPUsReplace(t *testing.T) {
	l, err := Compute(example(), Settings{
		System:       Reserved{CPU: 100, Memory: unit.GiB},
		Kube:         Reserved{CPU: 100},
		ReservedCPUs: 1,
		MaxPods:      110,
		PodsPerCore:  10,
	})
	if err != nil || l.CPU.Allocatable != 1000 || l.CPU.Withheld() != 1000 || l.Pods.Capacity != 20 {
		t.Errorf("cpu %+v, pods %d, %v", l.CPU, l.Pods.Capacity, err)
	}
}

func TestUncountedStorage(t *testing.T) {
	l, err := Compute(example(), Settings{
		MaxPods:          110,
		StorageUncounted: true,
		System:           Reserved{EphemeralStorage: unit.TiB},
		EvictionHard:     map[Signal]Threshold{NodeFSAvailable: {Amount: int64(unit.TiB)}},
	})
	if err != nil || !l.StorageUncounted || l.EphemeralStorage != (Row[unit.Bytes]{}) {
		t.Errorf("%+v, %v", l.EphemeralStorage, err)
	}
}

func TestReservationsAboveCapacityAreAllNamed(t *testing.T) {
	l, err := Compute(example(), Settings{System: Reserved{
		CPU:              3000,
		Memory:           unit.TiB,
		EphemeralStorage: unit.TiB,
		PIDs:             40000,
	}})
	for _, want := range []string{
		"cpu: reservations and eviction threshold of 3 exceed the capacity of 2",
		"memory: reservations and eviction threshold of 1Ti", "ephemeral-storage: reservations and eviction threshold of 1Ti",
		"pid: reservations of 40000 exceed the capacity of 32768", "lower systemReserved",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
	if l.CPU.System != 3000 || l.CPU.Allocatable != 0 {
		t.Errorf("the resources returned with the error: %+v", l.CPU)
	}
	// Sums that overflow an int64 must not become small.
	l, err = Compute(example(), Settings{
		System: Reserved{CPU: math.MaxInt64, Memory: math.MaxInt64},
		Kube:   Reserved{CPU: math.MaxInt64, Memory: math.MaxInt64},
	})
	if err == nil || l.CPU.Allocatable != 0 || l.Memory.Allocatable != 0 || l.CPU.Withheld() != math.MaxInt64 {
		t.Errorf("cpu %+v, memory %+v, %v", l.CPU, l.Memory, err)
	}
}

func TestEnforcedFollowsTheSetting(t *testing.T) {
	s := Settings{System: Reserved{CPU: 500, PIDs: 768}, MaxPods: 110}
	for enforce, want := range map[bool]struct{ shares, pids int64 }{true: {1536, 32000}, false: {2048, 32768}} {
		s.EnforcePods = enforce
		l, err := Compute(example(), s)
		if err != nil {
			t.Fatal(err)
		}
		v := l.Enforced()
		if pids, _ := v.PIDs.Get(); int64(v.CPUShares.OrZero()) != want.shares || pids != want.pids {
			t.Errorf("enforce %v: shares %v, pids %d, want %+v", enforce, v.CPUShares, pids, want)
		}
	}
	unknown := example()
	unknown.PIDs = 0
	if l, err := Compute(unknown, s); err != nil || !l.Enforced().PIDs.IsKept() {
		t.Errorf("an unknown number of pids was enforced: %v", err)
	}
}

func FuzzParseShare(f *testing.F) {
	for _, seed := range []string{"10%", "0%", "100%", "101%", "-1%", "NaN%", "1e1%", "5", "%", "Inf%"} {
		cost.Attack(f, seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		threshold, err := ParseShare(text)
		if err == nil && !(threshold.Share >= 0 && threshold.Share <= 1) {
			t.Errorf("%q: share %v", text, threshold.Share)
		}
	})
}

// A CPU that is offline when the agent starts is available to pods again when it comes online.
func TestEnforcedNamesOfflineCPUs(t *testing.T) {
	m := example()
	m.Offline = idset.Of(3)
	l, err := Compute(m, Settings{EnforcePods: true, MaxPods: 110})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := l.Enforced().CPUs, idset.Of(0, 1, 3); !got.Equal(want) {
		t.Errorf("the node's group has CPUs %v, want %v", got, want)
	}
}
