// Package devicemanager manages the node's device plugins and what they gave to containers.
//
// # Model
//
// A Keeper runs the registration socket (host/deviceplugin) and records what the plugins report in a
// devicemanager.Book. Others read from it: the assignments which devices exist (Inventory), the Node how many to
// publish (Amounts), admission whether a pod must wait (Wait). The assignments choose the devices. For that the Keeper
// passes their questions to the plugins (Preferred), asks the plugins what the chosen devices need (Give), and adds
// that to a container's configuration each time the container is created (Configure).
//
// # Vocabulary
//
//   - needs: what a plugin's Allocate returns for a container with its devices: environment, mounts, device nodes,
//     annotations, CDI names.
//   - held: devices that a container was given, with their needs and the NUMA nodes that they are near.
//
// # Persistence
//
// What a container was given is stored in an annotation of the container itself (annotation.go). The runtime keeps it
// for as long as it has the container, dead ones included. A new agent reads it back (Found), so that a container of a
// running pod can be started again with the same devices even while its plugin is away; the kubelet uses its checkpoint
// file for that. Unlike a file, the annotation cannot be stale: it tells with what that container was created. When the
// last container of a pod is removed, the choice of devices is lost, and nothing uses it any more.
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
	"github.com/plimsoll-dev/plimsoll/internal/host/deviceplugin"
)

// Options are what a Keeper needs.
type Options struct {
	Dir      string           // of the sockets: <Dir>/kubelet.sock is the registration socket
	Changed  func()           // called when Inventory, Amounts or Wait may return something else
	Affected func(uid string) // called when the health of a device of this pod has changed
	Metrics  *metrics.Set
}

// Keeper manages a node's device plugins.
type Keeper struct {
	o     Options
	clock *clock.Clock
	news  chan struct{} // has a value when Options.Changed must be called

	mu      sync.Mutex // guards everything that follows
	book    *coredevicemanager.Book
	plugins map[string]*deviceplugin.Plugin // connected ones, by resource
	held    map[string]map[string][]Held    // by pod UID and container
}

// Held is the devices of one resource that a container was given.
type Held struct {
	Resource string
	IDs      []string
	Nodes    map[string][]machine.NUMAID // by device ID, as the plugin reported when they were given
	Needs    *pluginapi.ContainerAllocateResponse
}

// New prepares a Keeper; Run opens the socket.
func New(o Options) *Keeper {
	return &Keeper{
		o: o, clock: clock.From(time.Now, clock.LongAgo), news: make(chan struct{}, 1),
		book: coredevicemanager.NewBook(), plugins: map[string]*deviceplugin.Plugin{}, held: map[string]map[string][]Held{},
	}
}

// Run accepts registrations until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	server, err := deviceplugin.Listen(k.o.Dir, listener{k})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() { k.tell(ctx) })
	err = server.Serve(ctx)
	cancel()
	telling.Wait()
	return err
}

