// Package csidrivers knows the CSI drivers that are registered on this node and what they say about the node, and
// publishes that in the CSINode object and in the Node.
//
// # Model
//
// A Registry is the pluginregistry.Handler of CSI drivers: Register asks a driver for its node ID, topology, limit and
// capabilities, and makes it usable (Driver). A csinode.State decides what is published, when, and when a driver is
// asked again; Run carries that out. CSIDriver objects are watched (Object): they say how a driver must be used.
//
// # Invariants
//
//   - A driver is usable as soon as it has answered, also while the API server is away. Its entry follows.
//   - The CSINode object belongs to the present Node: one of an earlier Node of this name is deleted.
//   - Entries, node IDs and labels of other writers stay, except those of drivers that left this agent.
//   - Calls to a driver that left may finish; its connection is closed afterwards.
//
// The package mounts nothing (agent/volume does).
package csidrivers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/plimsoll-dev/plimsoll/internal/agent/failurelog"
	"github.com/plimsoll-dev/plimsoll/internal/clock"
	"github.com/plimsoll-dev/plimsoll/internal/core/csinode"
	"github.com/plimsoll-dev/plimsoll/internal/core/registration"
	"github.com/plimsoll-dev/plimsoll/internal/host/csi"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// nameMax bounds the question for a driver's name. Chosen: a driver that does not answer it registers all the same.
const nameMax = 10 * time.Second

// API is the part of the API client that a Registry uses; *kube.Client implements it.
type API interface {
	Get(ctx context.Context, k kube.Kind, namespace, name string, out runtime.Object) error
	Create(ctx context.Context, k kube.Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error
	Update(ctx context.Context, k kube.Kind, namespace, name string, obj, out runtime.Object, subresources ...string) error
	Patch(ctx context.Context, k kube.Kind, namespace, name string, t types.PatchType, body []byte, out runtime.Object,
		subresources ...string) error
	Delete(ctx context.Context, k kube.Kind, namespace, name string, o metav1.DeleteOptions) error
	Informer(k kube.Kind, sel kube.Selection, handler cache.ResourceEventHandler) (cache.Store, cache.Controller)
}

// Options are what a Registry needs.
type Options struct {
	NodeName string
	API      API
	Node     func() *corev1.Node // as last delivered; nil before the registration
	// Called after each call to a driver. Optional.
	Finished func(driver string, call csi.Call)
	// Called when a driver came, left or changed, or its CSIDriver object did. It must return soon. Optional.
	Changed func(driver string)
}

// Driver is a registered driver.
type Driver struct {
	Name    string
	Client  *csi.Client
	Version string // of CSI, as chosen at the registration
	Said    string // its name by GetPluginInfo when it registered, perhaps not Name; "": it did not answer
	csinode.Info

	capabilities map[csipb.NodeServiceCapability_RPC_Type]bool
}

// Can reports whether the driver has a capability.
func (d Driver) Can(c csipb.NodeServiceCapability_RPC_Type) bool { return d.capabilities[c] }

// Registry has the drivers of a node.
type Registry struct {
	o       Options
	clock   *clock.Clock
	news    chan struct{} // has a value when Run must look at the state
	objects cache.Store   // of CSIDriver objects
	watch   cache.Controller

	failures failurelog.Log

	mu      sync.Mutex // guards everything that follows
	drivers map[string]Driver
	state   *csinode.State
	node    types.UID // as NodeExists saw it last
}

// New prepares a Registry; Run publishes.
func New(o Options) *Registry {
	if o.Finished == nil {
		o.Finished = func(string, csi.Call) {}
	}
	if o.Changed == nil {
		o.Changed = func(string) {}
	}
	r := &Registry{
		o:       o,
		clock:   clock.New(),
		news:    make(chan struct{}, 1),
		drivers: map[string]Driver{},
		state:   csinode.New(),
	}
	r.objects, r.watch = o.API.Informer(kube.CSIDrivers, kube.Selection{}, cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { r.observed(obj.(*storagev1.CSIDriver).Name) },
		UpdateFunc: func(_, obj any) { r.observed(obj.(*storagev1.CSIDriver).Name) },
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				r.observed(name)
			}
		},
	})
	return r
}

// Driver returns a registered driver.
func (r *Registry) Driver(name string) (Driver, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, ok := r.drivers[name]
	return d, ok
}

// Drivers returns the registered drivers by name.
func (r *Registry) Drivers() map[string]Driver {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.drivers)
}

// Object returns the CSIDriver object of a driver, registered or not, as the watch last delivered it.
func (r *Registry) Object(name string) (*storagev1.CSIDriver, bool) {
	obj, ok, err := r.objects.GetByKey(name)
	if !ok || err != nil {
		return nil, false
	}
	return obj.(*storagev1.CSIDriver), true
}

