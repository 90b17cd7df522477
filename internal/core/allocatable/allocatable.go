// Package allocatable draws a node's load line: how much of the machine pods may be promised, and how much is kept back.
//
// # Model
//
//	allocatable = capacity - systemReserved - kubeReserved - hard eviction threshold
//
// per resource and never below zero. CPU and pods have no threshold. Percentages are of capacity. Huge pages come off
// allocatable memory, because the kernel took them from it at boot. The agent and whatif draw their lines here.
//
// # Invariants
//
//   - A Line can be checked by hand: each Row holds every term of its subtraction.
//   - The same numbers as Kubernetes 1.36, to the byte, its single-precision percentages included.
//   - Impossible settings are an error with all problems; surprising ones are Notes.
//
// # What it does not do
//
// It does not evict (core/eviction) and writes no cgroup: Enforced and EnforcedOn say what the kernel is to hold pods and the
// reserved groups to, a Lowering how a limit comes down under what runs; core/qos in which values; internal/host/cgroup
// writes them.
package allocatable

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Signal is something whose shortage evicts pods, spelled as in a KubeletConfiguration.
type Signal string

// Signals.
const (
	MemoryAvailable       Signal = "memory.available"
	NodeFSAvailable       Signal = "nodefs.available"
	NodeFSInodesFree      Signal = "nodefs.inodesFree"
	ImageFSAvailable      Signal = "imagefs.available"
	ImageFSInodesFree     Signal = "imagefs.inodesFree"
	ContainerFSAvailable  Signal = "containerfs.available"
	ContainerFSInodesFree Signal = "containerfs.inodesFree"
	AllocatableMemory     Signal = "allocatableMemory.available"
	PIDAvailable          Signal = "pid.available"
)

// Signals lists them all.
func Signals() []Signal {
	return []Signal{MemoryAvailable, NodeFSAvailable, NodeFSInodesFree, ImageFSAvailable, ImageFSInodesFree,
		ContainerFSAvailable, ContainerFSInodesFree, AllocatableMemory, PIDAvailable}
}

// Threshold is an amount of something, or a share of its capacity.
type Threshold struct {
	Amount int64   // bytes or a count; rules when positive
	Share  float32 // of capacity, 0 to 1. Single precision because upstream's numbers depend on it
}

// Of returns the threshold in the unit of the capacity.
func (t Threshold) Of(capacity int64) int64 {
	if t.Amount > 0 {
		return t.Amount
	}
	return int64(float64(capacity) * float64(t.Share))
}

// ParseShare reads a percentage, like "10%".
func ParseShare(text string) (Threshold, error) {
	digits, ok := strings.CutSuffix(text, "%")
	if !ok {
		return Threshold{}, fmt.Errorf("%q: want a percentage, like 10%%", text)
	}
	percent, err := strconv.ParseFloat(digits, 32)
	if err != nil || percent != percent {
		return Threshold{}, fmt.Errorf("%q: want a percentage, like 10%%", text)
	}
	if percent < 0 || percent > 100 {
		return Threshold{}, fmt.Errorf("%q: want 0%% to 100%%", text)
	}
	return Threshold{Share: float32(percent) / 100}, nil
}

// Reserved is what is kept from pods for somebody. Zero keeps nothing.
type Reserved struct {
	CPU              unit.MilliCPU
	Memory           unit.Bytes
	EphemeralStorage unit.Bytes
	PIDs             int64
}

// Settings are what a configuration says about the line.
type Settings struct {
	System, Kube Reserved
	EvictionHard map[Signal]Threshold
	Dropped      []Signal // defaults that the configuration's own evictionHard displaced

	MaxPods     int64
	PodsPerCore int64 // 0: no such bound

	ReservedCPUs int64 // CPUs in reservedSystemCPUs, which replaces the reservations of CPU; 0: not set
	EnforcePods  bool  // hold the pods together to the line, not to the whole machine

	StorageUncounted bool // local storage is no resource here (localStorageCapacityIsolation: false)
}

// Row is one resource's subtraction.
type Row[T ~int64] struct {
	Capacity, System, Kube, Eviction, Allocatable T
}

// HugePages is the row of one page size.
type HugePages struct {
	Size unit.Bytes
	Row[unit.Bytes]
}

