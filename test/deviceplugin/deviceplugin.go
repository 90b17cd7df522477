// Package deviceplugin is a device plugin for tests. It speaks device plugin API v1beta1 over sockets and behaves as
// real plugins do: it registers again when kubelet.sock is created again or its own socket is removed.
//
// Its devices have NUMA nodes and health, which tests can change while it runs; it can prefer devices in an order. A
// container with its devices gets an environment variable, mounts, device nodes, an annotation and CDI names, as the
// Config says. Package plugin below it is the same as a separate program, which tests can kill. Its devices do not
// exist: their device nodes are /dev/null.
package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// Device is one device.
type Device struct {
	ID        string
	Nodes     []int64 // NUMA nodes near it
	Unhealthy bool
}

// Config is the configuration of a plugin. It does not change while the plugin runs, except Devices through Plugin.Set.
type Config struct {
	Dir         string // directory of kubelet.sock
	Resource    string
	Endpoint    string // name of its socket; empty: made from Resource
	Version     string // empty: v1beta1
	Devices     []Device
	Prefer      []string          // ids in the order of preference; nil: no GetPreferredAllocation
	PreStart    bool              // requires PreStartContainer
	Env         string            // name of the variable that contains the ids
	Mounts      map[string]string // host path, by the path in the container
	Nodes       bool              // a device node /dev/<id> for each device; it is /dev/null
	Annotations map[string]string
	CDI         string               // kind of the CDI devices: vendor.com/class; empty: none
	Fail        func(string) error   // called before each call, with its name; its error is the call's; nil: no call fails
	Log         func(string, ...any) // nil: silent
}

// Plugin is a running plugin. mu guards devices and changed.
type Plugin struct {
	c Config

	mu      sync.Mutex
	devices []Device
	changed chan struct{} // closed and replaced when devices change

	pluginapi.UnimplementedDevicePluginServer
}

// New prepares a plugin.
func New(c Config) *Plugin {
	if c.Endpoint == "" {
		c.Endpoint = strings.ReplaceAll(c.Resource, "/", "-") + ".sock"
	}
	if c.Version == "" {
		c.Version = pluginapi.Version
	}
	if c.Log == nil {
		c.Log = func(string, ...any) {}
	}
	if c.Fail == nil {
		c.Fail = func(string) error { return nil }
	}
	return &Plugin{c: c, devices: c.Devices, changed: make(chan struct{})}
}

// Set replaces the devices.
func (p *Plugin) Set(devices []Device) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.devices = devices
	close(p.changed)
	p.changed = make(chan struct{})
}

// SetHealth changes one device.
func (p *Plugin) SetHealth(id string, healthy bool) {
	p.mu.Lock()
	devices := slices.Clone(p.devices)
	p.mu.Unlock()
	for i := range devices {
		if devices[i].ID == id {
			devices[i].Unhealthy = !healthy
		}
	}
	p.Set(devices)
}

// Run serves and registers until ctx ends; it does so again whenever that is required.
func (p *Plugin) Run(ctx context.Context) error {
	for {
		if err := p.round(ctx); err != nil || ctx.Err() != nil {
			return err
		}
	}
}

// round serves until ctx ends or the plugin must register again.
func (p *Plugin) round(ctx context.Context) error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return err
	}
	defer watcher.Close()
	if err := watcher.Add(p.c.Dir); err != nil {
		return err
	}
	socket := filepath.Join(p.c.Dir, p.c.Endpoint)
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	listener.SetUnlinkOnClose(false) // it may be closed late, when the next round's socket has that name
	server := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	if err := p.register(ctx); err != nil {
		p.c.Log("not registered: %v", err)
	} else {
		p.c.Log("registered")
	}
	made := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-watcher.Events:
			made = made || e.Name == socket && e.Has(fsnotify.Create) // earlier events are of our own removal
			if e.Name == filepath.Join(p.c.Dir, "kubelet.sock") && e.Has(fsnotify.Create) ||
				made && e.Name == socket && e.Has(fsnotify.Remove) {
				p.c.Log("registering again: %v", e)
				return nil
			}
		}
	}
}

// Register calls the agent once, with the Config's values.
func (p *Plugin) Register(ctx context.Context) error { return p.register(ctx) }

