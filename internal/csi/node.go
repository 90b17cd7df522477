package csi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/plimsoll-dev/plimsoll/internal/core/localvolume"
	"github.com/plimsoll-dev/plimsoll/internal/csi/store"
	"github.com/plimsoll-dev/plimsoll/internal/host/disk"
	"github.com/plimsoll-dev/plimsoll/internal/host/loop"
)

// NodeGetInfo returns the node's name, topology and limit.
func (d *Driver) NodeGetInfo(context.Context, *spec.NodeGetInfoRequest) (*spec.NodeGetInfoResponse, error) {
	return &spec.NodeGetInfoResponse{
		NodeId:             d.o.Store.Node,
		MaxVolumesPerNode:  d.o.VolumesMax,
		AccessibleTopology: d.topology(),
	}, nil
}

// NodeGetCapabilities lists the node's optional calls.
func (d *Driver) NodeGetCapabilities(
	context.Context, *spec.NodeGetCapabilitiesRequest,
) (*spec.NodeGetCapabilitiesResponse, error) {
	answer := &spec.NodeGetCapabilitiesResponse{}
	for _, t := range []spec.NodeServiceCapability_RPC_Type{
		spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		spec.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		spec.NodeServiceCapability_RPC_EXPAND_VOLUME,
		spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		answer.Capabilities = append(answer.Capabilities, &spec.NodeServiceCapability{
			Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return answer, nil
}

// volumeFor returns a volume and checks that a capability is one that it has.
func (d *Driver) volumeFor(id string, c *spec.VolumeCapability) (store.Entry, error) {
	if c == nil {
		return store.Entry{}, status.Error(codes.InvalidArgument, "volume capability is missing in the request")
	}
	if err := checkAccess(c); err != nil {
		return store.Entry{}, err
	}
	v, err := d.store.Volume(id)
	if err != nil {
		return v, err
	}
	wish := localvolume.Wish{Block: c.GetBlock() != nil, FSType: c.GetMount().GetFsType()}
	if wish.FSType != "" && v.Backing == localvolume.Directory {
		wish.FSType = "" // the kubelet names its default for a volume without a type
	}
	if err := localvolume.Same(wish, v.Plan(), "", ""); err != nil {
		return v, status.Errorf(codes.InvalidArgument, "volume %s: %v", id, err)
	}
	return v, nil
}

// NodeStageVolume makes a volume ready for the pods of this node.
func (d *Driver) NodeStageVolume(
	ctx context.Context, r *spec.NodeStageVolumeRequest,
) (*spec.NodeStageVolumeResponse, error) {
	err := missing([2]string{"volume id", r.GetVolumeId()}, [2]string{"staging target path", r.GetStagingTargetPath()})
	if err != nil {
		return nil, err
	}
	v, err := d.volumeFor(r.VolumeId, r.VolumeCapability)
	if err != nil {
		return nil, err
	}
	_, err = runToEnd(ctx, func() (none, error) {
		return none{}, d.store.During(v.ID, func() error { return d.stage(v, r.StagingTargetPath, r.VolumeCapability) })
	})
	if err != nil {
		return nil, err
	}
	return &spec.NodeStageVolumeResponse{}, nil
}

func (d *Driver) stage(v store.Entry, path string, c *spec.VolumeCapability) error {
	switch {
	case v.Backing == localvolume.Directory:
		return nil
	case v.Block:
		device, err := d.attach(v, loop.Lasting)
		if err != nil {
			return err
		}
		return device.Close()
	}
	mounted, err := d.isMountPoint(path)
	if err != nil {
		return err
	}
	device, err := d.attach(v, loop.Autoclear)
	if err != nil {
		return err
	}
	defer device.Close() // from then on only the mount keeps it attached
	if mounted {
		if err := d.isOf(device.Name(), path); err != nil {
			return err
		}
		return d.grow(device.Name(), path)
	}
	if err := os.MkdirAll(path, 0o750); err != nil {
		return err
	}
	if err := d.growUnmounted(v, device.Name()); err != nil {
		return err
	}
	if err := d.mounter.FormatAndMount(
		device.Name(), path, v.FSType, mountOptions(v, c.GetMount().GetMountFlags())); err != nil {
		return fmt.Errorf("mount volume %s: %w", v.ID, err)
	}
	return d.grow(device.Name(), path)
}

// mountOptions returns the options for a file system in an image. With discard, space of deleted files is free on the
// disk again. A copy has the same UUID as its source, so xfs mounts it only with nouuid (xfs(5)).
func mountOptions(v store.Entry, flags []string) []string {
	options := append([]string{"discard"}, flags...)
	if v.FSType == "xfs" {
		options = append(options, "nouuid")
	}
	return options
}

// attach returns the device of a volume, open. It attaches a new one if there is none.
func (d *Driver) attach(v store.Entry, life loop.Life) (*os.File, error) {
	image := d.store.Content(v)
	devices, err := loop.Of(image)
	if err != nil {
		return nil, err
	}
	for _, name := range devices {
		device, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			return nil, err
		}
		// The device may have been detached with its last user before it was opened.
		if again, err := loop.Of(image); err == nil && slices.Contains(again, name) {
			return device, nil
		}
		device.Close()
	}
	return loop.Attach(image, life)
}

func (d *Driver) isMountPoint(path string) (bool, error) {
	mounted, err := d.mounter.IsMountPoint(path)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", path, err)
	}
	return mounted, nil
}

// isOf returns an error unless the file system of a device is mounted at path.
func (d *Driver) isOf(device, path string) error {
	var of, at unix.Stat_t
	if err := errors.Join(unix.Stat(device, &of), unix.Stat(path, &at)); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if of.Rdev != at.Dev {
		return status.Errorf(codes.FailedPrecondition, "something else is mounted at %s", path)
	}
	return nil
}

// grow makes a mounted file system as large as its device.
func (d *Driver) grow(device, path string) error {
	needed, err := d.mustGrow(device, path)
	if err != nil || !needed {
		return err
	}
	if _, err = d.resizer.Resize(device, path); err != nil && !mayGrowMounted() {
		return localvolume.Errorf(localvolume.Precondition,
			"%v: the driver has no CAP_SYS_RESOURCE, without which the kernel grows no ext4 that is mounted: "+
				"the volume grows when its pod is started the next time", err)
	}
	return err
}

// growUnmounted grows an ext4 before it is mounted, which needs no privilege; xfs can only be grown while it is.
func (d *Driver) growUnmounted(v store.Entry, device string) error {
	if v.FSType == "xfs" {
		return nil
	}
	needed, err := d.mustGrow(device, "")
	if err != nil || !needed {
		return err
	}
	if err := store.Check(device); err != nil {
		return fmt.Errorf("grow volume %s: %w", v.ID, err)
	}
	_, err = d.resizer.Resize(device, "")
	return err
}

// mustGrow reports whether a file system may be smaller than its device. mount-utils leaves that to resize2fs, which
// wants a full check of an ext4 that is not mounted: half a dozen programs for each volume, where one read will do.
func (d *Driver) mustGrow(device, path string) (bool, error) {
	fills, err := store.Fills(device)
	if err != nil || fills {
		return false, err
	}
	return d.resizer.NeedResize(device, path)
}

// mayGrowMounted reports whether this process has CAP_SYS_RESOURCE.
func mayGrowMounted() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	return unix.Capget(&header, &data[0]) == nil && data[0].Effective&(1<<unix.CAP_SYS_RESOURCE) != 0
}

