package eviction

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Facts are what the shell observed for one Step.
type Facts struct {
	// A signal that could not be read is left out, and its thresholds are not evaluated.
	Signals map[allocatable.Signal]Observation
	Disks   Disks
	Memory  NodeMemory // the node memory that the memory signals were computed from; only recorded
	// Notified are the signals for which the kernel sends a notification before they come near a threshold, so that
	// checks are needed less often.
	Notified map[allocatable.Signal]bool
	Quick    bool // pods were not observed: none is evicted, and no own victim is dropped
	Pods     []Pod
	Done     map[Step]unit.Instant // when the last reclaim of each kind that a Decision asked for ended, successful or not
}

// Observation is the value of a signal as it was read.
type Observation struct {
	Available, Capacity int64        // bytes or a count
	At                  unit.Instant // when it was read; zero: now
}

// Pod is a pod on the node, from its admission until all its resources are released.
type Pod struct {
	ID, Namespace, Name string
	Priority            int32
	Critical            bool                       // static, mirror, or with the priority of a system component
	Grace               unit.Amount[time.Duration] // terminationGracePeriodSeconds

	MemoryRequest  unit.Bytes // of the whole pod
	StorageRequest unit.Bytes
	LevelMemory    Quantity // requested at pod level; absent: there is no such request
	StorageLimit   Quantity // of the whole pod; absent: none

	Used       *Usage      // nil: it could not be read
	Containers []Container // in the order in which messages name them
	Volumes    []Volume

	// KillAt is when its remaining processes are killed, or were, whatever the cause. Zero: the pod is not being
	// terminated.
	KillAt unit.Instant
}

// Quantity is an amount as written in the API. The zero Quantity is absent.
type Quantity struct {
	Value int64
	Text  string // as the API prints it
}

// IsSet reports whether q is present.
func (q Quantity) IsSet() bool { return q.Text != "" }

// String prints q as messages do: an absent quantity is 0.
func (q Quantity) String() string {
	if q.Text == "" {
		return "0"
	}
	return q.Text
}

// Usage is what a pod uses, all read at the same time.
type Usage struct {
	WorkingSet unit.Bytes // memory charged to the pod, minus inactive file cache
	Cache      unit.Bytes // the part of WorkingSet that is file cache and can be dropped by the kernel
	Swap       unit.Bytes
	PIDs       int64
	Storage    unit.Bytes // local storage that counts against the pod's limit
}

// Disk is what something uses of a file system.
type Disk struct {
	Bytes, Inodes int64
}

// Container is a running container.
type Container struct {
	Name           string
	WorkingSet     unit.Bytes
	Rootfs, Logs   *Disk // writable layer, log files; nil: not known
	MemoryRequest  Quantity
	StorageRequest Quantity
	StorageLimit   Quantity // of regular containers; absent for other kinds
	Ephemeral      bool     // it cannot have requests, so messages do not name it
}

// Volume is a volume of a pod.
type Volume struct {
	Name      string
	Used      *Disk    // nil: not known
	Local     bool     // upstream counts it as the pod's use of nodefs: emptyDir on disk, configMap, hostPath
	Freed     bool     // removed together with the pod; false for a hostPath
	SizeLimit Quantity // of an emptyDir; absent: none
}

// MemorySignal says which memory counts as available.
type MemorySignal string

// Memory signals.
const (
	// SignalWorkingSet is upstream's and the default: page cache in active use does not count as available.
	SignalWorkingSet MemorySignal = ""
	// SignalAvailable counts memory as available that the kernel can drop or swap out within the pods' limits, and does
	// not count huge pages as ordinary memory.
	SignalAvailable MemorySignal = "available"
)

// NodeMemory is the machine's memory as the kernel reports it.
type NodeMemory struct {
	Total      unit.Bytes // MemTotal
	WorkingSet unit.Bytes // of all processes: usage minus inactive file cache
	Available  unit.Bytes // MemAvailable: free and droppable, minus what the kernel reserves (min_free_kbytes)
	HugePages  unit.Bytes // set aside for huge pages, used or not
	SwapFree   unit.Bytes
	SwapRoom   unit.Bytes // what all pods together may still swap out within their swap limits
}

// Node returns the observation of memory.available.
func (s MemorySignal) Node(m NodeMemory, at unit.Instant) Observation {
	if s == SignalAvailable {
		return Observation{int64(m.Available + m.Swappable()), int64(m.Total - m.HugePages), at}
	}
	return Observation{int64(m.Total - m.WorkingSet), int64(m.Total), at}
}

// Pods returns the observation of allocatableMemory.available: the limit of all pods together minus their working set.
// m is the machine's memory. SignalAvailable adds what the pods may swap out, because at their limit the kernel swaps
// before it kills.
func (s MemorySignal) Pods(limit, workingSet, cache unit.Bytes, m NodeMemory, at unit.Instant) Observation {
	if s == SignalAvailable {
		workingSet -= cache + m.Swappable()
	}
	return Observation{int64(limit - workingSet), int64(limit), at}
}

// Swappable is what pods may still swap out, and for which there is swap. It is not known whether swapping is fast
// enough. In one measurement pods used more memory than fits, and the swap disk gave them 2 MiB a second. Pressure
// stall information then said that they waited for memory 3% of the time and for I/O 60% (Linux 6.1 in a guest of the
// lab; the kernel counts reading back inactive pages as I/O).
func (m NodeMemory) Swappable() unit.Bytes { return min(m.SwapFree, max(0, m.SwapRoom)) }

// of returns the memory that a pod counts as using, and the memory that is freed at once when it ends.
func (s MemorySignal) of(u Usage) (used, freed unit.Bytes) {
	if s == SignalAvailable {
		held := max(0, u.WorkingSet-u.Cache)
		return held + u.Swap, held
	}
	return u.WorkingSet, u.WorkingSet
}
