package eviction

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Ranked is a pod's place in the eviction order, and why it has it.
type Ranked struct {
	ID, Namespace, Name string
	Usage, Request      int64 // of the resource needed; process ids cannot be requested
	Priority            int32
	Critical            bool
	Known               bool // Usage was read
	Over                bool // Usage is above Request
	Ending              bool // the pod is being terminated already
	Frees               int64

	// excess is what upstream compares last. For inodes it is a count minus a request in bytes, as upstream computes
	// it.
	excess int64
}

// Reason says why the pod has its place, in words.
func (r Ranked) Reason() string {
	switch {
	case r.Critical:
		return "critical: never evicted"
	case !r.Known:
		return "usage not known"
	case r.Over:
		return "uses more than it requests"
	}
	return "within its request"
}

// Rank returns pods in upstream's eviction order for a signal: first pods whose usage is not known, then pods above
// their request (not considered for process ids), then by priority, lowest first, then by how far the usage is above
// the request. Critical pods come after all others.
func Rank(signal allocatable.Signal, pods []Pod, memory MemorySignal, disks Disks) []Ranked {
	out := make([]Ranked, 0, len(pods))
	for _, p := range pods {
		out = append(out, measure(signal, p, memory, disks))
	}
	pids := resourceOf(signal) == PIDs
	slices.SortStableFunc(out, func(a, b Ranked) int {
		known := trueFirst(!a.Known, !b.Known)
		over := known
		if over == 0 {
			over = trueFirst(a.Over, b.Over)
		}
		if pids { // upstream compares priority before it asks whether the usage is known
			over = 0
		}
		return cmp.Or(
			trueFirst(!a.Critical, !b.Critical), over, cmp.Compare(a.Priority, b.Priority), known,
			cmp.Compare(b.excess, a.excess),
			cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID),
		)
	})
	return out
}

// measure returns how much p uses and requests of the resource of signal.
func measure(signal allocatable.Signal, p Pod, memory MemorySignal, disks Disks) Ranked {
	r := Ranked{
		ID: p.ID, Namespace: p.Namespace, Name: p.Name, Priority: p.Priority, Critical: p.Critical,
		Known: p.Used != nil, Ending: !p.KillAt.IsZero(),
	}
	switch resourceOf(signal) {
	case Memory:
		r.Request = int64(p.MemoryRequest)
		if r.Known {
			used, freed := memory.of(*p.Used)
			r.Usage, r.Frees = int64(used), int64(freed)
		}
		r.excess = r.Usage - r.Request
	case Storage:
		r.Request = int64(p.StorageRequest)
		if r.Known {
			used, freed := diskOf(signal, p, disks)
			r.Usage, r.Frees = used.Bytes, freed.Bytes
		}
		r.excess = r.Usage - r.Request
	case Inodes:
		if r.Known {
			used, freed := diskOf(signal, p, disks)
			r.Usage, r.Frees = used.Inodes, freed.Inodes
		}
		r.excess = r.Usage - int64(p.StorageRequest)
	case PIDs:
		if r.Known {
			r.Usage, r.Frees = p.Used.PIDs, p.Used.PIDs
		}
		r.excess = r.Usage
	}
	r.Over = r.Known && r.Usage > r.Request
	return r
}

// diskOf returns what p uses of the file system of signal, and the part that is freed when the pod ends.
func diskOf(signal allocatable.Signal, p Pod, disks Disks) (used, freed Disk) {
	layers, rest := true, true // layers: count writable layers; rest: count logs and volumes
	switch onImages := signal == allocatable.ImageFSAvailable || signal == allocatable.ImageFSInodesFree; disks {
	case ImageDisk:
		layers = onImages || signal == allocatable.ContainerFSAvailable || signal == allocatable.ContainerFSInodesFree
		rest = !layers
	case SplitDisk:
		layers, rest = !onImages, !onImages
	}
	add := func(d *Disk, goes bool) {
		if d == nil {
			return
		}
		used.Bytes, used.Inodes = used.Bytes+d.Bytes, used.Inodes+d.Inodes
		if goes {
			freed.Bytes, freed.Inodes = freed.Bytes+d.Bytes, freed.Inodes+d.Inodes
		}
	}
	for _, c := range p.Containers {
		if layers {
			add(c.Rootfs, true)
		}
		if rest {
			add(c.Logs, true)
		}
	}
	for _, v := range p.Volumes {
		if rest && v.Local {
			add(v.Used, v.Freed)
		}
	}
	return used, freed
}

// printed formats an amount of a signal as messages do.
func printed(s allocatable.Signal, n int64) string {
	if InBytes(s) {
		return unit.Bytes(n).String()
	}
	return decimal(n)
}

// decimal prints a count as the API does: with the largest suffix (power of a thousand) that divides it.
func decimal(n int64) string {
	suffixes := []string{"", "k", "M", "G", "T", "P", "E"}
	i := 0
	for n != 0 && n%1000 == 0 && i < len(suffixes)-1 {
		n, i = n/1000, i+1
	}
	return fmt.Sprintf("%d%s", n, suffixes[i])
}

// InBytes reports whether a signal is measured in bytes.
func InBytes(s allocatable.Signal) bool { r := resourceOf(s); return r == Memory || r == Storage }
