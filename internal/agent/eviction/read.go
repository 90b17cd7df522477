package eviction

import (
	"errors"
	"os"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/host/disk"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// failed logs that something could not be read. The eviction thresholds on it are not evaluated.
func (g *Guard) failed(what string, err error) { g.failures.Failed("read "+what+" for evictions", err) }

// observe reads the signals into f.
func (g *Guard) observe(f *eviction.Facts, now unit.Instant) {
	charged := g.signals(f, now)
	f.Notified = nil
	if _, ok := f.Signals[allocatable.AllocatableMemory]; ok && charged < g.firstMark {
		f.Notified = map[allocatable.Signal]bool{allocatable.AllocatableMemory: true}
	}
}

// signals reads into f what the node has left and which disks it has. A signal that cannot be read is left out, and its
// thresholds are not evaluated. If allocatableMemory.available is among the signals, it returns all memory that counts
// against the limit of the pods' cgroup.
func (g *Guard) signals(f *eviction.Facts, now unit.Instant) (charged unit.Bytes) {
	s := make(map[allocatable.Signal]eviction.Observation, 9)
	m, err := g.nodeMemory()
	if err == nil {
		s[allocatable.MemoryAvailable] = g.o.Config.Memory.Node(m, now)
	} else {
		g.failed("memory of the machine", err)
	}
	if limit, ok := g.o.Limit.Get(); ok && g.o.Group != "" && g.inForce(limit) {
		if all, err := g.o.Tree.Footprint(g.o.Group); err == nil {
			s[allocatable.AllocatableMemory] = g.o.Config.Memory.Pods(limit, all.WorkingSet, all.Cache, m, now)
			charged = all.Charged
		} else {
			g.failed("memory of all pods", err)
		}
	}
	most, err := g.o.Proc.PIDs()
	running, err2 := g.o.Proc.Threads()
	if err = errors.Join(err, err2); err == nil {
		s[allocatable.PIDAvailable] = eviction.Observation{Available: most - running, Capacity: most, At: now}
	} else {
		g.failed("process ids", err)
	}
	f.Signals = s
	f.Memory = m
	f.Disks = g.disks(s, now)
	return charged
}

// inForce reports whether the pods' cgroup has the limit already. A higher limit is still being lowered
// (allocatable.Lowering) with pods that were admitted before. Lowering allocatable means that no more pods are
// admitted, not that pods are evicted (k/k #141609).
func (g *Guard) inForce(limit unit.Bytes) bool {
	has, err := g.o.Tree.MemoryLimit(g.o.Group)
	if err != nil {
		g.failed("memory limit of all pods", err)
		return false
	}
	bound, ok := has.Get()
	return ok && bound <= limit
}

// disks reads the file systems into s. Unless Storage knows better, writable layers are on imagefs.
func (g *Guard) disks(s map[allocatable.Signal]eviction.Observation, now unit.Instant) eviction.Disks {
	read := func(dir string, bytes, inodes allocatable.Signal) (u disk.Usage, ok bool) {
		u, err := disk.Of(dir)
		if err != nil {
			g.failed("file system of "+dir, err)
			return u, false
		}
		s[bytes] = eviction.Observation{Available: int64(u.Available), Capacity: int64(u.Capacity), At: now}
		if u.Inodes > 0 { // file systems without a fixed number of inodes never run out
			s[inodes] = eviction.Observation{Available: u.InodesFree, Capacity: u.Inodes, At: now}
		}
		return u, true
	}
	node, ok := read(g.o.NodeFS, allocatable.NodeFSAvailable, allocatable.NodeFSInodesFree)
	if !ok || g.o.ImageFS == "" {
		return eviction.OneDisk
	}
	images, ok := read(g.o.ImageFS, allocatable.ImageFSAvailable, allocatable.ImageFSInodesFree)
	if !ok {
		return eviction.OneDisk
	}
	layout := eviction.OneDisk
	if g.o.Storage != nil {
		layout = g.o.Storage.Disks()
	} else if images.Device != node.Device {
		layout = eviction.ImageDisk
	}
	twins := map[allocatable.Signal]allocatable.Signal{allocatable.ContainerFSAvailable: allocatable.NodeFSAvailable,
		allocatable.ContainerFSInodesFree: allocatable.NodeFSInodesFree}
	if layout == eviction.ImageDisk {
		twins = map[allocatable.Signal]allocatable.Signal{allocatable.ContainerFSAvailable: allocatable.ImageFSAvailable,
			allocatable.ContainerFSInodesFree: allocatable.ImageFSInodesFree}
	}
	for signal, twin := range twins {
		if o, ok := s[twin]; ok {
			s[signal] = o
		}
	}
	return layout
}

// nodeMemory reads the machine's memory as the configured signal needs it.
func (g *Guard) nodeMemory() (eviction.NodeMemory, error) {
	if g.o.Tree.Mode() != cgroup.V2 && g.o.Config.Memory == eviction.SignalWorkingSet {
		f, err := g.o.Tree.Footprint("/") // reads cgroup v1's aggregated counters, so SumUp is not needed
		return eviction.NodeMemory{Total: g.o.Memory, WorkingSet: f.WorkingSet}, err
	}
	if err := g.o.Tree.SumUp(); err != nil {
		return eviction.NodeMemory{}, err
	}
	m, err := g.o.Proc.Memory()
	if err != nil {
		return eviction.NodeMemory{}, err
	}
	n := eviction.NodeMemory{
		Total: m.Total, WorkingSet: max(0, m.Total-m.Free-m.InactiveFile), Available: m.Available.OrZero(),
		HugePages: m.HugePages, SwapFree: m.SwapFree,
	}
	if m.SwapFree > 0 && g.o.Config.Memory == eviction.SignalAvailable {
		n.SwapRoom = g.swapRoom()
	}
	return n, nil
}

// swapRoom returns how much the pods may still swap out together.
func (g *Guard) swapRoom() unit.Bytes {
	// of one container without a limit: a petabyte, so that the sum of ten thousand does not overflow
	const most = unit.Bytes(1 << 50)
	var room unit.Bytes
	for _, p := range g.o.Pods.Present() {
		for _, c := range running(p.Pod) {
			if group := g.o.Of(p.Pod, c.ContainerID); group != "" {
				if left, err := g.o.Tree.SwapRoom(group); err == nil {
					room += min(left, most)
				}
			}
		}
	}
	return room
}

// readers bounds how many pods are read at the same time. Reading never waits, so more readers than CPUs do not help.
const readers = 2

// readPods reads every pod's usage.
func (g *Guard) readPods(f *eviction.Facts, present []podentry.Present) {
	f.Pods = make([]eviction.Pod, len(present))
	withPIDs := g.nearPIDs(f)
	var reading sync.WaitGroup
	for part := range readers {
		read := func() {
			for i := part; i < len(present); i += readers {
				f.Pods[i] = g.pod(present[i], withPIDs)
			}
		}
		if part < readers-1 && len(present) > 8 {
			reading.Go(read)
		} else {
			read()
		}
	}
	reading.Wait()
}

// nearPIDs reports whether process IDs are short, so that each pod's number of processes is needed.
func (g *Guard) nearPIDs(f *eviction.Facts) bool {
	o, ok := f.Signals[allocatable.PIDAvailable]
	for _, threshold := range g.thresholds(allocatable.PIDAvailable, o.Capacity) {
		if ok && o.Available <= 2*threshold {
			return true
		}
	}
	return false
}

// pod reads one pod's usage.
func (g *Guard) pod(p podentry.Present, withPIDs bool) eviction.Pod {
	out := translate.EvictionPod(p.Pod)
	if !p.KillAt.IsZero() {
		out.KillAt = g.clock.Instant(p.KillAt)
	}
	if p.Ended {
		out.KillAt, out.Used = out.KillAt.Earlier(g.clock.Instant(g.checkedAt)), &eviction.Usage{}
		if g.o.Storage != nil {
			g.o.Storage.Fill(p.Pod, &out)
		}
		return out
	}
	group := g.o.Of(p.Pod, "")
	if group == "" {
		return out
	}
	used, err := g.o.Tree.Footprint(group)
	switch {
	case errors.Is(err, os.ErrNotExist):
		// The pod ended during the check, or its cgroup is not made yet: it uses no memory, and on disks what Storage
		// knows.
	case err != nil:
		g.failed("memory of pod "+p.Pod.Namespace+"/"+p.Pod.Name, err)
		return out
	}
	out.Used = &eviction.Usage{WorkingSet: used.WorkingSet, Cache: used.Cache, Swap: used.Swap}
	if withPIDs {
		if pids, err := g.o.Tree.PIDCount(group); err == nil {
			out.Used.PIDs = pids
		} else if !errors.Is(err, os.ErrNotExist) {
			out.Used = nil
			return out
		}
	}
	ids := map[string]string{}
	for _, c := range running(p.Pod) {
		ids[c.Name] = c.ContainerID
	}
	for i := range out.Containers {
		if id := ids[out.Containers[i].Name]; id != "" {
			if c, err := g.o.Tree.Footprint(g.o.Of(p.Pod, id)); err == nil {
				out.Containers[i].WorkingSet = c.WorkingSet
			}
		}
	}
	if g.o.Storage != nil {
		g.o.Storage.Fill(p.Pod, &out)
	}
	return out
}

// running returns the statuses of running containers, with their IDs as the runtime has them.
func running(pod *corev1.Pod) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, s := range list {
			if _, id, ok := strings.Cut(s.ContainerID, "://"); ok && s.State.Running != nil {
				s.ContainerID = id
				out = append(out, s)
			}
		}
	}
	return out
}
