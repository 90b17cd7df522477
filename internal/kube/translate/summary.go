package translate

import (
	"slices"

	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// EvictionUsage sets the usage of a pod from the Summary API. Containers that are not in the specification are added;
// those without statistics are left out.
func EvictionUsage(p *eviction.Pod, stats *statsapi.PodStats) {
	p.Used = &eviction.Usage{}
	if m := stats.Memory; m != nil {
		p.Used.WorkingSet = bytesOf(m.WorkingSetBytes)
		p.Used.Cache = max(0, p.Used.WorkingSet-bytesOf(m.RSSBytes)) // an upper bound: a Summary does not contain it
	}
	if stats.Swap != nil {
		p.Used.Swap = bytesOf(stats.Swap.SwapUsageBytes)
	}
	if stats.ProcessStats != nil && stats.ProcessStats.ProcessCount != nil {
		p.Used.PIDs = int64(*stats.ProcessStats.ProcessCount)
	}
	known := p.Containers
	p.Containers = nil
	for _, c := range stats.Containers {
		one := eviction.Container{Name: c.Name, Ephemeral: true}
		if at := slices.IndexFunc(known, func(k eviction.Container) bool { return k.Name == c.Name }); at >= 0 {
			one = known[at]
		}
		if c.Memory != nil {
			one.WorkingSet = bytesOf(c.Memory.WorkingSetBytes)
		}
		p.Containers = append(p.Containers, one)
	}
	EvictionDisks(p, stats)
}

// EvictionDisks sets the disk usage of a pod whose other usage is already set.
func EvictionDisks(p *eviction.Pod, stats *statsapi.PodStats) {
	if stats.EphemeralStorage != nil {
		p.Used.Storage = bytesOf(stats.EphemeralStorage.UsedBytes)
	}
	p.Containers, p.Volumes = slices.Clone(p.Containers), slices.Clone(p.Volumes)
	for i := range p.Containers {
		for _, c := range stats.Containers {
			if c.Name == p.Containers[i].Name {
				p.Containers[i].Rootfs, p.Containers[i].Logs = evictionDisk(c.Rootfs), evictionDisk(c.Logs)
				break
			}
		}
	}
	for i := range p.Volumes {
		for _, v := range stats.VolumeStats {
			if v.Name == p.Volumes[i].Name {
				p.Volumes[i].Used = evictionDisk(&v.FsStats)
				break
			}
		}
	}
}

func evictionDisk(f *statsapi.FsStats) *eviction.Disk {
	if f == nil || f.UsedBytes == nil {
		return nil
	}
	return &eviction.Disk{Bytes: int64(bytesOf(f.UsedBytes)), Inodes: int64(bytesOf(f.InodesUsed))}
}

// bytesOf bounds a number from outside, so that sums do not overflow.
func bytesOf(n *uint64) unit.Bytes {
	if n == nil {
		return 0
	}
	return unit.Bytes(min(*n, amountMax))
}

// EvictionSignals returns the signals in a Summary, as upstream computes them. Signals that are not in the Summary are
// left out.
func EvictionSignals(s *statsapi.Summary) map[allocatable.Signal]eviction.Observation {
	out := map[allocatable.Signal]eviction.Observation{}
	if m := s.Node.Memory; m != nil && m.AvailableBytes != nil && m.WorkingSetBytes != nil {
		out[allocatable.MemoryAvailable] = observedMemory(m)
	}
	for _, c := range s.Node.SystemContainers {
		m := c.Memory
		told := m != nil && m.AvailableBytes != nil && m.WorkingSetBytes != nil
		if c.Name == statsapi.SystemContainerPods && told {
			out[allocatable.AllocatableMemory] = observedMemory(m)
		}
	}
	disk := func(f *statsapi.FsStats, bytes, inodes allocatable.Signal) {
		if f != nil && f.AvailableBytes != nil && f.CapacityBytes != nil {
			out[bytes] = observed(f.AvailableBytes, f.CapacityBytes)
		}
		if f != nil && f.InodesFree != nil && f.Inodes != nil {
			out[inodes] = observed(f.InodesFree, f.Inodes)
		}
	}
	disk(s.Node.Fs, allocatable.NodeFSAvailable, allocatable.NodeFSInodesFree)
	if r := s.Node.Runtime; r != nil {
		disk(r.ImageFs, allocatable.ImageFSAvailable, allocatable.ImageFSInodesFree)
		disk(r.ContainerFs, allocatable.ContainerFSAvailable, allocatable.ContainerFSInodesFree)
	}
	if r := s.Node.Rlimit; r != nil && r.MaxPID != nil && r.NumOfRunningProcesses != nil {
		left := *r.MaxPID - *r.NumOfRunningProcesses
		out[allocatable.PIDAvailable] = eviction.Observation{Available: left, Capacity: *r.MaxPID}
	}
	return out
}

func observed(available, capacity *uint64) eviction.Observation {
	return eviction.Observation{Available: int64(bytesOf(available)), Capacity: int64(bytesOf(capacity))}
}

// observedMemory returns the available memory. The kubelet subtracts unsigned numbers, so that usage above the limit
// wraps around.
func observedMemory(m *statsapi.MemoryStats) eviction.Observation {
	available := max(-amountMax, min(int64(*m.AvailableBytes), amountMax))
	return eviction.Observation{Available: available, Capacity: available + int64(bytesOf(m.WorkingSetBytes))}
}
