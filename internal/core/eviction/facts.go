package eviction

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Facts are what a shell observed.
type Facts struct {
	Signals map[allocatable.Signal]Observation // one that could not be read is left out, and its thresholds are not judged
	Disks   Disks
	Memory  NodeMemory // from which the signals of memory were found; for the record
	// Rings are the signals that the kernel rings for before they come near a line, so that they need not be polled for that.
	Rings map[allocatable.Signal]bool
	Quick bool // pods were not looked at: none is chosen, none is forgotten
	Pods  []Pod
	Done  map[Step]unit.Instant // when the last reclaim that a Decision asked for came to its end, well or not
}

// Observation is a signal as it was read.
type Observation struct {
	Available, Capacity int64        // bytes or a count
	At                  unit.Instant // when; zero: just now
}

// Pod is a pod on the node, from its admission until nothing of it is left.
type Pod struct {
	ID, Namespace, Name string
	Priority            int32
	Critical            bool                       // static, mirror, or of a priority of system components
	Grace               unit.Amount[time.Duration] // terminationGracePeriodSeconds

	MemoryRequest  unit.Bytes // of the whole pod
	StorageRequest unit.Bytes
	LevelMemory    Quantity // requested at the level of the pod; absent: it is not
	StorageLimit   Quantity // of the whole pod; absent: none

	Used       *Usage      // nil: could not be read
	Containers []Container // in the order in which messages name them
	Volumes    []Volume

	// KillAt is when what still runs of it is, or was, killed, whoever ends it. Zero: nobody does.
	KillAt unit.Instant
}

// Quantity is an amount in the words of the API. The zero Quantity is absent.
type Quantity struct {
	Value int64
	Text  string // as the API prints it
}

// IsSet reports whether q was stated.
func (q Quantity) IsSet() bool { return q.Text != "" }

// String prints q as messages do: what is absent is 0.
func (q Quantity) String() string {
	if q.Text == "" {
		return "0"
	}
	return q.Text
}

// Usage is what a pod uses, read in one go.
type Usage struct {
	WorkingSet unit.Bytes // memory charged to it, less inactive file cache
	Cache      unit.Bytes // of the working set, file cache that the kernel can drop
	Swap       unit.Bytes
	PIDs       int64
	Storage    unit.Bytes // local storage that counts against the pod's limit
}

// Disk is a use of a file system.
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
	StorageLimit   Quantity // of regular containers; absent for others
	Ephemeral      bool     // cannot request anything, so messages do not blame it
}

// Volume is a volume of a pod.
type Volume struct {
	Name      string
	Used      *Disk    // nil: not known
	Local     bool     // counted by upstream as the pod's use of nodefs: emptyDir on disk, configMap, hostPath
	Freed     bool     // goes when the pod goes; a hostPath stays
	SizeLimit Quantity // of an emptyDir; absent: none
}

// MemorySignal says what counts as available memory.
type MemorySignal string

// Memory signals.
const (
	// SignalWorkingSet is upstream's: the page cache in active use is not available. The default.
	SignalWorkingSet MemorySignal = ""
	// SignalAvailable does not count as used what the kernel can drop, knows that huge pages are no ordinary memory, and that
	// what may be swapped out leaves room.
	SignalAvailable MemorySignal = "available"
)

// NodeMemory is the machine's memory as the kernel tells of it.
type NodeMemory struct {
	Total      unit.Bytes // MemTotal
	WorkingSet unit.Bytes // of everything: usage less inactive file cache
	Available  unit.Bytes // MemAvailable: free and droppable, less what the kernel keeps (min_free_kbytes)
	HugePages  unit.Bytes // set aside, used or not
	SwapFree   unit.Bytes
	SwapRoom   unit.Bytes // what pods may still swap out together, within their limits of swap
}

// Node returns the observation of memory.available.
func (s MemorySignal) Node(m NodeMemory, at unit.Instant) Observation {
	if s == SignalAvailable {
		return Observation{int64(m.Available + m.Swappable()), int64(m.Total - m.HugePages), at}
	}
	return Observation{int64(m.Total - m.WorkingSet), int64(m.Total), at}
}

// Pods returns the observation of allocatableMemory.available: of all pods together, which use workingSet, under their limit.
// m is the machine's memory, of which SignalAvailable asks how much pods may swap out: at their limit the kernel does that first.
func (s MemorySignal) Pods(limit, workingSet, cache unit.Bytes, m NodeMemory, at unit.Instant) Observation {
	if s == SignalAvailable {
		workingSet -= cache + m.Swappable()
	}
	return Observation{int64(limit - workingSet), int64(limit), at}
}

// Swappable is what pods may still swap out, and for which there is swap. Whether swap keeps up with that is not known: of pods that
// used more than fits while the swap disk gave them 2 MiB a second, pressure stall information said that they waited for memory for
// 3% of the time and for I/O for 60% (Linux 6.1 in a guest of the lab; it counts the return of pages that were not active as I/O).
func (m NodeMemory) Swappable() unit.Bytes { return min(m.SwapFree, max(0, m.SwapRoom)) }

// of returns what a pod counts as using, and what its end frees at once.
func (s MemorySignal) of(u Usage) (used, freed unit.Bytes) {
	if s == SignalAvailable {
		held := max(0, u.WorkingSet-u.Cache)
		return held + u.Swap, held
	}
	return u.WorkingSet, u.WorkingSet
}
