// Package loadline draws a node's load line: how much of the machine pods may be promised, and how much is kept back.
//
// # Model
//
//	allocatable = capacity - systemReserved - kubeReserved - hard eviction threshold
//
// per resource and never below zero. CPU and pods have no threshold. Percentages are of capacity. Huge pages come off
// allocatable memory, because the kernel took them from it at boot.
//
// # Invariants
//
//   - A Line can be checked by hand: each Row holds every term of its subtraction.
//   - The same numbers as Kubernetes 1.36, to the byte, its single-precision percentages included.
//   - Impossible settings are an error with all problems; surprising ones are Notes.
//
// # What it does not do
//
// It does not evict (core/eviction) and writes no cgroup: Enforced says what the kernel is to hold pods to, core/qos in
// which values, internal/host/cgroup writes them.
package loadline

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
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
	HugePages        []HugePages // by size; their capacity is also subtracted from Memory.Allocatable
	EphemeralStorage Row[unit.Bytes]
	Pods             Row[int64]
	PIDs             Row[int64] // enforced, not published

	Notes []string // settings whose effect may surprise

	enforcePods bool
}

// Draw draws the line. Reservations above capacity are an error that names all of them.
func Draw(m machine.Machine, s Settings) (Line, error) {
	cores := int64(m.CPUs.Len())
	l := Line{enforcePods: s.EnforcePods}
	if s.ReservedCPUs > 0 {
		if s.System.CPU > 0 || s.Kube.CPU > 0 {
			l.note("reservedSystemCPUs replaces the reserved CPU: %d whole CPUs instead of systemReserved %v and kubeReserved %v", s.ReservedCPUs, s.System.CPU, s.Kube.CPU)
		}
		s.System.CPU, s.Kube.CPU = unit.MilliCPU(s.ReservedCPUs)*unit.CPU, 0
	}
	memoryThreshold := unit.Bytes(s.EvictionHard[MemoryAvailable].Of(int64(m.Memory)))
	storageThreshold := unit.Bytes(s.EvictionHard[NodeFSAvailable].Of(int64(m.NodeFS.Capacity)))
	l.CPU = row(unit.MilliCPU(cores)*unit.CPU, s.System.CPU, s.Kube.CPU, 0)
	l.Memory = row(m.Memory, s.System.Memory, s.Kube.Memory, memoryThreshold)
	l.EphemeralStorage = row(m.NodeFS.Capacity, s.System.EphemeralStorage, s.Kube.EphemeralStorage, storageThreshold)
	l.PIDs = row(m.PIDs, s.System.PIDs, s.Kube.PIDs, 0)
	l.Pods = row(s.MaxPods, 0, 0, 0)
	if byCores := s.PodsPerCore * cores; s.PodsPerCore > 0 && byCores < s.MaxPods {
		l.Pods = row(byCores, 0, 0, 0)
		l.note("podsPerCore %d on %d CPUs allows %d pods, fewer than maxPods %d", s.PodsPerCore, cores, byCores, s.MaxPods)
	}
	for size, count := range m.HugePages {
		total := size * unit.Bytes(count)
		l.HugePages = append(l.HugePages, HugePages{size, row(total, 0, 0, 0)})
		l.Memory.Allocatable = max(0, l.Memory.Allocatable-total)
	}
	slices.SortFunc(l.HugePages, func(a, b HugePages) int { return int(min(max(a.Size-b.Size, -1), 1)) })
	if err := l.checkReservations(); err != nil {
		return Line{}, err
	}
	l.noteThresholds(s)
	return l, nil
}

func row[T ~int64](capacity, system, kube, eviction T) Row[T] {
	return Row[T]{capacity, system, kube, eviction, max(0, capacity-system-kube-eviction)}
}

// checkReservations refuses a node that could never run a pod: more is kept back than there is.
func (l Line) checkReservations() error {
	var problems []string
	check := func(resource, capacity, kept string, over bool) {
		if over {
			problems = append(problems, fmt.Sprintf("%s: %s is kept back of a capacity of %s", resource, kept, capacity))
		}
	}
	check("cpu", l.CPU.Capacity.String(), l.CPU.kept().String(), l.CPU.kept() > l.CPU.Capacity)
	check("memory", l.Memory.Capacity.String(), l.Memory.kept().String(), l.Memory.kept() > l.Memory.Capacity)
	check("ephemeral-storage", l.EphemeralStorage.Capacity.String(), l.EphemeralStorage.kept().String(), l.EphemeralStorage.kept() > l.EphemeralStorage.Capacity)
	if len(problems) == 0 {
		return nil
	}
	return fmt.Errorf("draw load line: %s; lower systemReserved, kubeReserved or evictionHard", strings.Join(problems, "; "))
}

func (r Row[T]) kept() T { return r.System + r.Kube + r.Eviction }

func (l *Line) note(format string, args ...any) {
	l.Notes = append(l.Notes, fmt.Sprintf(format, args...))
}

func (l *Line) noteThresholds(s Settings) {
	if len(s.Dropped) > 0 {
		names := make([]string, len(s.Dropped))
		for i, signal := range s.Dropped {
			names[i] = string(signal)
		}
		slices.Sort(names)
		l.note("evictionHard leaves out %s: they have no threshold, not the default; set mergeDefaultEvictionSettings to keep the defaults", strings.Join(names, ", "))
	}
	if threshold := l.Memory.Eviction; threshold > 0 && s.EnforcePods && (l.Memory.System > 0 || l.Memory.Kube > 0) {
		l.note("the kernel holds all pods together to %v of memory, %v above what is allocatable: the eviction threshold is not subtracted", l.enforcedMemory(), threshold)
	}
	var huge unit.Bytes
	for _, h := range l.HugePages {
		huge += h.Capacity
	}
	if huge > 0 && l.Memory.Capacity-l.Memory.kept() < huge {
		l.note("huge pages take %v, more than the %v of memory that is left: nothing is allocatable as ordinary memory", huge, l.Memory.Capacity-l.Memory.kept())
	}
}

func (l Line) enforcedMemory() unit.Bytes {
	return max(0, l.Memory.Capacity-l.Memory.System-l.Memory.Kube)
}

// Enforced returns the values of the group of all pods: the line without the eviction threshold, or the whole machine
// when the configuration does not enforce it.
func (l Line) Enforced() qos.Values {
	cpu, memory, pids := l.CPU.Capacity, l.Memory.Capacity, l.PIDs.Capacity
	if l.enforcePods {
		cpu, memory, pids = l.CPU.Allocatable, l.enforcedMemory(), l.PIDs.Allocatable
	}
	bound := unit.Limit[int64]{}
	if l.PIDs.Capacity > 0 {
		bound = unit.LimitTo(pids)
	}
	huge := map[unit.Bytes]unit.Bytes{}
	for _, h := range l.HugePages {
		huge[h.Size] = h.Allocatable
	}
	return qos.NodeValues(cpu, memory, bound, huge)
}
