package allocatable

import (
	"fmt"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// smallAmount is a threshold in bytes below which the unit was probably forgotten: "100" for 100Mi. Chosen: a
// thousandth of the smallest useful threshold.
const smallAmount = unit.KiB * 100

// note writes Notes on the effects of settings that their names do not show.
func (l *Line) note(m machine.Machine, s Settings) {
	say := func(format string, args ...any) { l.Notes = append(l.Notes, fmt.Sprintf(format, args...)) }
	l.noteThresholds(m, s, say)
	if s.ReservedCPUs > 0 {
		if s.System.CPU > 0 || s.Kube.CPU > 0 {
			say("reservedSystemCPUs replaces the reserved CPU: %d whole CPUs instead of systemReserved %v and kubeReserved %v", s.ReservedCPUs, s.System.CPU, s.Kube.CPU)
		}
		say("reservedSystemCPUs moves no process: daemons run on all CPUs, and containers without exclusive CPUs on the reserved ones too unless strict-cpu-reservation is set")
	}
	if cores := int64(m.CPUs.Len()); s.PodsPerCore > 0 && s.PodsPerCore*cores < s.MaxPods {
		say("podsPerCore %d on %d CPUs allows %d pods, fewer than maxPods %d", s.PodsPerCore, cores, l.Pods.Capacity, s.MaxPods)
	}
	kept := l.Memory.Kept()
	if !s.EnforcePods && (kept > 0 || l.CPU.Kept() > 0) {
		say("enforceNodeAllocatable leaves out pods: the kernel lets pods use all of the machine's memory and CPU; only the scheduler knows of the line")
	}
	if l.Memory.Eviction > 0 && s.EnforcePods && (l.Memory.System > 0 || l.Memory.Kube > 0) {
		say("the kernel limits all pods together to %v of memory, %v above what is allocatable: the eviction threshold is not subtracted", l.Unreserved(), l.Memory.Eviction)
	}
	if huge, left := l.HugeMemory(), max(0, l.Memory.Capacity-kept); huge > left {
		say("huge pages take %v, more than the %v of memory that is left: nothing is allocatable as ordinary memory", huge, left)
	} else if huge > 0 {
		say("huge pages take %v off allocatable memory; the reservations come on top, from ordinary memory", huge)
		if s.EnforcePods {
			say("the kernel does not count huge pages as memory: it limits all pods together to %v of ordinary memory, of which there is only %v", l.Unreserved(), l.Memory.Capacity-huge)
		}
	}
	if s.StorageUncounted {
		say("localStorageCapacityIsolation is false: ephemeral-storage is no resource of this node, whatever is reserved of it")
	}
	for resource, nothing := range map[string]bool{"cpu": l.CPU.Allocatable == 0, "memory": l.Memory.Allocatable == 0 && l.HugeMemory() == 0, "pods": l.Pods.Allocatable == 0} {
		if nothing {
			say("nothing is allocatable of %s: no pod can be scheduled here", resource)
		}
	}
	slices.Sort(l.Notes)
}

// noteThresholds writes Notes on eviction thresholds.
func (l *Line) noteThresholds(m machine.Machine, s Settings, say func(string, ...any)) {
	if len(s.Dropped) > 0 {
		names := make([]string, len(s.Dropped))
		for i, signal := range s.Dropped {
			names[i] = string(signal)
		}
		slices.Sort(names)
		say("evictionHard leaves out %s: they have no threshold, not the default; set mergeDefaultEvictionSettings to keep the defaults", strings.Join(names, ", "))
	}
	for signal, capacity := range map[Signal]unit.Bytes{MemoryAvailable: m.Memory, NodeFSAvailable: m.NodeFS.Capacity, ImageFSAvailable: m.ImageFS.Capacity} {
		threshold, ok := s.EvictionHard[signal]
		switch amount := unit.Bytes(threshold.Amount); {
		case !ok:
		case amount > 0 && amount < smallAmount:
			say("evictionHard %s is %d bytes: was a unit meant, as in %dMi, or a percentage?", signal, threshold.Amount, threshold.Amount)
		case amount > capacity && capacity > 0:
			say("evictionHard %s %v is more than the %v there is: pods are evicted as soon as they start", signal, amount, capacity)
		}
	}
	if share := s.EvictionHard[MemoryAvailable]; share.Amount == 0 && share.Share > 0 {
		say("evictionHard memory.available is a share of the machine: %v of %v here, and more on a larger one", l.Memory.Eviction, l.Memory.Capacity)
	}
}