// NodeUnstageVolume ends what NodeStageVolume began.
func (d *Driver) NodeUnstageVolume(
	ctx context.Context, r *spec.NodeUnstageVolumeRequest,
) (*spec.NodeUnstageVolumeResponse, error) {
	err := missing([2]string{"volume id", r.GetVolumeId()}, [2]string{"staging target path", r.GetStagingTargetPath()})
	if err != nil {
		return nil, err
	}
	v, err := d.store.Volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	_, err = runToEnd(ctx, func() (none, error) {
		return none{}, d.store.During(v.ID, func() error { return d.unstage(v, r.StagingTargetPath) })
	})
	if err != nil {
		return nil, err
	}
	return &spec.NodeUnstageVolumeResponse{}, nil
}

func (d *Driver) unstage(v store.Entry, path string) error {
	if !v.Block {
		return d.unmount(path)
	}
	use, err := d.store.Use(v, "")
	if err != nil {
		return err
	}
	if len(use.Published) > 0 {
		return localvolume.Errorf(localvolume.Precondition, "volume %s: is still published for pods at %v", v.ID,
			use.Published)
	}
	devices, err := loop.Of(d.store.Content(v))
	for _, device := range devices {
		err = errors.Join(err, loop.Detach(device))
	}
	return err
}

