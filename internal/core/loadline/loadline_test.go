package loadline

import (
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// example is the machine of the worked example of issue 3.
func example() machine.Machine {
	return machine.Machine{CPUs: idset.Of(0, 1), Memory: 4039556 * unit.KiB, NodeFS: machine.Filesystem{Capacity: 64800356 * unit.KiB}, PIDs: 32768}
}

func share(t *testing.T, text string) Threshold {
	t.Helper()
	threshold, err := ParseShare(text)
	if err != nil {
		t.Fatal(err)
	}
	return threshold
}

// TestWorkedExample holds the table of issue 3, to the byte.
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
			System:       Reserved{CPU: 250, Memory: 500 * unit.MiB},
			Kube:         Reserved{CPU: 500, Memory: unit.GiB},
			EvictionHard: map[Signal]Threshold{MemoryAvailable: {Amount: int64(200 * unit.MiB)}, NodeFSAvailable: {Amount: int64(20 * unit.GiB)}},
			MaxPods:      110, EnforcePods: true,
		}, "1250m", "2274180Ki", "43828836Ki", 2478980 * unit.KiB},
	} {
		l, err := Draw(example(), c.settings)
		if err != nil {
			t.Fatal(err)
		}
		if l.CPU.Allocatable.String() != c.cpu || l.Memory.Allocatable.String() != c.memory || l.EphemeralStorage.Allocatable.String() != c.storage || l.Pods.Allocatable != 110 {
			t.Errorf("%s: cpu %v memory %v storage %v pods %d, want %s %s %s 110", name, l.CPU.Allocatable, l.Memory.Allocatable, l.EphemeralStorage.Allocatable, l.Pods.Allocatable, c.cpu, c.memory, c.storage)
		}
		if got, _ := l.Enforced().Memory.Get(); got != c.enforced {
			t.Errorf("%s: pods are held to %v, want %v (the threshold is not subtracted)", name, got, c.enforced)
		}
	}
}

func TestHugePagesComeOffMemory(t *testing.T) {
	m := example()
	m.HugePages = map[unit.Bytes]int64{unit.GiB: 1, 2 * unit.MiB: 512}
	l, err := Draw(m, Settings{MaxPods: 110})
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
	if l, err = Draw(m, Settings{}); err != nil || l.Memory.Allocatable != 0 || len(l.Notes) != 1 || !strings.Contains(l.Notes[0], "huge pages take 8Gi") {
		t.Errorf("more huge pages than memory: %v, %v, %v", l.Memory.Allocatable, l.Notes, err)
	}
}

func TestNotes(t *testing.T) {
	l, err := Draw(example(), Settings{
		System: Reserved{CPU: 100, Memory: unit.GiB}, ReservedCPUs: 1, MaxPods: 110, PodsPerCore: 10, EnforcePods: true,
		EvictionHard: map[Signal]Threshold{MemoryAvailable: {Amount: 1}}, Dropped: []Signal{NodeFSAvailable, ImageFSAvailable},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"reservedSystemCPUs replaces", "podsPerCore 10 on 2 CPUs allows 20", "leaves out imagefs.available, nodefs.available", "not subtracted"} {
		if !strings.Contains(strings.Join(l.Notes, "\n"), want) {
			t.Errorf("want %q in %q", want, l.Notes)
		}
	}
	if l.CPU.Allocatable != 1000 || l.Pods.Capacity != 20 {
		t.Errorf("cpu %v, pods %d", l.CPU.Allocatable, l.Pods.Capacity)
	}
}

func TestReservationsAboveCapacityAreAllNamed(t *testing.T) {
	_, err := Draw(example(), Settings{System: Reserved{CPU: 3000, Memory: unit.TiB, EphemeralStorage: unit.TiB}})
	for _, want := range []string{"cpu: 3 is kept back of a capacity of 2", "memory: 1Ti", "ephemeral-storage: 1Ti", "lower systemReserved"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in %v", want, err)
		}
	}
}

func TestEnforcedFollowsTheSetting(t *testing.T) {
	s := Settings{System: Reserved{CPU: 500, PIDs: 768}, MaxPods: 110}
	for enforce, want := range map[bool]struct{ shares, pids int64 }{true: {1536, 32000}, false: {2048, 32768}} {
		s.EnforcePods = enforce
		l, err := Draw(example(), s)
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
	if l, err := Draw(unknown, s); err != nil || !l.Enforced().PIDs.IsKept() {
		t.Errorf("an unknown number of pids was enforced: %v", err)
	}
}

func FuzzParseShare(f *testing.F) {
	for _, seed := range []string{"10%", "0%", "100%", "101%", "-1%", "NaN%", "1e1%", "5", "%", "Inf%"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		threshold, err := ParseShare(text)
		if err == nil && !(threshold.Share >= 0 && threshold.Share <= 1) {
			t.Errorf("%q: share %v", text, threshold.Share)
		}
	})
}
