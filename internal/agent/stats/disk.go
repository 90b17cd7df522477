package stats

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/poddir"
	"github.com/plimsoll-dev/plimsoll/internal/host/quota"
)

// runtimeTime bounds each call to the runtime: a summary without images is better than none.
const runtimeTime = 10 * time.Second

// onNodeDisk are the kinds of volumes whose content is on the node's disk and counts as the pod's.
var onNodeDisk = []string{poddir.EmptyDir, poddir.ConfigMap}

// measuredKinds are the kinds of volumes that are read here. Others are asked about elsewhere (Options.Volumes).
var measuredKinds = []string{poddir.EmptyDir, poddir.ConfigMap, poddir.Secret, poddir.Projected, poddir.DownwardAPI}

// layers are the containers' writable layers and their file system.
type layers struct {
	fs   *statsapi.FsStats
	used map[string]*runtimeapi.FilesystemUsage // by container ID
}

// disks reads the node's file systems and asks the runtime about images and writable layers.
func (p *pass) disks(node *statsapi.NodeStats) {
	at := p.o.Now()
	p.nodeFS = fileSystem(p.o.RootDir, at)
	node.Fs = p.nodeFS
	if p.o.Images == nil || p.o.Runtime == nil {
		return
	}
	ctx, cancel := context.WithTimeout(p.ctx, runtimeTime)
	defer cancel()
	info, err := p.o.Images.ImageFsInfo(ctx, &runtimeapi.ImageFsInfoRequest{})
	if err != nil {
		slog.Warn("read image file system", "err", err)
	}
	images := p.usageOf(info.GetImageFilesystems(), at)
	p.layers.fs = images
	if separate := p.usageOf(info.GetContainerFilesystems(), at); separate != nil {
		p.layers.fs = separate
	}
	if images != nil {
		node.Runtime = &statsapi.RuntimeStats{ImageFs: images, ContainerFs: p.layers.fs}
	}
	all, err := p.o.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		slog.Warn("read writable layers", "err", err)
		return
	}
	p.layers.used = make(map[string]*runtimeapi.FilesystemUsage, len(all.Stats))
	for _, c := range all.Stats {
		p.layers.used[c.GetAttributes().GetId()] = c.WritableLayer
	}
}

// usageOf describes the first of the runtime's file systems that exists: its capacity and available space, and what
// images use of it.
func (p *pass) usageOf(list []*runtimeapi.FilesystemUsage, at time.Time) *statsapi.FsStats {
	for _, f := range list {
		out := fileSystem(f.GetFsId().GetMountpoint(), at)
		if out == nil {
			continue
		}
		out.UsedBytes, out.InodesUsed = ptr(f.GetUsedBytes().GetValue()), ptr(f.GetInodesUsed().GetValue())
		return out
	}
	return nil
}

// fileSystem describes the file system of a path; nil if that fails.
func fileSystem(path string, at time.Time) *statsapi.FsStats {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		slog.Debug("read file system", "path", path, "err", err)
		return nil
	}
	size := uint64(s.Frsize)
	return &statsapi.FsStats{
		Time: metav1.NewTime(at), CapacityBytes: ptr(s.Blocks * size), AvailableBytes: ptr(s.Bavail * size),
		UsedBytes: ptr((s.Blocks - s.Bfree) * size),
		Inodes:    ptr(s.Files), InodesFree: ptr(s.Ffree), InodesUsed: ptr(s.Files - s.Ffree),
	}
}

// on describes a part of a file system: the capacity and available space of the whole, and what the part uses.
func on(whole *statsapi.FsStats, at time.Time, bytes, inodes uint64) *statsapi.FsStats {
	out := &statsapi.FsStats{Time: metav1.NewTime(at), UsedBytes: &bytes, InodesUsed: &inodes}
	if whole != nil {
		out.CapacityBytes, out.AvailableBytes = whole.CapacityBytes, whole.AvailableBytes
		out.Inodes, out.InodesFree = whole.Inodes, whole.InodesFree
	}
	return out
}

func (p *pass) rootFS(c Container) *statsapi.FsStats {
	used := p.layers.used[c.ID]
	if used == nil {
		return nil
	}
	return on(p.layers.fs, p.o.Now(), used.GetUsedBytes().GetValue(), used.GetInodesUsed().GetValue())
}