func (p *Plugin) register(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.c.Dir, "kubelet.sock"),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = pluginapi.NewRegistrationClient(conn).Register(ctx, &pluginapi.RegisterRequest{Version: p.c.Version,
		Endpoint: p.c.Endpoint, ResourceName: p.c.Resource})
	return err
}

// GetDevicePluginOptions implements the API.
func (p *Plugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{PreStartRequired: p.c.PreStart,
		GetPreferredAllocationAvailable: p.c.Prefer != nil}, p.c.Fail("options")
}

// ListAndWatch implements the API.
func (p *Plugin) ListAndWatch(_ *pluginapi.Empty, stream pluginapi.DevicePlugin_ListAndWatchServer) error {
	for {
		p.mu.Lock()
		devices, changed := p.devices, p.changed
		p.mu.Unlock()
		response := &pluginapi.ListAndWatchResponse{}
		for _, d := range devices {
			out := &pluginapi.Device{ID: d.ID, Health: pluginapi.Healthy}
			if d.Unhealthy {
				out.Health = pluginapi.Unhealthy
			}
			for _, n := range d.Nodes {
				if out.Topology == nil {
					out.Topology = &pluginapi.TopologyInfo{}
				}
				out.Topology.Nodes = append(out.Topology.Nodes, &pluginapi.NUMANode{ID: n})
			}
			response.Devices = append(response.Devices, out)
		}
		if err := stream.Send(response); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

// GetPreferredAllocation implements the API.
func (p *Plugin) GetPreferredAllocation(_ context.Context,
	r *pluginapi.PreferredAllocationRequest) (*pluginapi.PreferredAllocationResponse, error) {
	out := &pluginapi.PreferredAllocationResponse{}
	for _, c := range r.ContainerRequests {
		ids := slices.Clone(c.MustIncludeDeviceIDs)
		for _, id := range p.c.Prefer {
			if len(ids) < int(c.AllocationSize) && slices.Contains(c.AvailableDeviceIDs, id) && !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
		p.c.Log("preferred %v", ids)
		out.ContainerResponses = append(out.ContainerResponses,
			&pluginapi.ContainerPreferredAllocationResponse{DeviceIDs: ids})
	}
	return out, p.c.Fail("preferred")
}

// Allocate implements the API.
func (p *Plugin) Allocate(_ context.Context, r *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := &pluginapi.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		ids := slices.Sorted(slices.Values(c.DevicesIds))
		needs := &pluginapi.ContainerAllocateResponse{Annotations: p.c.Annotations}
		if p.c.Env != "" {
			needs.Envs = map[string]string{p.c.Env: strings.Join(ids, ",")}
		}
		for inside, host := range p.c.Mounts {
			needs.Mounts = append(needs.Mounts, &pluginapi.Mount{ContainerPath: inside, HostPath: host, ReadOnly: true})
		}
		for _, id := range ids {
			if p.c.Nodes {
				needs.Devices = append(needs.Devices, &pluginapi.DeviceSpec{ContainerPath: "/dev/" + id, HostPath: "/dev/null",
					Permissions: "rw"})
			}
			if p.c.CDI != "" {
				needs.CdiDevices = append(needs.CdiDevices, &pluginapi.CDIDevice{Name: p.c.CDI + "=" + id})
			}
		}
		p.c.Log("allocate %v", ids)
		out.ContainerResponses = append(out.ContainerResponses, needs)
	}
	return out, p.c.Fail("allocate")
}

// PreStartContainer implements the API.
func (p *Plugin) PreStartContainer(_ context.Context,
	r *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	p.c.Log("prestart %v", slices.Sorted(slices.Values(r.DevicesIds)))
	return &pluginapi.PreStartContainerResponse{}, p.c.Fail("prestart")
}

// ParseDevices reads devices in the form of the command line: gpu0@0,gpu1@0+1,gpu2 (near node 0, near nodes 0 and 1,
// near none).
func ParseDevices(text string) ([]Device, error) {
	var out []Device
	for _, word := range strings.Split(text, ",") {
		id, nodes, near := strings.Cut(word, "@")
		d := Device{ID: id}
		for _, n := range strings.Split(nodes, "+") {
			var node int64
			if !near {
				break
			}
			if _, err := fmt.Sscan(n, &node); err != nil {
				return nil, fmt.Errorf("read devices: %q: node %q: %w", word, n, err)
			}
			d.Nodes = append(d.Nodes, node)
		}
		out = append(out, d)
	}
	return out, nil
}