// Line is a node's load line.
type Line struct {
	CPU              Row[unit.MilliCPU]
	Memory           Row[unit.Bytes]
	HugePages        []HugePages     // by size; their capacity is also subtracted from Memory.Allocatable
	EphemeralStorage Row[unit.Bytes] // meaningless when StorageUncounted
	Pods             Row[int64]
	PIDs             Row[int64] // enforced, not published; Capacity 0: not known

	StorageUncounted bool

	Notes []string // settings whose effect may surprise

	system, kube Reserved
	cpus         idset.Set // of the machine, with those that are offline: they may come back
	enforcePods  bool
}

// Draw draws the line. Reservations above capacity are an error that names all of them; the line that comes with it shows
// them, and is none to start a node with.
func Draw(m machine.Machine, s Settings) (Line, error) {
	cores := int64(m.CPUs.Len())
	asked := s
	if s.ReservedCPUs > 0 {
		s.System.CPU, s.Kube.CPU = unit.MilliCPU(s.ReservedCPUs)*unit.CPU, 0
	}
	l := Line{enforcePods: s.EnforcePods, StorageUncounted: s.StorageUncounted, system: s.System, kube: s.Kube, cpus: m.CPUs.Union(m.Offline)}
	memoryThreshold := unit.Bytes(s.EvictionHard[MemoryAvailable].Of(int64(m.Memory)))
	l.CPU = row(unit.MilliCPU(cores)*unit.CPU, s.System.CPU, s.Kube.CPU, 0)
	l.Memory = row(m.Memory, s.System.Memory, s.Kube.Memory, memoryThreshold)
	if !s.StorageUncounted {
		threshold := unit.Bytes(s.EvictionHard[NodeFSAvailable].Of(int64(m.NodeFS.Capacity)))
		l.EphemeralStorage = row(m.NodeFS.Capacity, s.System.EphemeralStorage, s.Kube.EphemeralStorage, threshold)
	}
	l.PIDs = row(m.PIDs, s.System.PIDs, s.Kube.PIDs, 0)
	l.Pods = row(s.MaxPods, 0, 0, 0)
	if s.PodsPerCore > 0 {
		l.Pods = row(min(s.PodsPerCore*cores, s.MaxPods), 0, 0, 0)
	}
	for size, count := range m.HugePages {
		l.HugePages = append(l.HugePages, HugePages{size, row(size*unit.Bytes(count), 0, 0, 0)})
	}
	slices.SortFunc(l.HugePages, func(a, b HugePages) int { return cmp.Compare(a.Size, b.Size) })
	l.Memory.Allocatable = max(0, l.Memory.Allocatable-l.HugeMemory())
	l.note(m, asked)
	return l, l.checkReservations()
}

// HugeMemory returns what huge pages of all sizes take.
func (l Line) HugeMemory() unit.Bytes {
	var total unit.Bytes
	for _, h := range l.HugePages {
		total += h.Capacity
	}
	return total
}

func row[T ~int64](capacity, system, kube, eviction T) Row[T] {
	r := Row[T]{Capacity: capacity, System: system, Kube: kube, Eviction: eviction}
	r.Allocatable = max(0, capacity-r.Kept())
	return r
}

// Kept returns what is kept back in all; more than can be counted is the most that can.
func (r Row[T]) Kept() T { return plus(plus(r.System, r.Kube), r.Eviction) }

// plus adds amounts that are not negative.
func plus[T ~int64](a, b T) T {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxInt64
}

// checkReservations refuses a node that could never run a pod: more is kept back than there is.
func (l Line) checkReservations() error {
	var problems []string
	check := func(resource string, capacity, kept fmt.Stringer, over bool) {
		if over {
			problems = append(problems, fmt.Sprintf("%s: %v is kept back of a capacity of %v", resource, kept, capacity))
		}
	}
	check("cpu", l.CPU.Capacity, l.CPU.Kept(), l.CPU.Kept() > l.CPU.Capacity)
	check("memory", l.Memory.Capacity, l.Memory.Kept(), l.Memory.Kept() > l.Memory.Capacity)
	check("ephemeral-storage", l.EphemeralStorage.Capacity, l.EphemeralStorage.Kept(), l.EphemeralStorage.Kept() > l.EphemeralStorage.Capacity)
	if known := l.PIDs.Capacity > 0; known && l.PIDs.Kept() > l.PIDs.Capacity {
		problems = append(problems, fmt.Sprintf("pid: %d is kept back of a capacity of %d", l.PIDs.Kept(), l.PIDs.Capacity))
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("draw load line: %s; lower systemReserved, kubeReserved or evictionHard", strings.Join(problems, "; "))
}