// ObjectsKnown reports whether the CSIDriver objects were listed: until then, one that Object does not find may exist.
func (r *Registry) ObjectsKnown() bool { return r.watch.HasSynced() }

// NodeExists is called when the Node was created or read. Everything is published again if it is another Node.
func (r *Registry) NodeExists() {
	node := r.o.Node()
	if node == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.node != node.UID {
		r.node = node.UID
		r.state.NodeExists()
		r.look()
	}
}

// Exhausted is called when a volume of a driver could not be attached to this node since there is no room for it.
func (r *Registry) Exhausted(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.state.Exhausted(r.clock.Now(), name)
	r.look()
}

// Register implements pluginregistry.Handler.
func (r *Registry) Register(ctx context.Context, p registration.Plugin) error {
	client, err := csi.Dial(p.Endpoint, func(c csi.Call) { r.o.Finished(p.Name, c) })
	if err != nil {
		return err
	}
	d, err := ask(ctx, p, client)
	if node := r.o.Node(); err == nil && node != nil {
		if why := csinode.Collision(node.Labels, d.Info); why != "" {
			err = errors.New(why)
		}
	}
	if err != nil {
		return errors.Join(err, client.Close())
	}
	r.mu.Lock()
	r.drivers[p.Name] = d
	r.state.Add(r.clock.Now(), p.Name, d.Info, r.period(p.Name))
	r.mu.Unlock()
	slog.Info("CSI driver registered", "driver", p.Name, "endpoint", p.Endpoint, "version", p.Version, "nodeID", d.NodeID,
		"topology", d.Topology, "volumesMax", d.VolumesMax)
	r.look()
	r.o.Changed(p.Name)
	return nil
}

// Unregister implements pluginregistry.Handler.
func (r *Registry) Unregister(p registration.Plugin) {
	r.mu.Lock()
	d, ok := r.drivers[p.Name]
	delete(r.drivers, p.Name)
	r.state.Remove(p.Name)
	r.mu.Unlock()
	if ok {
		// Calls that are under way end by themselves: volumes are being mounted.
		time.AfterFunc(csi.CallMax, func() { _ = d.Client.Close() }) // an error means that it is closed
	}
	r.look()
	r.o.Changed(p.Name)
}

// ask asks a driver what it is.
func ask(ctx context.Context, p registration.Plugin, client *csi.Client) (Driver, error) {
	d := Driver{Name: p.Name, Client: client, Version: p.Version,
		capabilities: map[csipb.NodeServiceCapability_RPC_Type]bool{}}
	bounded, cancel := context.WithTimeout(ctx, nameMax)
	defer cancel()
	who, err := client.Identity.GetPluginInfo(bounded, &csipb.GetPluginInfoRequest{})
	if d.Said = who.GetName(); err == nil && d.Said != p.Name {
		// the kubelet does not ask, and users name it as it registered
		slog.Warn("CSI driver has another name than it registered with", "registered", p.Name, "GetPluginInfo", d.Said,
			"endpoint", p.Endpoint)
	}
	if d.Info, err = askNode(ctx, client); err != nil {
		return Driver{}, err
	}
	can, err := client.NodeGetCapabilities(ctx, &csipb.NodeGetCapabilitiesRequest{})
	if err != nil {
		return Driver{}, fmt.Errorf("NodeGetCapabilities: %w", err)
	}
	for _, c := range can.GetCapabilities() {
		d.capabilities[c.GetRpc().GetType()] = true
	}
	return d, nil
}

// askNode asks a driver about this node.
func askNode(ctx context.Context, client *csi.Client) (csinode.Info, error) {
	answer, err := client.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return csinode.Info{}, fmt.Errorf("NodeGetInfo: %w", err)
	}
	info := csinode.Info{
		NodeID:     answer.GetNodeId(),
		Topology:   answer.GetAccessibleTopology().GetSegments(),
		VolumesMax: answer.GetMaxVolumesPerNode(),
	}
	if why := csinode.Check(info); why != "" {
		return csinode.Info{}, errors.New(why)
	}
	return info, nil
}

// observed receives that a CSIDriver object was created, changed or deleted.
func (r *Registry) observed(name string) {
	r.mu.Lock()
	r.state.SetPeriod(r.clock.Now(), name, r.period(name))
	r.mu.Unlock()
	r.look()
	r.o.Changed(name)
}

// period returns how often a driver must be asked again.
func (r *Registry) period(name string) time.Duration {
	if object, ok := r.Object(name); ok && object.Spec.NodeAllocatableUpdatePeriodSeconds != nil {
		return time.Duration(*object.Spec.NodeAllocatableUpdatePeriodSeconds) * time.Second
	}
	return 0
}

// look makes Run look at the state.
func (r *Registry) look() {
	select {
	case r.news <- struct{}{}:
	default: // it looks anyway
	}
}
