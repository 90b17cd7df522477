package csivolume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	hostcsi "github.com/plimsoll-dev/plimsoll/internal/host/csi"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
)

// testDriver is a CSI driver on a socket of its own. A volume is a directory, which it bind-mounts. It records every
// call, and whether one would mount something twice or unmount what is staged elsewhere. It can fail, hang and give
// wrong answers.
type testDriver struct {
	csi.UnimplementedNodeServer
	csi.UnimplementedIdentityServer
	t      testing.TB
	dir    string // <dir>/<handle> is a volume
	server *grpc.Server

	serial sync.Mutex // it handles one call at a time, as drivers do for a volume

	mu       sync.Mutex
	calls    []string
	publish  []*csi.NodePublishVolumeRequest
	fail     map[string]error         // by method, until it is removed
	hang     map[string]chan struct{} // by method, or method and volume: the call waits for it, or for its context
	late     map[string]chan struct{} // by method and volume: the call waits for it, and is carried out in any case
	lie      map[string]bool          // by method: it answers with success and does nothing
	problems []string
	name     string // what it says; "": it does not answer that question
	usage    *csi.NodeGetVolumeStatsResponse
	asked    *csi.NodeGetVolumeStatsRequest // the last question about usage
	expanded *csi.NodeExpandVolumeRequest   // the last one
}

// startDriver serves a driver on <dir>/csi.sock.
func startDriver(t testing.TB, dir string) *testDriver {
	t.Helper()
	d := &testDriver{t: t, dir: dir, fail: map[string]error{}, hang: map[string]chan struct{}{}, lie: map[string]bool{},
		late: map[string]chan struct{}{}}
	d.serve()
	return d
}

// serve listens on the driver's socket until the test ends, or the server is stopped.
func (d *testDriver) serve() {
	d.t.Helper()
	listener, err := net.Listen("unix", filepath.Join(d.dir, "csi.sock"))
	if err != nil {
		d.t.Fatal(err)
	}
	d.server = grpc.NewServer()
	csi.RegisterNodeServer(d.server, d)
	csi.RegisterIdentityServer(d.server, d)
	go d.server.Serve(listener)
	d.t.Cleanup(d.server.Stop)
}

func (d *testDriver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.name == "" {
		return nil, status.Error(codes.Unimplemented, "it has no name")
	}
	return &csi.GetPluginInfoResponse{Name: d.name}, nil
}

// client returns a connection to the driver, with a real socket in between.
func (d *testDriver) client() *hostcsi.Client { return connect(d.t, d.dir) }

func connect(t testing.TB, dir string) *hostcsi.Client {
	c, err := hostcsi.Dial(filepath.Join(dir, "csi.sock"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// begin records a call, and returns whether the driver must carry it out, or with which error it ends. The context is
// the one with which it is carried out.
func (d *testDriver) begin(ctx context.Context, method, handle string) (_ context.Context, do bool, err error) {
	call := method + " " + handle
	d.mu.Lock()
	d.calls = append(d.calls, call)
	err, lies := d.fail[method], d.lie[method]
	hang, late := cmp.Or(d.hang[call], d.hang[method]), d.late[call]
	d.mu.Unlock()
	if late != nil {
		<-late
		return context.WithoutCancel(ctx), true, nil
	}
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done():
			return ctx, false, status.FromContextError(ctx.Err()).Err()
		}
	}
	return ctx, err == nil && !lies, err
}

// turn waits until the driver handles no other call, and holds serial then. It returns false, without holding serial,
// if the caller does not wait any more.
func (d *testDriver) turn(ctx context.Context) bool {
	d.serial.Lock()
	if ctx.Err() != nil {
		d.serial.Unlock()
		return false
	}
	return true
}

func (d *testDriver) bad(format string, args ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.problems = append(d.problems, fmt.Sprintf(format, args...))
}

// bind mounts from on target unless it is mounted there, since a call may be repeated.
func (d *testDriver) bind(from, target string, readOnly bool) error {
	if err := os.Mkdir(target, 0o755); err != nil && !os.IsExist(err) {
		return status.Error(codes.Internal, err.Error())
	}
	if mountsAt(target) > 0 {
		return nil
	}
	if err := unix.Mount(from, target, "", unix.MS_BIND, ""); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if readOnly {
		if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
	return nil
}

// bindDevice mounts a block device on target.
func (d *testDriver) bindDevice(target string) error {
	device := filepath.Join(d.dir, "device")
	err := unix.Mknod(device, unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))) // it is never opened
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return status.Error(codes.Internal, err.Error())
	}
	if mountsAt(target) > 0 {
		return nil
	}
	if err := os.WriteFile(target, nil, 0o600); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return unix.Mount(device, target, "", unix.MS_BIND, "")
}