// unmount removes all mounts at a path, since retries may have made several. It leaves the path itself, which the
// caller made.
func (d *Driver) unmount(path string) error {
	for {
		mounted, err := d.isMountPoint(path)
		if err != nil || !mounted {
			return err
		}
		if err := d.mounter.Unmount(path); err != nil {
			return fmt.Errorf("unmount %s: %w", path, err)
		}
	}
}

// NodePublishVolume mounts a volume for a pod.
func (d *Driver) NodePublishVolume(
	ctx context.Context, r *spec.NodePublishVolumeRequest,
) (*spec.NodePublishVolumeResponse, error) {
	err := missing(
		[2]string{"volume id", r.GetVolumeId()},
		[2]string{"target path", r.GetTargetPath()},
	)
	if err != nil {
		return nil, err
	}
	v, err := d.volumeFor(r.VolumeId, r.VolumeCapability)
	if err != nil {
		return nil, err
	}
	if r.GetStagingTargetPath() == "" {
		return nil, status.Error(codes.FailedPrecondition,
			"staging target path is missing in the request: the volume has to be staged first")
	}
	_, err = runToEnd(ctx, func() (none, error) {
		return none{}, d.store.During(v.ID, func() error { return d.publish(v, r) })
	})
	if err != nil {
		return nil, err
	}
	return &spec.NodePublishVolumeResponse{}, nil
}

func (d *Driver) publish(v store.Entry, r *spec.NodePublishVolumeRequest) error {
	source, device, err := d.ready(v, r.StagingTargetPath)
	if err != nil {
		return err
	}
	single := r.VolumeCapability.GetAccessMode().GetMode() == spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	published, err := d.isPublished(v, r, single, device)
	if err != nil || published {
		return err
	}
	if err := makeTarget(r.TargetPath, v.Block); err != nil {
		return err
	}
	options := []string{"bind"}
	if r.Readonly {
		options = append(options, "ro")
	}
	if v.Backing == localvolume.Directory { // for an image they are options of its file system
		options = append(options, r.VolumeCapability.GetMount().GetMountFlags()...)
	}
	if err := d.bind(source, r.TargetPath, options); err != nil {
		// The bind mount may exist, and only its options were refused.
		return errors.Join(fmt.Errorf("publish volume %s: %w", v.ID, err), d.unmount(r.TargetPath))
	}
	return nil
}

// isPublished reports whether an earlier call has published the volume at the target. It returns an error if something
// else is there, or if the volume is for a single pod and another one has it.
func (d *Driver) isPublished(
	v store.Entry, r *spec.NodePublishVolumeRequest, single bool, device string,
) (bool, error) {
	mounted, err := d.isMountPoint(r.TargetPath)
	if err != nil {
		return false, err
	}
	if !single && !v.Block && v.Backing == localvolume.Image {
		// The table of mounts, which has a thousand lines and more on a node with as many volumes, is not needed.
		if !mounted {
			return false, nil
		}
		return true, d.isOf(device, r.TargetPath)
	}
	use, err := d.store.Use(v, r.StagingTargetPath)
	if err != nil {
		return false, err
	}
	if err := localvolume.Publish(single, use, r.TargetPath); err != nil {
		return false, err
	}
	if slices.Contains(use.Published, filepath.Clean(r.TargetPath)) {
		return true, nil
	}
	if mounted {
		return false, status.Errorf(codes.FailedPrecondition, "something else is mounted at %s", r.TargetPath)
	}
	return false, nil
}

// bind makes a bind mount. Without options but that, it is one system call; mount-utils starts mount(8) twice.
func (d *Driver) bind(source, target string, options []string) error {
	if len(options) > 1 {
		return d.mounter.Mount(source, target, "", options)
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind-mount %s at %s: %w", source, target, err)
	}
	return nil
}

// ready returns the path that is bind-mounted for pods, and the volume's device, if it has one. It returns an error if
// the volume is not staged.
func (d *Driver) ready(v store.Entry, staging string) (source, device string, err error) {
	if v.Backing == localvolume.Directory {
		return d.store.Content(v), "", nil
	}
	devices, err := loop.Of(d.store.Content(v))
	if err != nil {
		return "", "", err
	}
	if len(devices) == 0 {
		return "", "", status.Errorf(codes.FailedPrecondition, "volume %s is not staged", v.ID)
	}
	if v.Block {
		return devices[0], devices[0], nil
	}
	return staging, devices[0], d.isOf(devices[0], staging)
}

