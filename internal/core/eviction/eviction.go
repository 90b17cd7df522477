// Package eviction decides what a node sheds before it goes under: when, in which order, how much and how gently.
//
// # Model
//
// A *signal* is something of which the node has some left (memory, bytes and inodes of file systems, process ids). A
// *threshold* is a line on a signal; it is *met* when less is available. A met threshold *acts* once it was met for its
// grace: hard ones at once, soft ones after evictionSoftGracePeriod. What acts makes a *need*: the threshold plus its
// minimum reclaim, less what is available, less what is *coming*: what pods that are being killed will free. A need is
// answered first by *reclaim* of what nobody misses (dead containers, unused images), then by *victims*.
//
//	observations --> met --> conditions (held for the transition period)
//	                  |
//	                  +--> acting --> needs --> reclaim, then victims --> the shell kills, and tells by Pod.KillAt
//
// Victims are taken from upstream's order of pods until they cover the need; then, from the last to the first, each is
// spared whom the others can do without, as the scheduler reprieves those it would preempt. So no victim is beyond the
// smallest set of that order. A pod whose usage is not known frees nothing that is known, and is never killed for that.
// Critical pods (static, mirror, of system priority) are ranked last and never chosen, as upstream.
//
// Several needs are answered in one Decision: hard ones before soft ones, memory before the rest. What dies for one counts
// for all. A hard need does not wait for a pod that is dying gently: it cuts its grace short, before it takes another.
// A need that all pods together cannot cover takes one pod, and the next when that one's share has come or stayed away.
//
// # Use
//
//	d := eviction.New(config)
//	for { decision := d.Step(now, facts); act on it; sleep until decision.Wake or an event of the kernel }
//
// A look at the signals alone is cheap: Quiet says whether that is enough. If it is, Step with Facts.Quick, without pods.
// Steps of a Decider are serial. Outcomes are reported as facts: a pod being killed has its KillAt, one that is gone is
// left out, a finished reclaim is in Done. The Decider also remembers its own victims, so facts may lag behind.
//
// # Invariants
//
//   - Same history, same decisions: no clock, no order of maps; ties go by namespace, name and id.
//   - With the default memory signal, thresholds, order, grace of soft evictions, conditions and messages are upstream's
//     (v1.36.3), judged by it in oracle/. Hard evictions of memory and process ids kill at once, not after 1 s.
//   - No critical pod is a victim, and none whose usage is unknown or frees nothing of what is needed.
//   - Nothing is decided twice on one observation.
//
// # What it does not do
//
// It reads, kills and writes nothing; internal/agent does. It does not choose images and containers to remove
// (core/imagegc) and does not refuse pods (core/admission). It does not look at pressure stalls: they tell the shell when
// to look, not whom to evict.
package eviction

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
)

// Condition is a condition of a node, spelled as in its status.
type Condition string

// Conditions.
const (
	DiskPressure   Condition = "DiskPressure"
	MemoryPressure Condition = "MemoryPressure"
	PIDPressure    Condition = "PIDPressure"
)

// Resource is what runs short, spelled as messages and annotations spell it.
type Resource string

// Resources.
const (
	Memory  Resource = "memory"
	Storage Resource = "ephemeral-storage"
	Inodes  Resource = "inodes"
	PIDs    Resource = "pids"
)

// Reason is the reason of an evicted pod's status, of its event, and of a refusal under pressure.
const Reason = "Evicted"

// Threshold is a line on a signal. It is comparable: equal thresholds are one.
type Threshold struct {
	Signal  allocatable.Signal
	Value   allocatable.Threshold
	Text    string                // Value as the API prints it; empty for a share
	Grace   time.Duration         // met for so long before it acts; 0: hard, whichever list it stands in (as upstream)
	Reclaim allocatable.Threshold // at least this much more than Value is reclaimed; zero: none
}

// IsHard reports whether t acts at once.
func (t Threshold) IsHard() bool { return t.Grace == 0 }

// Config says how a node sheds load.
type Config struct {
	Thresholds []Threshold

	Transition   time.Duration // a condition holds until it was not observed for so long (evictionPressureTransitionPeriod)
	SoftGraceMax time.Duration // bounds the grace of pods evicted softly (evictionMaxPodGracePeriod); 0: the least there is

	Memory        MemorySignal
	ReclaimMemory bool // have the kernel reclaim memory of pods above their request, as the line nears

	ImagesLow    int64 // per cent of the images' file system in use, down to which images are removed (imageGCLowThresholdPercent)
	LocalStorage bool  // enforce limits of local storage (localStorageCapacityIsolation)
}

// Disks says which file systems a node has.
type Disks uint8

// Layouts of disks.
const (
	OneDisk   Disks = iota // images, writable layers, logs and volumes are all on nodefs
	ImageDisk              // images and writable layers are on imagefs
	SplitDisk              // images are on imagefs, writable layers on nodefs with the rest
)

// resourceOf returns what a signal is about.
func resourceOf(s allocatable.Signal) Resource {
	switch s {
	case allocatable.MemoryAvailable, allocatable.AllocatableMemory:
		return Memory
	case allocatable.NodeFSAvailable, allocatable.ImageFSAvailable, allocatable.ContainerFSAvailable:
		return Storage
	case allocatable.NodeFSInodesFree, allocatable.ImageFSInodesFree, allocatable.ContainerFSInodesFree:
		return Inodes
	}
	return PIDs
}

func conditionOf(s allocatable.Signal) Condition {
	switch resourceOf(s) {
	case Memory:
		return MemoryPressure
	case PIDs:
		return PIDPressure
	}
	return DiskPressure
}

// withContainerFS returns the thresholds with those of containerfs, which nobody configures: the file system of writable
// layers is nodefs or imagefs, and has that one's. Configured ones are dropped, as upstream drops them.
func withContainerFS(all []Threshold, d Disks) []Threshold {
	twin := map[allocatable.Signal]allocatable.Signal{
		allocatable.NodeFSAvailable: allocatable.ContainerFSAvailable, allocatable.NodeFSInodesFree: allocatable.ContainerFSInodesFree,
	}
	if d == ImageDisk {
		twin = map[allocatable.Signal]allocatable.Signal{
			allocatable.ImageFSAvailable: allocatable.ContainerFSAvailable, allocatable.ImageFSInodesFree: allocatable.ContainerFSInodesFree,
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
