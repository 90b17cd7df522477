package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
)

// Time limits of calls to a plugin. A longer one keeps a hung plugin's pods, and those that are admitted after them, waiting.
const (
	connectMax  = 10 * time.Second                                                 // to connect and ask for options (upstream: to connect)
	preferMax   = 10 * time.Second                                                 // an opinion (upstream: none); chosen
	allocateMax = time.Minute                                                      // may set up hardware (upstream: none); chosen
	preStartMax = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second // the API's
)

// A plugin should listen before it registers. One that is a moment late is waited for; longer only delays what a plugin whose
// socket was removed when we started does about it (chosen; upstream: 10 s).
const (
	appearMax   = 2 * time.Second
	appearEvery = 50 * time.Millisecond
)

// Plugin is a connection to a plugin.
type Plugin struct {
	Resource string
	endpoint string
	conn     *grpc.ClientConn
	api      pluginapi.DevicePluginClient
	ctx      context.Context // ends with the connection
	end      context.CancelFunc
}

// connect connects to a plugin and asks for its options.
func (s *Server) connect(ctx context.Context, resource, endpoint string) (*Plugin, devicemanager.Options, error) {
	ctx, cancel := context.WithTimeout(ctx, connectMax)
	defer cancel()
	path := filepath.Join(s.dir.Path, endpoint) // for messages
	if err := s.awaitSocket(ctx, endpoint); err != nil {
		return nil, devicemanager.Options{}, fmt.Errorf("connect to device plugin of %s: %s: %w: it must listen there before it registers", resource, path, err)
	}
	conn, err := grpc.NewClient("passthrough:///"+endpoint,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: appearEvery, Multiplier: 1, MaxDelay: appearEvery}, MinConnectTimeout: connectMax}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			if err := s.dir.Check(endpoint); err != nil {
				return nil, err
			}
			return (&net.Dialer{}).DialContext(ctx, "unix", s.dir.In(endpoint))
		}))
	if err != nil {
		return nil, devicemanager.Options{}, fmt.Errorf("connect to device plugin of %s: %s: %w", resource, path, err)
	}
	p := &Plugin{Resource: resource, endpoint: endpoint, conn: conn, api: pluginapi.NewDevicePluginClient(conn)}
	p.ctx, p.end = context.WithCancel(context.Background())
	o, err := p.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		p.close()
		return nil, devicemanager.Options{}, fmt.Errorf("ask device plugin of %s for its options: %s: %w", resource, path, err)
	}
	return p, devicemanager.Options{Prefers: o.GetPreferredAllocationAvailable, PreStart: o.PreStartRequired}, nil
}

// awaitSocket waits a moment for a socket to be there.
func (s *Server) awaitSocket(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, appearMax)
	defer cancel()
	tick := time.NewTicker(appearEvery)
	defer tick.Stop()
	for {
		err := s.dir.Check(name)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func (p *Plugin) close() {
	p.end()
	_ = p.conn.Close() // it fails only when it was closed before
}

// watch passes on each list of devices until the plugin is gone.
func (p *Plugin) watch(listed func([]numa.Device)) error {
	stream, err := p.api.ListAndWatch(p.ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	for {
		response, err := stream.Recv()
		if err != nil {
			return err
		}
		listed(devicesOf(response))
	}
}

func devicesOf(r *pluginapi.ListAndWatchResponse) []numa.Device {
	var out []numa.Device
	for _, d := range r.GetDevices() {
		device := numa.Device{ID: d.GetID(), Healthy: d.GetHealth() == pluginapi.Healthy}
		for _, n := range d.GetTopology().GetNodes() {
			device.Nodes = append(device.Nodes, machine.NUMAID(n.GetID()))
		}
		out = append(out, device)
	}
	return out
}

// Preferred asks which of available, those included among them, go well together, size in all.
func (p *Plugin) Preferred(ctx context.Context, available, included []string, size int) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, preferMax)
	defer cancel()
	response, err := p.api.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
		ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
			{AvailableDeviceIDs: available, MustIncludeDeviceIDs: included, AllocationSize: int32(size)},
		},
	})
	if err != nil {
		return nil, err
	}
	if len(response.GetContainerResponses()) == 0 {
		return nil, nil
	}
	return response.ContainerResponses[0].GetDeviceIDs(), nil
}

// Allocate asks what a container with those devices needs.
func (p *Plugin) Allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, allocateMax)
	defer cancel()
	response, err := p.api.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	if len(response.GetContainerResponses()) == 0 {
		return nil, fmt.Errorf("no containers return in allocation response %v", response) // upstream's words
	}
	return response.ContainerResponses[0], nil
}

// PreStart tells the plugin that a container with those devices is about to start.
func (p *Plugin) PreStart(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, preStartMax)
	defer cancel()
	_, err := p.api.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	return err
}
