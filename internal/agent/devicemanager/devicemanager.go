// Package devicemanager manages the node's device plugins and what they gave to containers.
//
// # Model
//
// A Manager runs the registration socket (host/deviceplugin) and records what the plugins report in a
// devicemanager.State. Others read from it: the assignments which devices exist (Inventory), the Node how many to
// publish (Amounts), admission whether a pod must wait (Wait). The assignments choose the devices. For that the Manager
// passes their questions to the plugins (Preferred), asks the plugins what the chosen devices need (AllocateAssigned),
// and adds that to a container's configuration each time the container is created (Configure).
//
// # Vocabulary
//
//   - needs: what a plugin's Allocate returns for a container with its devices: environment, mounts, device nodes,
//     annotations, CDI names.
//   - allocations: devices that a container was given, with their needs and the NUMA nodes that they are near.
//
// # Persistence
//
// What a container was given is stored in an annotation of the container itself (annotation.go). The runtime keeps it
// for as long as it has the container, dead ones included. A new agent reads it back (Recover), so that a container of
// a running pod can be started again with the same devices even while its plugin is away; the kubelet uses its
// checkpoint file for that, which is read for the containers that it created (RecoverGiven). Unlike a file, the
// annotation cannot be stale: it tells with what that container was created. When the last container of a pod is
// removed, the choice of devices is lost, and nothing uses it any more.
//
// # Invariants
//
//   - Nothing that a plugin reports changes what a running container has.
//   - A plugin is asked for the needs of a container's devices once, at admission, and called before every start if it
//     requires that.
//   - No call to a plugin is made under a lock.
//
// The package does not choose devices (core/numa) and does not decide how long to wait (core/devicemanager).
package devicemanager

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/metrics"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	coredevicemanager "github.com/plimsoll-dev/plimsoll/internal/core/devicemanager"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/registration"
	"github.com/plimsoll-dev/plimsoll/internal/host/deviceplugin"
)

// Options are what a Manager needs.
type Options struct {
	Dir      string           // of the sockets: <Dir>/kubelet.sock is the registration socket
	Changed  func()           // called when Inventory, Amounts or Wait may return something else
	Affected func(uid string) // called when the health of a device of this pod has changed
	Metrics  *metrics.Set
}

// Manager manages a node's device plugins.
type Manager struct {
	o     Options
	clock *clock.Clock
	news  chan struct{} // has a value when Options.Changed must be called

	mu          sync.Mutex           // guards everything that follows
	server      *deviceplugin.Server // nil while Run does not run
	state       *coredevicemanager.State
	plugins     map[string]*deviceplugin.Plugin    // connected ones, by resource
	allocations map[string]map[string][]Allocation // by pod UID and container
}

// Allocation is the devices of one resource that a container was given.
type Allocation struct {
	Resource string
	IDs      []string
	Nodes    map[string][]machine.NUMAID // by device ID, as the plugin reported when they were given
	Needs    *pluginapi.ContainerAllocateResponse
}

// New prepares a Manager; Run opens the socket.
func New(o Options) *Manager {
	return &Manager{
		o: o, clock: clock.From(time.Now, clock.LongAgo), news: make(chan struct{}, 1),
		state: coredevicemanager.NewState(), plugins: map[string]*deviceplugin.Plugin{},
		allocations: map[string]map[string][]Allocation{},
	}
}

// Run accepts registrations until ctx ends.
func (k *Manager) Run(ctx context.Context) error {
	server, err := deviceplugin.Listen(k.o.Dir, listener{k})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var notifying sync.WaitGroup
	notifying.Go(func() { k.notifyLoop(ctx) })
	k.setServer(server)
	err = server.Serve(ctx)
	k.setServer(nil)
	cancel()
	notifying.Wait()
	return err
}

func (k *Manager) setServer(s *deviceplugin.Server) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.server = s
}

// Register implements pluginregistry.Handler, for plugins with a socket in plugins_registry. Their name is the
// resource.
func (k *Manager) Register(ctx context.Context, p registration.Plugin) error {
	k.mu.Lock()
	server := k.server
	k.mu.Unlock()
	if server == nil {
		return errors.New("the agent does not take device plugins at the moment")
	}
	return server.Add(ctx, p.Name, p.Endpoint)
}

// Unregister implements pluginregistry.Handler.
func (k *Manager) Unregister(p registration.Plugin) {
	k.mu.Lock()
	server := k.server
	k.mu.Unlock()
	if server != nil {
		server.Remove(p.Name, p.Endpoint)
	}
}

