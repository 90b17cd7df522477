// Package csi is a CSI driver for volumes that are kept on the machine that it runs on.
//
// # Model
//
// A Driver serves the identity, controller and node services of CSI 1.13 on a unix socket, and registers itself with
// the kubelet by a second socket in plugins_registry. One driver runs on each node and has the volumes of that node
// alone; its topology is the node's name. store keeps the volumes; core/localvolume decides about them;
// k8s.io/mount-utils mounts, checks and grows file systems.
//
//	image, file system   stage: attach a loop device that is detached with its last user, check, mount, grow; publish: bind
//	image, block device  stage: attach a loop device; publish: bind its node; unstage: detach it
//	directory            publish: bind
//
// # Invariants
//
//   - Every call can be repeated. A call whose caller stops waiting still runs to its end, and a repeated call finds
//     its result. Two calls that change one volume at the same time get ABORTED, as CSI says.
//   - Everything in memory is also in the directory or in the kernel's tables, so that a crash loses nothing.
//   - Paths come from the caller, which is the kubelet and runs as root. Names and IDs come from the API and never
//     become part of a path.
//
// It does not implement attaching, because volumes are on the machine already. It offers no volume to several nodes. It
// leaves the group of a volume's files to the kubelet (fsGroupPolicy File), which compares before it changes.
package csi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/mount-utils"
	"k8s.io/utils/exec"

	"github.com/plimsoll-dev/plimsoll/internal/core/localvolume"
	"github.com/plimsoll-dev/plimsoll/internal/csi/store"
	"github.com/plimsoll-dev/plimsoll/internal/host/socket"
)

// Name is the name of the driver in StorageClasses and CSIDriver objects.
const Name = "csi.plimsoll.dev"

// TopologyKey is the label of nodes that says where a volume is. It is a label of our own, which the kubelet sets to
// the node's name. kubernetes.io/hostname is not used: a cloud provider or a person may have set it to another value,
// which the kubelet would refuse to change.
const TopologyKey = "plimsoll.dev/node"

// Options configure a Driver.
type Options struct {
	Store        store.Options
	Endpoint     string // path of the CSI socket
	Registration string // the kubelet's directory plugins_registry; empty: the driver does not register itself
	VolumesMax   int64  // how many volumes the scheduler lets pods of this node use; 0: as many as there is room for
	Version      string
}

// Driver serves CSI.
type Driver struct {
	o       Options
	store   *store.Store
	mounter *mount.SafeFormatAndMount
	resizer *mount.ResizeFs

	spec.UnimplementedIdentityServer
	spec.UnimplementedControllerServer
	spec.UnimplementedNodeServer
}

// New opens the volumes. The caller must Close the result.
func New(o Options) (*Driver, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	volumes, err := store.Open(o.Store)
	if err != nil {
		return nil, err
	}
	return &Driver{
		o:       o,
		store:   volumes,
		mounter: mount.NewSafeFormatAndMount(mount.New(""), exec.New()),
		resizer: mount.NewResizeFs(exec.New()),
	}, nil
}

// Limits of options.
const (
	nodeNameMax    = 63  // bytes: the limit of a label's value
	socketPathMax  = 107 // bytes: sun_path has 108 with its final NUL (unix(7))
	reservedMaxPct = 90  // chosen: a larger value is more likely a typing mistake
)