func (p *pass) logs(c Container) *statsapi.FsStats {
	bytes, inodes, err := logSize(c)
	if err != nil {
		return nil
	}
	return on(p.nodeFS, p.o.Now(), bytes, inodes)
}

func diskBytes(info fs.FileInfo) uint64 {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(s.Blocks) * 512 // stat(2): always in units of 512 bytes
	}
	return uint64(info.Size())
}

// volumes reads a pod's volumes and adds up its ephemeral storage: writable layers, logs, emptyDirs that are not in
// memory, configMaps, and the other files in the pod's directory. The last are mounted into its containers (the hosts
// file and termination logs), and a container can make them as long as the disk. Writable layers of containers that do
// not run are left out, as the kubelet leaves them out before it adds up (removeTerminatedContainers): otherwise a
// container that stays within its limit would exceed it after a restart. At most one dead attempt of each container is
// kept (package podlife).
func (p *pass) volumes(pod Pod, out *statsapi.PodStats) {
	var bytes, inodes uint64
	add := func(f *statsapi.FsStats) {
		if f != nil && f.UsedBytes != nil && f.InodesUsed != nil {
			bytes, inodes = bytes+*f.UsedBytes, inodes+*f.InodesUsed
		}
	}
	for _, c := range out.Containers {
		add(c.Rootfs)
		add(c.Logs)
	}
	for _, kind := range entries(pod.VolumeDir) {
		if !slices.Contains(measuredKinds, kind) {
			continue
		}
		for _, name := range entries(filepath.Join(pod.VolumeDir, kind)) {
			volume, inMemory := p.volume(filepath.Join(pod.VolumeDir, kind, name))
			if volume == nil {
				continue
			}
			out.VolumeStats = append(out.VolumeStats, statsapi.VolumeStats{FsStats: *volume, Name: name})
			if !inMemory && slices.Contains(onNodeDisk, kind) {
				add(volume)
			}
		}
	}
	if p.parts&Claims != 0 && p.o.Volumes != nil {
		out.VolumeStats = append(out.VolumeStats, p.o.Volumes(types.UID(pod.Ref.UID))...)
	}
	add(p.rest(filepath.Dir(pod.VolumeDir), filepath.Base(pod.VolumeDir), poddir.SubPaths))
	if pod.LogDir != "" {
		var counted []string
		for _, c := range pod.Containers {
			counted = append(counted, filepath.Base(c.LogDir))
		}
		slices.Sort(counted)
		add(p.rest(pod.LogDir, counted...)) // of containers that have ended
	}
	out.EphemeralStorage = on(p.nodeFS, p.o.Now(), bytes, inodes)
}

// rest returns what a directory contains except for what is counted elsewhere; nil: it does not exist, or is not
// measured yet.
func (p *pass) rest(dir string, without ...string) *statsapi.FsStats {
	at := p.o.Now()
	bytes, inodes, ok := p.walks.size(p.ctx, dir, at, &p.walked, p.parts&Recount != 0, without...)
	if !ok {
		return nil
	}
	return on(p.nodeFS, at, bytes, inodes)
}

// entries returns the names in a directory of volumes, sorted; none if it does not exist: pods come and go meanwhile.
func entries(dir string) []string {
	all, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		slog.Debug("list volumes", "dir", dir, "err", err)
	}
	names := make([]string, len(all))
	for i, e := range all {
		names[i] = e.Name()
	}
	return names
}

// volume describes one volume. For a file system of its own it uses statfs, for a part of the node's the kernel's sum
// if there is one (host/quota), else a walk.
func (p *pass) volume(dir string) (out *statsapi.FsStats, inMemory bool) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return nil, false
	}
	at := p.o.Now()
	if s.Type == unix.TMPFS_MAGIC {
		return fileSystem(dir, at), true
	}
	if u, err := quota.Of(dir); err == nil {
		p.o.Measured(ByQuota, p.o.Now().Sub(at))
		return on(fileSystem(dir, at), at, uint64(u.Bytes), uint64(u.Inodes)), false
	}
	before := p.walked
	bytes, inodes, ok := p.walks.size(p.ctx, dir, at, &p.walked, p.parts&Recount != 0)
	if p.walked > before {
		p.o.Measured(ByWalk, p.o.Now().Sub(at))
	}
	if !ok {
		return nil, false
	}
	return on(fileSystem(dir, at), at, bytes, inodes), false
}