// notifyLoop calls Options.Changed, and gives up plugins that do not come back.
func (k *Manager) notifyLoop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		k.mu.Lock()
		now := k.clock.Now()
		gone, wake := k.state.Expire(now), k.state.Wake()
		k.mu.Unlock()
		if gone != nil {
			slog.Warn("device plugins did not come back: their resources are published as 0", "resources", gone,
				"after", coredevicemanager.Grace)
			k.o.Changed()
		}
		timer.Stop()
		if !wake.IsZero() {
			timer.Reset(max(wake.Sub(now), time.Millisecond))
		}
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-k.news:
			k.o.Changed()
		}
	}
}

// changed makes notifyLoop call Options.Changed soon.
func (k *Manager) changed() {
	select {
	case k.news <- struct{}{}:
	default: // a call is due already
	}
}

// listener receives the events of the registration socket.
type listener struct{ *Manager }

// Connected implements deviceplugin.Listener.
func (k listener) Connected(p *deviceplugin.Plugin, o coredevicemanager.Options) {
	slog.Info("device plugin connected", "resource", p.Resource, "preferredAllocation", o.Prefers, "preStart", o.PreStart)
	k.o.Metrics.PluginRegistrations.WithLabelValues(p.Resource).Inc()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.plugins[p.Resource] = p
	k.state.Connected(p.Resource, o)
	k.changed()
}

// Listed implements deviceplugin.Listener.
func (k listener) Listed(p *deviceplugin.Plugin, devices []numa.Device) {
	k.update(p.Resource, func() {
		if k.state.Listed(p.Resource, devices) {
			healthy := 0
			for _, d := range devices {
				if d.Healthy {
					healthy++
				}
			}
			slog.Info("device plugin lists its devices", "resource", p.Resource, "devices", len(devices), "healthy", healthy)
		}
	})
}

// Lost implements deviceplugin.Listener.
func (k listener) Lost(p *deviceplugin.Plugin, err error) {
	slog.Warn("device plugin lost", "resource", p.Resource, "expected within", coredevicemanager.Grace, "err", err)
	k.update(p.Resource, func() {
		delete(k.plugins, p.Resource)
		k.state.Lost(k.clock.Now(), p.Resource)
	})
}

// update changes the state, and notifies the pods of whose devices the health changed.
func (k *Manager) update(resource string, change func()) {
	k.mu.Lock()
	before := k.healthOfAllocated(resource)
	change()
	after := k.healthOfAllocated(resource)
	k.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(after)) {
		if !slices.Equal(before[uid], after[uid]) {
			k.o.Affected(uid)
		}
	}
	k.changed()
}

// healthOfAllocated returns the health of the devices of a resource that pods have, by pod. The caller holds mu.
func (k *Manager) healthOfAllocated(resource string) map[string][]coredevicemanager.Health {
	out := map[string][]coredevicemanager.Health{}
	for uid, containers := range k.allocations {
		for _, name := range slices.Sorted(maps.Keys(containers)) {
			for _, h := range containers[name] {
				if h.Resource != resource {
					continue
				}
				for _, id := range h.IDs {
					health, _ := k.state.Device(resource, id)
					out[uid] = append(out[uid], health)
				}
			}
		}
	}
	return out
}

// Recall receives the device plugins' resources that the Node's status had before this agent; only the first call has
// an effect.
func (k *Manager) Recall(published []coredevicemanager.Amount) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.state.Recalled() {
		k.state.Recall(k.clock.Now(), published)
		k.changed()
	}
}

// Inventory returns the devices of all plugins, connected or not.
func (k *Manager) Inventory() []numa.Plugin {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Plugins()
}

// Amounts returns what the Node is to publish. known is false before Recall: until then, other resources in the Node's
// status may also be plugins'.
func (k *Manager) Amounts() (amounts []coredevicemanager.Amount, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.state.Amounts(), k.state.Recalled()
}

// Wait returns why a pod that has been waiting since then cannot have its devices now, and until when it waits. A zero
// time means that it has waited too long. assigned is what was assigned to it already; empty if nothing was.
func (k *Manager) Wait(since time.Time, pod numa.Pod, assigned numa.Assignment) (why string, until time.Time) {
	asked := asks(pod, assigned)
	k.mu.Lock()
	defer k.mu.Unlock()
	why, end := k.state.Wait(k.clock.Now(), k.clock.Instant(since), asked)
	if !end.IsZero() {
		until = k.clock.At(end)
	}
	return why, until
}

// asks returns the resources that a pod requests of plugins.
func asks(pod numa.Pod, assigned numa.Assignment) []coredevicemanager.Ask {
	wanted := map[string][]string{}
	for _, list := range [][]numa.Container{pod.Init, pod.Containers} {
		for _, c := range list {
			for _, d := range c.Devices {
				if d.Count > 0 {
					wanted[d.Resource] = nil
				}
			}
		}
	}
	for _, c := range assigned.Containers {
		for _, d := range c.Devices {
			wanted[d.Resource] = append(wanted[d.Resource], d.IDs...)
		}
	}
	var out []coredevicemanager.Ask
	for _, resource := range slices.Sorted(maps.Keys(wanted)) {
		out = append(out, coredevicemanager.Ask{Resource: resource, IDs: wanted[resource]})
	}
	return out
}