func (o Options) check() error {
	var problems []error
	add := func(bad bool, format string, args ...any) {
		if bad {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	add(!filepath.IsAbs(o.Store.Dir), "directory of volumes %q: want an absolute path", o.Store.Dir)
	add(
		o.Store.Node == "" || len(o.Store.Node) > nodeNameMax,
		"node name %q: want 1 to %d characters: it becomes the value of the label %s", o.Store.Node, nodeNameMax,
		TopologyKey)
	add(
		!filepath.IsAbs(o.Endpoint) || len(o.Endpoint) > socketPathMax,
		"socket %q: want an absolute path of at most %d characters", o.Endpoint, socketPathMax)
	add(
		o.Registration != "" && !filepath.IsAbs(o.Registration), "registration directory %q: want an absolute path",
		o.Registration)
	add(
		o.Store.Reserved < 0 || o.Store.Reserved > reservedMaxPct, "reserved %d percent: want 0 to %d", o.Store.Reserved,
		reservedMaxPct)
	add(o.VolumesMax < 0, "limit of %d volumes: want 0 (no limit) or more", o.VolumesMax)
	return errors.Join(problems...)
}

// Close releases the volumes' directory. Mounts stay, because pods use them.
func (d *Driver) Close() error { return d.store.Close() }

// Serve answers until ctx ends.
func (d *Driver) Serve(ctx context.Context) error {
	server := grpc.NewServer(grpc.UnaryInterceptor(answer))
	spec.RegisterIdentityServer(server, d)
	spec.RegisterControllerServer(server, d)
	spec.RegisterNodeServer(server, d)
	dir, listener, err := listen(d.o.Endpoint)
	if err != nil {
		return err
	}
	defer dir.Close()
	ends := make(chan error, 2)
	go func() { ends <- server.Serve(listener) }()
	registrar, err := d.register(ends)
	if err != nil {
		server.Stop()
		return err
	}
	slog.Info(
		"serving", "driver", Name, "socket", d.o.Endpoint, "volumes", len(d.store.Volumes()), "snapshots",
		len(d.store.Snapshots()))
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case err = <-ends:
	}
	registrar.stop()
	stopWithin(server, stopTimeout)
	return errors.Join(err, dir.Remove(filepath.Base(d.o.Endpoint)))
}

// stopTimeout bounds the wait for calls in progress at the end (chosen). A supervisor kills a driver that takes longer.
const stopTimeout = 3 * time.Second

func stopWithin(server *grpc.Server, timeout time.Duration) {
	timer := time.AfterFunc(timeout, server.Stop)
	defer timer.Stop()
	server.GracefulStop()
}

func listen(path string) (*socket.Dir, net.Listener, error) {
	dir, err := socket.Open(filepath.Dir(path))
	if err != nil {
		return nil, nil, fmt.Errorf("listen: %w", err)
	}
	listener, err := dir.Listen(filepath.Base(path))
	if err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	return dir, listener, nil
}

// registrationSocket is the name of the socket by which the kubelet finds the driver.
const registrationSocket = Name + "-reg.sock"

// registrar registers the driver with the kubelet, by a socket in plugins_registry.
type registrar struct {
	dir      *socket.Dir
	server   *grpc.Server
	endpoint string
	registration.UnimplementedRegistrationServer
}

func (d *Driver) register(ends chan<- error) (*registrar, error) {
	if d.o.Registration == "" {
		return nil, nil
	}
	dir, listener, err := listen(filepath.Join(d.o.Registration, registrationSocket))
	if err != nil {
		return nil, err
	}
	r := &registrar{dir: dir, server: grpc.NewServer(grpc.UnaryInterceptor(answer)), endpoint: d.o.Endpoint}
	registration.RegisterRegistrationServer(r.server, r)
	go func() { ends <- r.server.Serve(listener) }()
	return r, nil
}

// stop removes the socket first, so that the kubelet forgets the driver.
func (r *registrar) stop() {
	if r == nil {
		return
	}
	if err := errors.Join(r.dir.Remove(registrationSocket), r.dir.Close()); err != nil {
		slog.Warn("registration socket not removed", "err", err)
	}
	r.server.Stop()
}

// GetInfo returns the driver's name and its socket.
func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{
		Type:     registration.CSIPlugin,
		Name:     Name,
		Endpoint: r.endpoint,
		// version of the protocol between kubelet and drivers, the same for every driver
		SupportedVersions: []string{"1.0.0"},
	}, nil
}

// NotifyRegistrationStatus receives whether the kubelet registered the driver.
func (r *registrar) NotifyRegistrationStatus(
	_ context.Context, s *registration.RegistrationStatus,
) (*registration.RegistrationStatusResponse, error) {
	if !s.PluginRegistered {
		slog.Error("the kubelet refused the driver", "err", s.Error)
	} else {
		slog.Info("registered with the kubelet")
	}
	return &registration.RegistrationStatusResponse{}, nil
}

// answer gives errors their gRPC code, and logs them. Requests are not logged, because they may contain secrets.
func answer(ctx context.Context, request any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	result, err := handle(ctx, request)
	if err == nil {
		return result, nil
	}
	code := codeOf(err)
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	if code == codes.Internal {
		slog.Error("call failed", "method", info.FullMethod, "err", text)
	} else {
		slog.Info("call refused", "method", info.FullMethod, "code", code, "err", text)
	}
	return nil, status.Error(code, text)
}

func codeOf(err error) codes.Code {
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	var refused *localvolume.Error
	if errors.As(err, &refused) {
		switch refused.Kind {
		case localvolume.Invalid:
			return codes.InvalidArgument
		case localvolume.OutOfRange:
			return codes.OutOfRange
		case localvolume.Exhausted:
			return codes.ResourceExhausted
		case localvolume.Exists:
			return codes.AlreadyExists
		case localvolume.Precondition:
			return codes.FailedPrecondition
		}
	}
	switch {
	case errors.Is(err, store.ErrBusy):
		return codes.Aborted
	case errors.Is(err, store.ErrNotFound):
		return codes.NotFound
	case errors.Is(err, store.ErrOther):
		return codes.FailedPrecondition
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, os.ErrNotExist):
		return codes.NotFound
	case errors.Is(err, store.ErrFull):
		return codes.ResourceExhausted
	}
	return codes.Internal
}

// missing returns the error of a request that lacks fields; nil if all have a value.
func missing(fields ...[2]string) error {
	for _, f := range fields {
		if f[1] == "" {
			return status.Errorf(codes.InvalidArgument, "%s is missing in the request", f[0])
		}
	}
	return nil
}

// runToEnd runs an operation to its end even if its caller stops waiting. The caller then repeats the call, and gets
// ABORTED until the operation has ended.
func runToEnd[T any](ctx context.Context, do func() (T, error)) (T, error) {
	type outcome struct {
		result T
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		result, err := do()
		done <- outcome{result, err}
	}()
	select {
	case o := <-done:
		return o.result, o.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}
