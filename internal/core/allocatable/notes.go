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
func (r *Resources) note(m machine.Machine, s Settings) {
	say := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	r.noteThresholds(m, s, say)
	if s.ReservedCPUs > 0 {
		if s.System.CPU > 0 || s.Kube.CPU > 0 {
			say("reservedSystemCPUs replaces the reserved CPU: %d whole CPUs instead of systemReserved %v and kubeReserved %v",
				s.ReservedCPUs, s.System.CPU, s.Kube.CPU)
		}
		say("reservedSystemCPUs moves no process: daemons run on all CPUs, and containers without exclusive CPUs on the " +
			"reserved ones too unless strict-cpu-reservation is set")
	}
	if cores := int64(m.CPUs.Len()); s.PodsPerCore > 0 && s.PodsPerCore*cores < s.MaxPods {
		say("podsPerCore %d on %d CPUs allows %d pods, fewer than maxPods %d", s.PodsPerCore, cores, r.Pods.Capacity,
			s.MaxPods)
	}
	withheld := r.Memory.Withheld()
	if !s.EnforcePods && (withheld > 0 || r.CPU.Withheld() > 0) {
		say("enforceNodeAllocatable does not contain pods: the kernel lets pods use all memory and CPU of the machine; " +
			"only the scheduler keeps to allocatable")
	}
	if r.Memory.Eviction > 0 && s.EnforcePods && (r.Memory.System > 0 || r.Memory.Kube > 0) {
		say("the kernel limits all pods together to %v of memory, %v above allocatable: the eviction threshold is not "+
			"subtracted", r.Unreserved(), r.Memory.Eviction)
	}
	if huge, left := r.HugeMemory(), max(0, r.Memory.Capacity-withheld); huge > left {
		say("huge pages take %v, more than the %v of memory that is left: allocatable memory is 0", huge, left)
	} else if huge > 0 {
		say("huge pages reduce allocatable memory by %v; the reservations are subtracted from ordinary memory in addition",
			huge)
		if s.EnforcePods {
			say("the kernel does not count huge pages as memory: it limits all pods together to %v of ordinary memory, but "+
				"there is only %v", r.Unreserved(), r.Memory.Capacity-huge)
		}
	}
	if s.StorageUncounted {
		say("localStorageCapacityIsolation is false: this node does not report ephemeral-storage, and reservations of it " +
			"have no effect")
	}
	for resource, none := range map[string]bool{
		"cpu":    r.CPU.Allocatable == 0,
		"memory": r.Memory.Allocatable == 0 && r.HugeMemory() == 0,
		"pods":   r.Pods.Allocatable == 0,
	} {
		if none {
			say("allocatable %s is 0: no pod can be scheduled on this node", resource)
		}
	}
	slices.Sort(r.Notes)
}

// noteThresholds writes Notes on eviction thresholds.
func (r *Resources) noteThresholds(m machine.Machine, s Settings, say func(string, ...any)) {
	if len(s.Dropped) > 0 {
		names := make([]string, len(s.Dropped))
		for i, signal := range s.Dropped {
			names[i] = string(signal)
		}
		slices.Sort(names)
		say("evictionHard does not contain %s: they have no threshold, not even the default; set "+
			"mergeDefaultEvictionSettings to keep the defaults", strings.Join(names, ", "))
	}
	for signal, capacity := range map[Signal]unit.Bytes{
		MemoryAvailable:  m.Memory,
		NodeFSAvailable:  m.NodeFS.Capacity,
		ImageFSAvailable: m.ImageFS.Capacity,
	} {
		threshold, ok := s.EvictionHard[signal]
		switch amount := unit.Bytes(threshold.Amount); {
		case !ok:
		case amount > 0 && amount < smallAmount:
			say("evictionHard %s is %d bytes: was a unit meant, as in %dMi, or a percentage?", signal, threshold.Amount,
				threshold.Amount)
		case amount > capacity && capacity > 0:
			say("evictionHard %s %v is more than the capacity of %v: pods are evicted as soon as they start", signal, amount,
				capacity)
		}
	}
	if share := s.EvictionHard[MemoryAvailable]; share.Amount == 0 && share.Share > 0 {
		say("evictionHard memory.available is a percentage of the machine's memory: %v of %v here, and more on a larger "+
			"machine", r.Memory.Eviction, r.Memory.Capacity)
	}
}