func (d *testDriver) unbind(target string) error {
	if mountsAt(target) > 1 {
		d.bad("%s is mounted %d times", target, mountsAt(target))
	}
	err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW)
	if err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// mountsAt returns how often something is mounted at a path.
func mountsAt(path string) (n int) {
	points, err := mount.Below(path)
	if err != nil {
		panic(err)
	}
	for _, p := range points {
		if p == path {
			n++
		}
	}
	return n
}

func (d *testDriver) NodeStageVolume(
	ctx context.Context, r *csi.NodeStageVolumeRequest,
) (*csi.NodeStageVolumeResponse, error) {
	ctx, do, err := d.begin(ctx, "stage", r.VolumeId)
	if !d.turn(ctx) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	defer d.serial.Unlock()
	if do {
		volume := filepath.Join(d.dir, r.VolumeId)
		err = errors.Join(os.MkdirAll(volume, 0o755), d.bind(volume, r.StagingTargetPath, false))
	}
	return &csi.NodeStageVolumeResponse{}, err
}

func (d *testDriver) NodePublishVolume(
	ctx context.Context, r *csi.NodePublishVolumeRequest,
) (*csi.NodePublishVolumeResponse, error) {
	ctx, do, err := d.begin(ctx, "publish", r.VolumeId)
	if !d.turn(ctx) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	defer d.serial.Unlock()
	d.mu.Lock()
	d.publish = append(d.publish, r)
	d.mu.Unlock()
	from := r.StagingTargetPath
	if from == "" {
		from = filepath.Join(d.dir, r.VolumeId)
		if err := os.MkdirAll(from, 0o755); err != nil {
			return nil, err
		}
	} else if do && mountsAt(from) == 0 {
		d.bad("%s is published before it is staged", r.VolumeId)
	}
	switch {
	case do && r.VolumeCapability.GetBlock() != nil:
		err = d.bindDevice(r.TargetPath)
	case do:
		err = d.bind(from, r.TargetPath, r.Readonly)
	}
	return &csi.NodePublishVolumeResponse{}, err
}

func (d *testDriver) NodeUnpublishVolume(
	ctx context.Context, r *csi.NodeUnpublishVolumeRequest,
) (*csi.NodeUnpublishVolumeResponse, error) {
	ctx, do, err := d.begin(ctx, "unpublish", r.VolumeId)
	if !d.turn(ctx) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	defer d.serial.Unlock()
	if do {
		err = d.unbind(r.TargetPath)
	}
	return &csi.NodeUnpublishVolumeResponse{}, err
}

func (d *testDriver) NodeUnstageVolume(
	ctx context.Context, r *csi.NodeUnstageVolumeRequest,
) (*csi.NodeUnstageVolumeResponse, error) {
	ctx, do, err := d.begin(ctx, "unstage", r.VolumeId)
	if !d.turn(ctx) {
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	defer d.serial.Unlock()
	if do {
		err = d.unbind(r.StagingTargetPath)
	}
	return &csi.NodeUnstageVolumeResponse{}, err
}

func (d *testDriver) NodeExpandVolume(
	ctx context.Context, r *csi.NodeExpandVolumeRequest,
) (*csi.NodeExpandVolumeResponse, error) {
	_, _, err := d.begin(ctx, "expand", r.VolumeId)
	d.set(func() { d.expanded = r })
	return &csi.NodeExpandVolumeResponse{CapacityBytes: r.CapacityRange.GetRequiredBytes()}, err
}

func (d *testDriver) NodeGetVolumeStats(
	ctx context.Context, r *csi.NodeGetVolumeStatsRequest,
) (*csi.NodeGetVolumeStatsResponse, error) {
	_, _, err := d.begin(ctx, "usage", r.VolumeId)
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = r
	return d.usage, err
}

// called returns the calls so far.
func (d *testDriver) called() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.calls)
}

func (d *testDriver) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}
