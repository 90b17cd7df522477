// Package csidriver is a CSI driver for tests: it registers in plugins_registry, says about its node what its Answers
// say, and can be made to fail or hang in each call. Its volumes are directories, which it mounts by bind mounts; every
// handle names a volume. Package driver below it is the same as a separate program, which tests can kill.
package csidriver

import (
	"context"
	"errors"
	"net"
	"os"
	"path"
	"path/filepath"
	"sync"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// Answers are what a driver says. They may change while it runs.
type Answers struct {
	Kind         string // empty: CSIPlugin
	Name         string
	Endpoint     string   // empty: the driver's own socket
	Versions     []string // nil: 1.0.0
	NodeID       string
	VolumesMax   int64
	Topology     map[string]string
	Capabilities []csi.NodeServiceCapability_RPC_Type
	Usage        *csi.NodeGetVolumeStatsResponse // of every volume
	// Called before each call, with its name, like GetInfo; its error is the call's. nil: no call fails.
	Fail func(ctx context.Context, call string) error
}

// Driver is a running driver.
type Driver struct {
	Registration string // path of its socket in plugins_registry
	Endpoint     string // path of its own socket
	// Told has what it was told about its registration: "" if it was registered.
	Told chan string

	mu      sync.Mutex
	answers Answers

	called    map[string]int                             // by name
	published map[string][]*csi.NodePublishVolumeRequest // by handle
	mounting  sync.Mutex

	servers []*grpc.Server

	csi.UnimplementedNodeServer
	csi.UnimplementedIdentityServer
	registerapi.UnimplementedRegistrationServer
}

// Start starts a driver that has its own socket in dir and registers in registry.
func Start(dir, registry string, a Answers) (*Driver, error) {
	d := &Driver{
		Registration: filepath.Join(registry, a.Name+"-reg.sock"),
		Endpoint:     filepath.Join(dir, a.Name+".sock"),
		Told:         make(chan string, 1000),
		answers:      a,
		called:       map[string]int{},
		published:    map[string][]*csi.NodePublishVolumeRequest{},
	}
	if err := d.serve(d.Endpoint); err != nil {
		return nil, err
	}
	return d, d.Register()
}

// Register makes the registration socket, and makes it again if it exists.
func (d *Driver) Register() error { return d.serve(d.Registration) }

// Unregister removes the registration socket.
func (d *Driver) Unregister() error { return os.Remove(d.Registration) }

// Set changes what the driver says.
func (d *Driver) Set(change func(*Answers)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change(&d.answers)
}

// Stop ends the driver as a crash does: its sockets stay.
func (d *Driver) Stop() {
	for _, s := range d.servers {
		s.Stop()
	}
}

func (d *Driver) serve(socket string) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false)
	server := grpc.NewServer(grpc.UnaryInterceptor(d.fail))
	csi.RegisterIdentityServer(server, d)
	csi.RegisterNodeServer(server, d)
	registerapi.RegisterRegistrationServer(server, d)
	d.servers = append(d.servers, server)
	go func() { _ = server.Serve(listener) }()
	return nil
}

func (d *Driver) say() Answers {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.answers
}

// fail fails or delays a call, if the Answers say so.
func (d *Driver) fail(ctx context.Context, request any, call *grpc.UnaryServerInfo,
	handle grpc.UnaryHandler) (any, error) {
	name := path.Base(call.FullMethod)
	d.mu.Lock()
	d.called[name]++
	d.mu.Unlock()
	if fail := d.say().Fail; fail != nil {
		if err := fail(ctx, name); err != nil {
			return nil, err
		}
	}
	return handle(ctx, request)
}

// GetInfo implements the registration API.
func (d *Driver) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	a := d.say()
	out := &registerapi.PluginInfo{Type: a.Kind, Name: a.Name, Endpoint: a.Endpoint, SupportedVersions: a.Versions}
	if a.Kind == "" {
		out.Type = registerapi.CSIPlugin
	}
	if a.Endpoint == "" {
		out.Endpoint = d.Endpoint
	}
	if a.Versions == nil {
		out.SupportedVersions = []string{"1.0.0"}
	}
	return out, nil
}

// NotifyRegistrationStatus implements the registration API.
func (d *Driver) NotifyRegistrationStatus(_ context.Context,
	s *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	told := s.GetError()
	if !s.GetPluginRegistered() && told == "" {
		told = "no reason was given"
	}
	select {
	case d.Told <- told:
	default: // nobody listens
	}
	return &registerapi.RegistrationStatusResponse{}, nil
}

// GetPluginInfo implements CSI.
func (d *Driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.say().Name, VendorVersion: "test"}, nil
}

// NodeGetInfo implements CSI.
func (d *Driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	a := d.say()
	out := &csi.NodeGetInfoResponse{NodeId: a.NodeID, MaxVolumesPerNode: a.VolumesMax}
	if a.Topology != nil {
		out.AccessibleTopology = &csi.Topology{Segments: a.Topology}
	}
	return out, nil
}

// NodeGetCapabilities implements CSI.
func (d *Driver) NodeGetCapabilities(context.Context,
	*csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, c := range d.say().Capabilities {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: c}},
		})
	}
	return out, nil
}