// ErrGone means that a plugin is not connected; it may return soon.
var ErrGone = errors.New("device plugin is not registered")

// plugin returns the connected plugin of a resource.
func (k *Manager) plugin(resource string) (*deviceplugin.Plugin, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	p := k.plugins[resource]
	if p == nil {
		return nil, fmt.Errorf("%s: %w", resource, ErrGone)
	}
	return p, nil
}

// orGone wraps an error in ErrGone if it means that the plugin is no longer connected.
func orGone(err error) error {
	if status.Code(err) == codes.Unavailable || status.Code(err) == codes.Canceled {
		return fmt.Errorf("%w: %w", ErrGone, err)
	}
	return err
}

// Preferred passes a question to the plugin of its resource.
func (k *Manager) Preferred(ctx context.Context, q numa.Question) ([]string, error) {
	p, err := k.plugin(q.Resource)
	if err != nil {
		return nil, err
	}
	ids, err := p.Preferred(ctx, q.Available, q.Included, q.Size)
	if err != nil {
		// the kubelet's words
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", orGone(err))
	}
	return ids, nil
}

// Allocate asks the plugin of resource what a container with these devices needs.
func (k *Manager) Allocate(ctx context.Context, resource string,
	ids []string) (*pluginapi.ContainerAllocateResponse, error) {
	p, err := k.plugin(resource)
	if err != nil {
		return nil, err
	}
	begun := time.Now()
	needs, err := p.Allocate(ctx, ids)
	k.o.Metrics.PluginAllocation.WithLabelValues(resource).Observe(time.Since(begun).Seconds())
	if err != nil {
		return nil, orGone(err)
	}
	return needs, nil
}

// PreStart calls the plugin of resource before a container with these devices starts, if the plugin requires that.
func (k *Manager) PreStart(ctx context.Context, resource string, ids []string) error {
	k.mu.Lock()
	wants := k.state.Options(resource).PreStart
	k.mu.Unlock()
	if !wants {
		return nil
	}
	p, err := k.plugin(resource)
	if err != nil {
		return err
	}
	if err := p.PreStart(ctx, ids); err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", orGone(err)) // the kubelet's words
	}
	return nil
}

// AllocateAssigned asks the plugins what each container needs with the devices that were assigned to it, and stores the
// answers. After an error nothing is stored for the pod.
func (k *Manager) AllocateAssigned(ctx context.Context, a numa.Assignment) error {
	given := map[string][]Allocation{}
	for _, c := range a.Containers {
		allocations, err := k.needs(ctx, c.Devices)
		if err != nil {
			return err
		}
		given[c.Container] = allocations
	}
	for container, allocations := range given {
		k.store(a.Pod, container, allocations)
	}
	return nil
}

// needs asks the plugins what a container needs with these devices, by resource.
func (k *Manager) needs(ctx context.Context, devices []numa.Devices) ([]Allocation, error) {
	var out []Allocation
	for _, d := range devices {
		needs, err := k.Allocate(ctx, d.Resource, d.IDs)
		if err != nil {
			return nil, err
		}
		out = append(out, Allocation{Resource: d.Resource, IDs: d.IDs, Nodes: k.nodes(d), Needs: needs})
	}
	slices.SortFunc(out, func(a, b Allocation) int { return cmp.Compare(a.Resource, b.Resource) })
	return out, nil
}

// store stores what a container was given.
func (k *Manager) store(uid, container string, allocations []Allocation) {
	if len(allocations) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.allocations[uid] == nil {
		k.allocations[uid] = map[string][]Allocation{}
	}
	k.allocations[uid][container] = allocations
}

func (k *Manager) nodes(d numa.Devices) map[string][]machine.NUMAID {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string][]machine.NUMAID{}
	for _, id := range d.IDs {
		if _, nodes := k.state.Device(d.Resource, id); nodes != nil {
			out[id] = nodes
		}
	}
	return out
}

// Release drops what a pod was given.
func (k *Manager) Release(uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.allocations, uid)
}

// Allocations returns what a container was given, by resource.
func (k *Manager) Allocations(uid, container string) []Allocation {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.SortedFunc(slices.Values(k.allocations[uid][container]),
		func(a, b Allocation) int { return cmp.Compare(a.Resource, b.Resource) })
}

// PodsWithDevices returns the pods that were given devices.
func (k *Manager) PodsWithDevices() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.allocations))
}

// Health returns the health of a device.
func (k *Manager) Health(resource, id string) coredevicemanager.Health {
	k.mu.Lock()
	defer k.mu.Unlock()
	health, _ := k.state.Device(resource, id)
	return health
}