// makeTarget makes the mount point of a bind mount: a directory, or a file for a device.
func makeTarget(path string, block bool) error {
	if !block {
		return os.MkdirAll(path, 0o750)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	return f.Close()
}

// NodeUnpublishVolume removes a volume from a pod.
func (d *Driver) NodeUnpublishVolume(
	ctx context.Context, r *spec.NodeUnpublishVolumeRequest,
) (*spec.NodeUnpublishVolumeResponse, error) {
	if err := missing([2]string{"volume id", r.GetVolumeId()}, [2]string{"target path", r.GetTargetPath()}); err != nil {
		return nil, err
	}
	v, err := d.store.Volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	_, err = runToEnd(ctx, func() (none, error) {
		return none{}, d.store.During(v.ID, func() error {
			if err := d.unmount(r.TargetPath); err != nil {
				return err
			}
			if err := os.Remove(r.TargetPath); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			return nil
		})
	})
	if err != nil {
		return nil, err
	}
	return &spec.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats returns how full a volume is.
func (d *Driver) NodeGetVolumeStats(
	_ context.Context, r *spec.NodeGetVolumeStatsRequest,
) (*spec.NodeGetVolumeStatsResponse, error) {
	if err := missing([2]string{"volume id", r.GetVolumeId()}, [2]string{"volume path", r.GetVolumePath()}); err != nil {
		return nil, err
	}
	v, err := d.store.Volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	mounted, err := d.isMountPoint(r.VolumePath)
	if err != nil {
		return nil, err
	}
	if !mounted {
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", v.ID, r.VolumePath)
	}
	if v.Block {
		size := &spec.VolumeUsage{Unit: spec.VolumeUsage_BYTES, Total: int64(v.Size)}
		return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{size}}, nil
	}
	usage, err := disk.Of(r.VolumePath) // for a directory with a limit, the kernel returns the limit as its size
	if err != nil {
		return nil, err
	}
	return &spec.NodeGetVolumeStatsResponse{Usage: []*spec.VolumeUsage{
		{
			Unit:      spec.VolumeUsage_BYTES,
			Total:     int64(usage.Capacity),
			Available: int64(usage.Available),
			Used:      int64(usage.Used),
		},
		{
			Unit:      spec.VolumeUsage_INODES,
			Total:     usage.Inodes,
			Available: usage.InodesFree,
			Used:      usage.Inodes - usage.InodesFree,
		},
	}}, nil
}

// NodeExpandVolume grows the file system of a volume that has become larger.
func (d *Driver) NodeExpandVolume(
	ctx context.Context, r *spec.NodeExpandVolumeRequest,
) (*spec.NodeExpandVolumeResponse, error) {
	if err := missing([2]string{"volume id", r.GetVolumeId()}, [2]string{"volume path", r.GetVolumePath()}); err != nil {
		return nil, err
	}
	v, err := d.store.Volume(r.VolumeId)
	if err != nil {
		return nil, err
	}
	if required := r.GetCapacityRange().GetRequiredBytes(); required > int64(v.Size) {
		return nil, status.Errorf(
			codes.OutOfRange, "volume %s has %v, not %d bytes: expand it by the controller first", v.ID, v.Size, required)
	}
	mounted, err := d.isMountPoint(r.VolumePath)
	if err != nil {
		return nil, err
	}
	if !mounted {
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", v.ID, r.VolumePath)
	}
	_, err = runToEnd(ctx, func() (none, error) {
		return none{}, d.store.During(v.ID, func() error { return d.expand(v, r.VolumePath) })
	})
	if err != nil {
		return nil, err
	}
	return &spec.NodeExpandVolumeResponse{CapacityBytes: int64(v.Size)}, nil
}

func (d *Driver) expand(v store.Entry, path string) error {
	if v.Backing == localvolume.Directory {
		return nil
	}
	devices, err := loop.Of(d.store.Content(v))
	if err != nil {
		return err
	}
	for _, device := range devices {
		if err := loop.Grow(device); err != nil {
			return err
		}
		if v.Block {
			continue
		}
		if err := d.grow(device, path); err != nil {
			return err
		}
	}
	return nil
}
