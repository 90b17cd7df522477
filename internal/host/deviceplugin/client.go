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

// Timeouts of calls to a plugin. Raising one, the pods of a plugin that hangs wait longer, and so do those that are
// admitted after them.
const (
	// connectMax is for connecting and getting the options (kubelet: for connecting).
	connectMax = 10 * time.Second
	// preferMax is for a preferred allocation (kubelet: no timeout; chosen).
	preferMax = 10 * time.Second
	// allocateMax is for an allocation, which may set up hardware (kubelet: no timeout; chosen).
	allocateMax = time.Minute
	preStartMax = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second // the API's
)

// A plugin should listen before it registers. appearMax is how long the server waits for one that does not, and
// appearEvery how often it checks (chosen; kubelet: 10 s). A longer wait would only delay a plugin's reaction to the
// removal of its socket at the agent's start.
const (
	appearMax   = 2 * time.Second
	appearEvery = 50 * time.Millisecond
)

// Plugin is a connection to a plugin.
type Plugin struct {
	Resource string // the resource of its devices
	path     string // of its socket
	conn     *grpc.ClientConn
	api      pluginapi.DevicePluginClient
	ctx      context.Context    // ends with the connection
	end      context.CancelFunc // ends ctx
}

// connect connects to a plugin in the directory and gets its options.
func (s *Server) connect(ctx context.Context, resource, endpoint string) (*Plugin, devicemanager.Options, error) {
	ctx, cancel := context.WithTimeout(ctx, connectMax)
	defer cancel()
	path := filepath.Join(s.dir.Path, endpoint) // for messages
	if err := s.awaitSocket(ctx, endpoint); err != nil {
		return nil, devicemanager.Options{},
			fmt.Errorf("connect to device plugin of %s: %s: %w: it must listen there before it registers", resource, path, err)
	}
	return connect(ctx, resource, path, func(ctx context.Context) (net.Conn, error) {
		if err := s.dir.Check(endpoint); err != nil {
			return nil, err
		}
		return (&net.Dialer{}).DialContext(ctx, "unix", s.dir.In(endpoint))
	})
}

// connect connects to the plugin at path by dial and gets its options.
func connect(ctx context.Context, resource, path string,
	dial func(context.Context) (net.Conn, error)) (*Plugin, devicemanager.Options, error) {
	conn, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: appearEvery, Multiplier: 1,
			MaxDelay: appearEvery}, MinConnectTimeout: connectMax}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx) }))
	if err != nil {
		return nil, devicemanager.Options{}, fmt.Errorf("connect to device plugin of %s: %s: %w", resource, path, err)
	}
	p := &Plugin{Resource: resource, path: path, conn: conn, api: pluginapi.NewDevicePluginClient(conn)}
	p.ctx, p.end = context.WithCancel(context.Background())
	o, err := p.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true))
	if err != nil {
		p.close()
		return nil, devicemanager.Options{}, fmt.Errorf("ask device plugin of %s for its options: %s: %w", resource, path,
			err)
	}
	return p, devicemanager.Options{Prefers: o.GetPreferredAllocationAvailable, PreStart: o.PreStartRequired}, nil
}

// awaitSocket waits until a socket exists, at most for appearMax.
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
	_ = p.conn.Close() // an error only means that it was closed before
}

// watch passes on each list of devices until the plugin disconnects.
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

// Preferred asks which devices of available the plugin prefers together: size of them, among them all of included.
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

// Allocate asks the plugin what a container needs to use these devices.
func (p *Plugin) Allocate(ctx context.Context, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, allocateMax)
	defer cancel()
	response, err := p.api.Allocate(ctx,
		&pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: ids}}})
	if err != nil {
		return nil, err
	}
	if len(response.GetContainerResponses()) == 0 {
		return nil, fmt.Errorf("no containers return in allocation response %v", response) // the kubelet's words
	}
	return response.ContainerResponses[0], nil
}

// PreStart calls the plugin before a container with these devices starts.
func (p *Plugin) PreStart(ctx context.Context, ids []string) error {
	ctx, cancel := context.WithTimeout(ctx, preStartMax)
	defer cancel()
	_, err := p.api.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: ids})
	return err
}
