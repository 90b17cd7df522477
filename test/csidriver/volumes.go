package csidriver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// Content returns the directory of a volume. It stays when the volume is unpublished.
func (d *Driver) Content(handle string) string {
	return filepath.Join(filepath.Dir(d.Endpoint), fmt.Sprintf("%.8x", sha256.Sum256([]byte(handle))))
}

// Published returns all requests to publish a volume that came.
func (d *Driver) Published(handle string) []*csi.NodePublishVolumeRequest {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.published[handle])
}

// Called returns how often a call came, by its name, like NodeStageVolume.
func (d *Driver) Called(call string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.called[call]
}

// NodeStageVolume implements CSI.
func (d *Driver) NodeStageVolume(
	_ context.Context, r *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	return &csi.NodeStageVolumeResponse{}, d.bind(d.Content(r.VolumeId), r.StagingTargetPath, false)
}

// NodePublishVolume implements CSI.
func (d *Driver) NodePublishVolume(
	_ context.Context, r *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	d.published[r.VolumeId] = append(d.published[r.VolumeId], r)
	d.mu.Unlock()
	if r.VolumeCapability.GetBlock() != nil {
		return &csi.NodePublishVolumeResponse{}, makeDevice(r.TargetPath)
	}
	return &csi.NodePublishVolumeResponse{}, d.bind(d.Content(r.VolumeId), r.TargetPath, r.Readonly)
}

// NodeUnpublishVolume implements CSI.
func (d *Driver) NodeUnpublishVolume(
	_ context.Context, r *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, d.unbind(r.TargetPath)
}

// NodeUnstageVolume implements CSI.
func (d *Driver) NodeUnstageVolume(
	_ context.Context, r *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	return &csi.NodeUnstageVolumeResponse{}, d.unbind(r.StagingTargetPath)
}

// NodeGetVolumeStats implements CSI.
func (d *Driver) NodeGetVolumeStats(
	context.Context, *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	return d.say().Usage, nil
}

// bind mounts a directory on target, unless something is mounted there: a call may come twice.
func (d *Driver) bind(from, target string, readOnly bool) error {
	d.mounting.Lock()
	defer d.mounting.Unlock()
	mounted, err := isMounted(target)
	if err == nil {
		err = os.MkdirAll(from, 0o755)
	}
	if err == nil && !mounted {
		err = os.MkdirAll(target, 0o755)
	}
	if err == nil && !mounted {
		err = unix.Mount(from, target, "", unix.MS_BIND, "")
	}
	if err == nil && readOnly {
		err = unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")
	}
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// makeDevice makes a block device at path, the first loop device, unless one is there.
func makeDevice(path string) error {
	err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0)))
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

func (d *Driver) unbind(target string) error {
	d.mounting.Lock()
	defer d.mounting.Unlock()
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

func isMounted(path string) (bool, error) {
	points, err := mount.Below(path)
	return slices.Contains(points, path), err
}
