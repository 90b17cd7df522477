// Package eviction decides when a node evicts pods because it runs out of a resource: which pods, in which order, how
// many, and with which grace period.
//
// # Model
//
// A *signal* measures how much of a resource the node has left (memory, bytes and inodes of file systems, process ids).
// A *threshold* is a value of a signal. It is *met* when less than that is available. A met threshold *acts* when it
// has been met for its grace period: hard thresholds at once, soft ones after evictionSoftGracePeriod. A threshold that
// acts makes a *need*: the threshold, plus its minimum reclaim, minus what is available, minus what is *coming*. Coming
// is what pods that are being killed will free. A need is answered first by *reclaim*, which removes things that no pod
// uses (dead containers, unused images), and then by *victims*.
//
//	observations --> met --> conditions (true for the transition period)
//	                  |
//	                  +--> acting --> needs --> reclaim, then victims --> the shell kills and reports Pod.KillAt
//
// Victims are taken in upstream's order of pods until they cover the need. Then each victim is checked again, from the
// last to the first: it is spared if the others cover the need without it. kube-scheduler reprieves victims of
// preemption in the same way. So no pod is evicted that the need does not require. A pod whose usage is not known
// counts as freeing nothing, and is not evicted. Critical pods (static, mirror, or of system priority) are ranked last
// and never evicted, as upstream.
//
// One Decision answers several needs: hard before soft, memory before the rest. What a victim frees counts for all
// needs. A hard need does not wait for a pod that is terminating with a long grace period: it shortens that grace
// period before it evicts another pod. If all pods together cannot cover a need, one pod is evicted. The next one
// follows when the memory or space of the first was freed, or was not freed in time.
//
// # Use
//
//	d := eviction.New(config)
//	for { decision := d.Step(now, facts); act on it; sleep until decision.Wake or a notification of the kernel }
//
// Reading the signals alone is cheap. Quiet says whether that is enough; if so, call Step with Facts.Quick and without
// pods. Calls of a Decider must not overlap. Outcomes are reported as facts: a pod that is being killed has its KillAt,
// a pod that is gone is left out, and a finished reclaim is in Done. The Decider also remembers its own victims, so
// facts may arrive late.
//
// # Invariants
//
//   - The same history gives the same decisions: no clock is read, and no map order matters. Ties are broken by
//     namespace, name and id.
//   - With the default memory signal, these are upstream's (v1.36.3): thresholds, order, grace period of soft
//     evictions, conditions, messages. The tests in oracle/ compare them with upstream's code. Hard evictions for
//     memory and process ids kill at once, not after 1 s.
//   - A critical pod is never a victim. Neither is a pod whose usage is not known, or that frees nothing of what is
//     needed.
//   - No two decisions are made on one observation.
//
// # What it does not do
//
// It reads, kills and writes nothing; internal/agent does. It does not choose which images and containers to remove
// (core/imagegc), and it does not reject pods (core/admission). It does not use pressure stall information: a stall
// makes the shell check earlier, and does not decide which pod is evicted.
package eviction

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// Condition is a node condition, spelled as in the Node's status.
type Condition string

// Conditions.
const (
	DiskPressure   Condition = wellknown.ConditionDiskPressure
	MemoryPressure Condition = wellknown.ConditionMemoryPressure
	PIDPressure    Condition = wellknown.ConditionPIDPressure
)

// Resource is a resource that runs short, spelled as in messages and annotations.
type Resource string

// Resources.
const (
	Memory  Resource = "memory"
	Storage Resource = "ephemeral-storage"
	Inodes  Resource = "inodes"
	PIDs    Resource = "pids"
)

// Reason is the reason in an evicted pod's status and Event, and in the status of a pod that is rejected under
// pressure.
const Reason = "Evicted"

// Threshold is an eviction threshold. It is comparable: equal thresholds count as one.
type Threshold struct {
	Signal allocatable.Signal
	Value  allocatable.Threshold
	Text   string // Value as the API prints it; empty for a percentage
	// How long it must be met before it acts; 0: it is hard, also in the list of soft ones (as upstream).
	Grace time.Duration
	// Minimum reclaim: how much more than Value must be available afterwards; zero: no more.
	Reclaim allocatable.Threshold
}

// IsHard reports whether t acts at once.
func (t Threshold) IsHard() bool { return t.Grace == 0 }

// Config is the node's eviction configuration.
type Config struct {
	Thresholds []Threshold

	// A condition stays true until it was not observed for so long (evictionPressureTransitionPeriod).
	Transition   time.Duration
	SoftGraceMax time.Duration // longest grace period of pods evicted softly (evictionMaxPodGracePeriod); 0: graceLeast

	Memory        MemorySignal
	ReclaimMemory bool // ask the kernel to reclaim memory of pods above their request when memory is near a threshold

	// Removal of images stops at this use of their file system, in per cent (imageGCLowThresholdPercent).
	ImagesLow    int64
	LocalStorage bool // enforce limits of local storage (localStorageCapacityIsolation)
}

// Disks says which file systems a node has, and for what.
type Disks uint8

// The layouts.
const (
	OneDisk   Disks = iota // images, writable layers, logs and volumes are all on nodefs
	ImageDisk              // images and writable layers are on imagefs
	SplitDisk              // images are on imagefs, writable layers on nodefs with the rest
)

// resources are what the signals measure. Every signal is listed.
var resources = map[allocatable.Signal]Resource{
	allocatable.MemoryAvailable:       Memory,
	allocatable.AllocatableMemory:     Memory,
	allocatable.NodeFSAvailable:       Storage,
	allocatable.ImageFSAvailable:      Storage,
	allocatable.ContainerFSAvailable:  Storage,
	allocatable.NodeFSInodesFree:      Inodes,
	allocatable.ImageFSInodesFree:     Inodes,
	allocatable.ContainerFSInodesFree: Inodes,
	allocatable.PIDAvailable:          PIDs,
}

// resourceOf returns the resource that a signal measures.
func resourceOf(s allocatable.Signal) Resource { return resources[s] }

// conditions are the Node's conditions, by the resource that is short.
var conditions = map[Resource]Condition{
	Memory:  MemoryPressure,
	Storage: DiskPressure,
	Inodes:  DiskPressure,
	PIDs:    PIDPressure,
}

// conditionOf returns the Node's condition while a threshold of a signal is met.
func conditionOf(s allocatable.Signal) Condition { return conditions[resourceOf(s)] }

// withContainerFS returns the thresholds, and with them those of containerfs, which cannot be configured: the file
// system of writable layers is nodefs or imagefs, and has the thresholds of that one. Configured thresholds for
// containerfs are dropped, as upstream drops them.
func withContainerFS(all []Threshold, d Disks) []Threshold {
	twin := map[allocatable.Signal]allocatable.Signal{
		allocatable.NodeFSAvailable:  allocatable.ContainerFSAvailable,
		allocatable.NodeFSInodesFree: allocatable.ContainerFSInodesFree,
	}
	if d == ImageDisk {
		twin = map[allocatable.Signal]allocatable.Signal{
			allocatable.ImageFSAvailable:  allocatable.ContainerFSAvailable,
			allocatable.ImageFSInodesFree: allocatable.ContainerFSInodesFree,
		}
	}
	var out, copies []Threshold
	for _, t := range all {
		if t.Signal == allocatable.ContainerFSAvailable || t.Signal == allocatable.ContainerFSInodesFree {
			continue
		}
		out = append(out, t)
		if signal, ok := twin[t.Signal]; ok {
			t.Signal = signal
			copies = append(copies, t)
		}
	}
	return append(out, copies...)
}
