// Package allocatable computes how much of a node's resources pods may use, and how much is reserved.
//
// # Model
//
//	allocatable = capacity - systemReserved - kubeReserved - hard eviction threshold
//
// The formula holds for each resource, and the result is never below zero. CPU and pods have no eviction threshold.
// Percentages are percentages of capacity. Huge pages are subtracted from allocatable memory, because the kernel set
// them aside at boot. The agent and whatif both compute allocatable here.
//
// # Invariants
//
//   - Resources can be checked by hand: each Row holds every term of its subtraction.
//   - The numbers equal those of Kubernetes 1.36 to the byte, including its percentages in single precision.
//   - Settings that cannot work are an error that names all problems. Settings with a surprising effect are Notes.
//
// # What it does not do
//
// It evicts no pods (core/eviction) and writes no cgroup. Enforced and EnforcedOn say how much the pods and the
// reserved cgroups may use, and a Lowering says how a limit is lowered under running pods. core/qos translates
// that into cgroup values, and internal/host/cgroup writes them.
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

// Signal is an eviction signal, spelled as in a KubeletConfiguration.
type Signal string

// The eviction signals.
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

// Signals returns all eviction signals.
func Signals() []Signal {
	return []Signal{MemoryAvailable, NodeFSAvailable, NodeFSInodesFree, ImageFSAvailable, ImageFSInodesFree,
		ContainerFSAvailable, ContainerFSInodesFree, AllocatableMemory, PIDAvailable}
}

