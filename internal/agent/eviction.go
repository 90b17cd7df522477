package agent

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/diskusage"
	agenteviction "github.com/plimsoll-dev/plimsoll/internal/agent/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/agent/node"
	"github.com/plimsoll-dev/plimsoll/internal/agent/podentry"
	"github.com/plimsoll-dev/plimsoll/internal/agent/stats"
	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/disk"
	"github.com/plimsoll-dev/plimsoll/internal/host/process"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// prepareEviction prepares node-pressure eviction.
func (a *Agent) prepareEviction(ctx context.Context) error {
	config, err := kubeletconfig.Eviction(a.o.Config)
	if err != nil {
		return err
	}
	config.Memory = a.o.MemorySignal
	config.ReclaimMemory = a.o.ReclaimMemory
	group, limit := a.groups.layout.Node(), a.resources.Enforced().Memory
	if a.groups.unmanaged {
		group, limit = "", unit.Limit[unit.Bytes]{}
	}
	images := a.imageDir(ctx)
	a.storage = diskusage.New(diskusage.Options{
		Read: func(ctx context.Context, anew bool) (*statsapi.Summary, error) {
			parts := stats.Disk | stats.Idle
			if anew {
				parts |= stats.Recount
			}
			return a.stats.Summary(ctx, parts)
		},
		Limited: func() bool {
			return config.LocalStorage && slices.ContainsFunc(a.pods.Present(), func(p podentry.Present) bool {
				return translate.EvictionPod(p.Pod).Limited()
			})
		},
		NodeFS: a.o.RootDir, ImageFS: images,
	})
	a.guard, err = agenteviction.New(agenteviction.Options{
		Node:    a.o.NodeName,
		Config:  config,
		Tree:    a.groups.tree,
		Proc:    procfs.Default,
		Memory:  a.machine.Memory,
		Limit:   limit,
		NodeFS:  a.o.RootDir,
		ImageFS: images,
		Group:   group,
		Of:      a.groupOfContainer,
		Storage: a.storage,
		Reclaims: map[eviction.Step]agenteviction.Reclaim{
			eviction.PodDisks:     func(ctx context.Context, _ eviction.Reclaim) error { return a.storage.Recount(ctx) },
			eviction.UnusedImages: a.images.Reclaim,
			eviction.DeadContainers: func(ctx context.Context, r eviction.Reclaim) error {
				return a.pods.RemoveDead(ctx, func() bool { return available(r.Signal, a.o.RootDir, images) >= r.Until })
			},
		},
		Pods:     a.pods,
		Recorder: a.recorder,
		Journal:  a.journal,
		Metrics:  a.metrics,
		Changed:  func() { a.node.Changed() },
		Lock: func(lock bool) error {
			if lock {
				return process.LockMemory()
			}
			return process.UnlockMemory()
		},
	})
	if err != nil {
		return err
	}
	a.metrics.Registry.MustRegister(a.guard.Measurements())
	return nil
}

// groupOfContainer returns the cgroup of a pod, or of one of its containers if id is set; empty if the agent made none.
func (a *Agent) groupOfContainer(pod *corev1.Pod, id string) string {
	group := a.groups.group(pod)
	if group == "" || id == "" {
		return group
	}
	return a.groups.counted(group, a.runtimeName, id)
}

// available reads the present value of a disk signal, in bytes or inodes; -1 if that fails.
func available(signal allocatable.Signal, nodeFS, imageFS string) int64 {
	dir := nodeFS
	if signal == allocatable.ImageFSAvailable || signal == allocatable.ImageFSInodesFree {
		dir = cmp.Or(imageFS, nodeFS)
	}
	u, err := disk.Of(dir)
	switch {
	case err != nil:
		return -1
	case signal == allocatable.NodeFSInodesFree || signal == allocatable.ImageFSInodesFree ||
		signal == allocatable.ContainerFSInodesFree:
		return u.InodesFree
	}
	return int64(u.Available)
}

// pressure returns the pressure conditions for the Node's status.
func (a *Agent) pressure() node.Pressure {
	if a.guard == nil {
		return node.Pressure{}
	}
	now := a.guard.Pressure()
	return node.Pressure{
		Memory: slices.Contains(now, eviction.MemoryPressure),
		Disk:   slices.Contains(now, eviction.DiskPressure),
		PID:    slices.Contains(now, eviction.PIDPressure),
	}
}