// tell calls Options.Changed, and gives up plugins that do not come back.
func (k *Keeper) tell(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		k.mu.Lock()
		now := k.clock.Now()
		gone, wake := k.book.Expire(now), k.book.Wake()
		k.mu.Unlock()
		if gone != nil {
			slog.Warn("device plugins did not come back: their resources are published as 0", "resources", gone, "after", coredevicemanager.Grace)
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

// changed makes tell call Options.Changed soon.
func (k *Keeper) changed() {
	select {
	case k.news <- struct{}{}:
	default: // a call is due already
	}
}

// listener receives the events of the registration socket.
type listener struct{ *Keeper }

// Connected implements deviceplugin.Listener.
func (k listener) Connected(p *deviceplugin.Plugin, o coredevicemanager.Options) {
	slog.Info("device plugin connected", "resource", p.Resource, "preferredAllocation", o.Prefers, "preStart", o.PreStart)
	k.o.Metrics.PluginRegistrations.WithLabelValues(p.Resource).Inc()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.plugins[p.Resource] = p
	k.book.Connected(p.Resource, o)
	k.changed()
}

// Listed implements deviceplugin.Listener.
func (k listener) Listed(p *deviceplugin.Plugin, devices []numa.Device) {
	k.update(p.Resource, func() {
		if k.book.Listed(p.Resource, devices) {
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
		k.book.Lost(k.clock.Now(), p.Resource)
	})
}

// update changes the book, and notifies the pods of whose devices the health changed.
func (k *Keeper) update(resource string, change func()) {
	k.mu.Lock()
	before := k.healthOfHeld(resource)
	change()
	after := k.healthOfHeld(resource)
	k.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(after)) {
		if !slices.Equal(before[uid], after[uid]) {
			k.o.Affected(uid)
		}
	}
	k.changed()
}

// healthOfHeld returns the health of the devices of a resource that pods have, by pod. The caller holds mu.
func (k *Keeper) healthOfHeld(resource string) map[string][]coredevicemanager.Health {
	out := map[string][]coredevicemanager.Health{}
	for uid, containers := range k.held {
		for _, name := range slices.Sorted(maps.Keys(containers)) {
			for _, h := range containers[name] {
				if h.Resource != resource {
					continue
				}
				for _, id := range h.IDs {
					health, _ := k.book.Device(resource, id)
					out[uid] = append(out[uid], health)
				}
			}
		}
	}
	return out
}

// Recall receives the device plugins' resources that the Node's status had before this agent; only the first call has
// an effect.
func (k *Keeper) Recall(published []coredevicemanager.Amount) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.book.Recalled() {
		k.book.Recall(k.clock.Now(), published)
		k.changed()
	}
}

// Inventory returns the devices of all plugins, connected or not.
func (k *Keeper) Inventory() []numa.Plugin {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.book.Plugins()
}

// Amounts returns what the Node is to publish. known is false before Recall: until then, other resources in the Node's
// status may also be plugins'.
func (k *Keeper) Amounts() (amounts []coredevicemanager.Amount, known bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.book.Amounts(), k.book.Recalled()
}

// Wait returns why a pod that has been waiting since then cannot have its devices now, and until when it waits. A zero
// time means that it has waited too long. held is what was assigned to it already; empty if nothing was.
func (k *Keeper) Wait(since time.Time, pod numa.Pod, held numa.Assignment) (why string, until time.Time) {
	asked := asks(pod, held)
	k.mu.Lock()
	defer k.mu.Unlock()
	why, end := k.book.Wait(k.clock.Now(), k.clock.Instant(since), asked)
	if !end.IsZero() {
		until = k.clock.At(end)
	}
	return why, until
}

// asks returns the resources that a pod requests of plugins.
func asks(pod numa.Pod, held numa.Assignment) []coredevicemanager.Ask {
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
	for _, c := range held.Containers {
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
func (k *Keeper) plugin(resource string) (*deviceplugin.Plugin, error) {
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
func (k *Keeper) Preferred(ctx context.Context, q numa.Question) ([]string, error) {
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
func (k *Keeper) Allocate(ctx context.Context, resource string, ids []string) (*pluginapi.ContainerAllocateResponse, error) {
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
func (k *Keeper) PreStart(ctx context.Context, resource string, ids []string) error {
	k.mu.Lock()
	wants := k.book.Options(resource).PreStart
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

// Give asks the plugins what each container needs with the devices that were assigned to it, and stores the answers.
// After an error nothing is stored for the pod.
func (k *Keeper) Give(ctx context.Context, a numa.Assignment) error {
	given := map[string][]Held{}
	for _, c := range a.Containers {
		held, err := k.needs(ctx, c.Devices)
		if err != nil {
			return err
		}
		given[c.Container] = held
	}
	for container, held := range given {
		k.keep(a.Pod, container, held)
	}
	return nil
}

// needs asks the plugins what a container needs with these devices, by resource.
func (k *Keeper) needs(ctx context.Context, devices []numa.Devices) ([]Held, error) {
	var out []Held
	for _, d := range devices {
		needs, err := k.Allocate(ctx, d.Resource, d.IDs)
		if err != nil {
			return nil, err
		}
		out = append(out, Held{Resource: d.Resource, IDs: d.IDs, Nodes: k.nodes(d), Needs: needs})
	}
	slices.SortFunc(out, func(a, b Held) int { return cmp.Compare(a.Resource, b.Resource) })
	return out, nil
}

// keep stores what a container was given.
func (k *Keeper) keep(uid, container string, held []Held) {
	if len(held) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.held[uid] == nil {
		k.held[uid] = map[string][]Held{}
	}
	k.held[uid][container] = held
}

func (k *Keeper) nodes(d numa.Devices) map[string][]machine.NUMAID {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := map[string][]machine.NUMAID{}
	for _, id := range d.IDs {
		if _, nodes := k.book.Device(d.Resource, id); nodes != nil {
			out[id] = nodes
		}
	}
	return out
}

// Release drops what a pod was given.
func (k *Keeper) Release(uid string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.held, uid)
}

// Held returns what a container was given, by resource.
func (k *Keeper) Held(uid, container string) []Held {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.SortedFunc(slices.Values(k.held[uid][container]), func(a, b Held) int { return cmp.Compare(a.Resource, b.Resource) })
}

// Holders returns the pods that were given devices.
func (k *Keeper) Holders() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.held))
}

// Health returns the health of a device.
func (k *Keeper) Health(resource, id string) coredevicemanager.Health {
	k.mu.Lock()
	defer k.mu.Unlock()
	health, _ := k.book.Device(resource, id)
	return health
}