// Threshold is an absolute amount, or a share of the capacity.
type Threshold struct {
	Amount int64   // bytes or a count; takes precedence over Share when positive
	Share  float32 // of capacity, 0 to 1; single precision, because upstream's numbers depend on it
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

// Reserved is how much systemReserved or kubeReserved sets aside. A zero field reserves nothing.
type Reserved struct {
	CPU              unit.MilliCPU
	Memory           unit.Bytes
	EphemeralStorage unit.Bytes
	PIDs             int64
}

// Settings are the configuration that allocatable depends on.
type Settings struct {
	System, Kube Reserved
	EvictionHard map[Signal]Threshold
	Dropped      []Signal // default thresholds not in force, because evictionHard in the configuration replaces all

	MaxPods     int64
	PodsPerCore int64 // 0: no limit per core

	ReservedCPUs int64 // number of CPUs in reservedSystemCPUs, which replace the CPU reservations; 0: not set
	EnforcePods  bool  // limit all pods together to capacity - reservations; otherwise to capacity

	StorageUncounted bool // the node does not report ephemeral-storage (localStorageCapacityIsolation: false)
}

// Row is the subtraction for one resource.
type Row[T ~int64] struct {
	Capacity, System, Kube, Eviction, Allocatable T
}

// HugePages is the Row of one page size.
type HugePages struct {
	Size unit.Bytes
	Row[unit.Bytes]
}

// Resources is the result: the Row of each resource of a node. It does not change after Compute.
type Resources struct {
	CPU              Row[unit.MilliCPU]
	Memory           Row[unit.Bytes]
	HugePages        []HugePages     // by size; their capacity is also subtracted from Memory.Allocatable
	EphemeralStorage Row[unit.Bytes] // all zero when StorageUncounted
	Pods             Row[int64]
	PIDs             Row[int64] // enforced on the cgroup of all pods, not reported to the API; Capacity 0: not known

	// StorageUncounted is copied from Settings: the node does not report ephemeral-storage.
	StorageUncounted bool

	// Notes describe settings whose effect may surprise, one sentence each, sorted.
	Notes []string

	// Copied from Settings, for EnforcedOn. CPU is that in force: reservedSystemCPUs replaced it if set.
	system, kube Reserved
	cpus         idset.Set // all CPUs of the machine, also those that are offline, because they may come back
	enforcePods  bool      // copied from Settings, for Enforced
}

// Compute computes the Resources of a machine under settings. Reservations above capacity are an error that names all
// of them. The Resources returned with that error shows them, but a node must not be started with it.
func Compute(m machine.Machine, s Settings) (Resources, error) {
	cores := int64(m.CPUs.Len())
	asked := s
	if s.ReservedCPUs > 0 {
		s.System.CPU, s.Kube.CPU = unit.MilliCPU(s.ReservedCPUs)*unit.CPU, 0
	}
	r := Resources{
		enforcePods:      s.EnforcePods,
		StorageUncounted: s.StorageUncounted,
		system:           s.System,
		kube:             s.Kube,
		cpus:             m.CPUs.Union(m.Offline),
	}
	memoryThreshold := unit.Bytes(s.EvictionHard[MemoryAvailable].Of(int64(m.Memory)))
	r.CPU = row(unit.MilliCPU(cores)*unit.CPU, s.System.CPU, s.Kube.CPU, 0)
	r.Memory = row(m.Memory, s.System.Memory, s.Kube.Memory, memoryThreshold)
	if !s.StorageUncounted {
		threshold := unit.Bytes(s.EvictionHard[NodeFSAvailable].Of(int64(m.NodeFS.Capacity)))
		r.EphemeralStorage = row(m.NodeFS.Capacity, s.System.EphemeralStorage, s.Kube.EphemeralStorage, threshold)
	}
	r.PIDs = row(m.PIDs, s.System.PIDs, s.Kube.PIDs, 0)
	r.Pods = row(s.MaxPods, 0, 0, 0)
	if s.PodsPerCore > 0 {
		r.Pods = row(min(s.PodsPerCore*cores, s.MaxPods), 0, 0, 0)
	}
	for size, count := range m.HugePages {
		r.HugePages = append(r.HugePages, HugePages{size, row(size*unit.Bytes(count), 0, 0, 0)})
	}
	slices.SortFunc(r.HugePages, func(a, b HugePages) int { return cmp.Compare(a.Size, b.Size) })
	r.Memory.Allocatable = max(0, r.Memory.Allocatable-r.HugeMemory())
	r.note(m, asked)
	return r, r.checkReservations()
}

// HugeMemory returns the memory that huge pages of all sizes take.
func (r Resources) HugeMemory() unit.Bytes {
	var total unit.Bytes
	for _, h := range r.HugePages {
		total += h.Capacity
	}
	return total
}

func row[T ~int64](capacity, system, kube, eviction T) Row[T] {
	r := Row[T]{Capacity: capacity, System: system, Kube: kube, Eviction: eviction}
	r.Allocatable = max(0, capacity-r.Withheld())
	return r
}

// Withheld returns the sum of reservations and eviction threshold, and math.MaxInt64 when the sum overflows.
func (r Row[T]) Withheld() T { return plus(plus(r.System, r.Kube), r.Eviction) }

// plus adds two amounts that are not negative.
func plus[T ~int64](a, b T) T {
	if sum := a + b; sum >= a {
		return sum
	}
	return math.MaxInt64
}

// checkReservations returns an error when the reservations and the threshold exceed the capacity: such a node could
// never run a pod.
func (r Resources) checkReservations() error {
	var problems []string
	check := func(resource string, capacity, withheld fmt.Stringer, over bool) {
		if over {
			problems = append(problems, fmt.Sprintf("%s: reservations and eviction threshold of %v exceed the capacity of %v",
				resource, withheld, capacity))
		}
	}
	check("cpu", r.CPU.Capacity, r.CPU.Withheld(), r.CPU.Withheld() > r.CPU.Capacity)
	check("memory", r.Memory.Capacity, r.Memory.Withheld(), r.Memory.Withheld() > r.Memory.Capacity)
	check("ephemeral-storage", r.EphemeralStorage.Capacity, r.EphemeralStorage.Withheld(),
		r.EphemeralStorage.Withheld() > r.EphemeralStorage.Capacity)
	if known := r.PIDs.Capacity > 0; known && r.PIDs.Withheld() > r.PIDs.Capacity {
		problems = append(problems, fmt.Sprintf("pid: reservations of %d exceed the capacity of %d",
			r.PIDs.Withheld(), r.PIDs.Capacity))
	}
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("compute allocatable: %s; lower systemReserved, kubeReserved or evictionHard",
		strings.Join(problems, "; "))
}
