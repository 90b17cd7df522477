// Package devicemanager decides what a node believes of its device plugins: which devices it has, how many of them it publishes, and
// how long a pod waits for a plugin that is not there.
//
// # Model
//
// A Book is told what the shell hears: a plugin connected, listed its devices, was lost; and once, what this node published
// before the agent started. It answers with what follows: the facts for the allocator (Plugins), the numbers for the Node
// (Amounts), whether a pod's devices are to be waited for (Wait), and when a resource is to be given up (Wake, Expire).
//
// # Vocabulary
//
//   - lost: no plugin of the resource is connected. Its devices stay in the capacity and none is allocatable, so that the
//     scheduler sends no more pods and those that run keep what they have.
//   - recalled: published by an agent before this one. Such a resource is lost from the start.
//   - given up: lost for Grace. Its capacity is 0, not absent: an absent resource is one that nobody counts, and pods that
//     ask for it would be let in without.
//
// # Invariants
//
//   - A resource is in one state at a time, and what is known of its devices survives the loss of its plugin.
//   - Allocatable is never above capacity, and counts devices that a connected plugin has called healthy since it connected.
//   - A pod waits at most Grace, and not at all for what was given up.
//
// These are upstream's rules (kubelet 1.36, cm/devicemanager), but for two. Upstream refuses a pod whose plugin is not there,
// for good; here it waits. Upstream's capacity drops to 0 when the kubelet restarts and its list of resources is a file; here
// the Node itself is the list, and a restart looks like the loss of every plugin.
//
// It does not choose devices (core/numa) and speaks to no plugin (host/deviceplugin).
package devicemanager

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Grace is how long a lost plugin is expected back (upstream's endpointStopGracePeriod, 5 min), and so how long a pod waits for
// one. Raising it spares pods on machines whose plugins take long to start; lowering it moves pods elsewhere sooner.
const Grace = 5 * time.Minute

// Options are what a plugin says it wants to be asked.
type Options struct {
	Prefers  bool // which devices go well together (GetPreferredAllocation)
	PreStart bool // before every start of a container (PreStartContainer)
}

// Amount is how many devices of a resource a node publishes.
type Amount struct {
	Resource              string
	Capacity, Allocatable int
}

// Book is what is known of a node's device plugins. It is not for several goroutines at once.
type Book struct {
	entries  map[string]*entry
	recalled bool // what this node published before is known
}

// entry is one resource.
type entry struct {
	connected bool
	listed    bool         // since it connected; only then is any device healthy
	lost      unit.Instant // since when; while not connected
	givenUp   bool
	options   Options
	named     bool          // devices are known; else only their number is
	devices   []numa.Device // as last listed, by id
	recalled  int           // how many there were, where that is all that is known
}

// NewBook returns the book of a node of which nothing is known.
func NewBook() *Book { return &Book{entries: map[string]*entry{}} }

// Recall takes in what this node published before, once. Resources of which a plugin was heard already are left alone.
func (b *Book) Recall(now unit.Instant, published []Amount) {
	if b.recalled {
		return
	}
	b.recalled = true
	for _, a := range published {
		if b.entries[a.Resource] == nil {
			b.entries[a.Resource] = &entry{lost: now, recalled: a.Capacity}
		}
	}
}

// Recalled reports whether Recall was called.
func (b *Book) Recalled() bool { return b.recalled }

// Connected notes that a plugin of resource is there. Its devices are still to come.
func (b *Book) Connected(resource string, o Options) {
	e := b.entries[resource]
	if e == nil {
		e = &entry{}
		b.entries[resource] = e
	}
	e.connected, e.listed, e.givenUp, e.options = true, false, false, o
}

// Listed notes the devices that a connected plugin names: all there are. Of two with one id the first counts. It reports whether
// that is news.
func (b *Book) Listed(resource string, devices []numa.Device) bool {
	e := b.entries[resource]
	if e == nil || !e.connected {
		return false
	}
	devices = slices.SortedStableFunc(slices.Values(devices), func(x, y numa.Device) int { return cmp.Compare(x.ID, y.ID) })
	devices = slices.CompactFunc(devices, func(x, y numa.Device) bool { return x.ID == y.ID })
	news := !e.listed || !slices.EqualFunc(e.devices, devices, sameDevice)
	e.listed, e.named, e.devices = true, true, devices
	return news
}

func sameDevice(a, b numa.Device) bool {
	return a.ID == b.ID && a.Healthy == b.Healthy && slices.Equal(a.Nodes, b.Nodes)
}

// Lost notes that the plugin of resource is not there any more.
func (b *Book) Lost(now unit.Instant, resource string) {
	if e := b.entries[resource]; e != nil && e.connected {
		e.connected, e.listed, e.lost = false, false, now
	}
}

// Expire gives up what has been lost for too long and returns its names.
func (b *Book) Expire(now unit.Instant) []string {
	var gone []string
	for _, name := range b.Resources() {
		if e := b.entries[name]; !e.connected && !e.givenUp && now >= e.lost.Add(Grace) {
			e.givenUp = true
			gone = append(gone, name)
		}
	}
	return gone
}

// Wake is when Expire has something to do next; zero: never as things are.
func (b *Book) Wake() unit.Instant {
	var wake unit.Instant
	for _, e := range b.entries {
		if !e.connected && !e.givenUp {
			wake = wake.Earlier(e.lost.Add(Grace))
		}
	}
	return wake
}

// Resources returns the names of all resources that plugins have or had, sorted.
func (b *Book) Resources() []string { return slices.Sorted(maps.Keys(b.entries)) }

// Plugins returns what the allocator needs to know, by resource.
func (b *Book) Plugins() []numa.Plugin {
	var out []numa.Plugin
	for _, name := range b.Resources() {
		e := b.entries[name]
		p := numa.Plugin{Resource: name, Gone: !e.listed, Prefers: e.options.Prefers}
		for _, d := range e.devices {
			d.Healthy = d.Healthy && e.listed
			p.Devices = append(p.Devices, d)
		}
		out = append(out, p)
	}
	return out
}

// Amounts returns what the Node is to say of each resource. One of which nothing was ever listed is not mentioned.
func (b *Book) Amounts() []Amount {
	var out []Amount
	for _, name := range b.Resources() {
		e, a := b.entries[name], Amount{Resource: name}
		if !e.listed && !e.named && e.recalled == 0 && !e.givenUp {
			continue
		}
		if !e.givenUp {
			a.Capacity = e.capacity()
		}
		for _, d := range e.devices {
			if d.Healthy && e.listed {
				a.Allocatable++
			}
		}
		out = append(out, a)
	}
	return out
}

func (e *entry) capacity() int {
	if e.named {
		return len(e.devices)
	}
	return e.recalled
}

// Options returns what the plugin of resource wants to be asked. A plugin that is not connected wants what it last said.
func (b *Book) Options(resource string) Options {
	if e := b.entries[resource]; e != nil {
		return e.options
	}
	return Options{}
}

// Health is what is known of a device that a pod has.
type Health int

// What may be known of a device. Upstream calls Healthy what its plugin no longer names.
const (
	Unknown Health = iota // its plugin is not connected, or does not name it
	Healthy
	Unhealthy
)

// Device returns how a device is, and the nodes that it is near as its plugin last said.
func (b *Book) Device(resource, id string) (Health, []machine.NUMAID) {
	e := b.entries[resource]
	if e == nil {
		return Unknown, nil
	}
	i, found := slices.BinarySearchFunc(e.devices, id, func(d numa.Device, id string) int { return cmp.Compare(d.ID, id) })
	switch {
	case !found:
		return Unknown, nil
	case !e.listed:
		return Unknown, e.devices[i].Nodes
	case e.devices[i].Healthy:
		return Healthy, e.devices[i].Nodes
	}
	return Unhealthy, e.devices[i].Nodes
}

// Ask is devices that a pod wants.
type Ask struct {
	Resource string
	IDs      []string // those very devices, which the pod has already; none: any
}

// Wait says why a pod that asks since some time cannot have its devices now, and until when it waits; until is zero when the
// wait is over, and why is empty when there is nothing to wait for. That there are too few devices is nothing to wait for.
func (b *Book) Wait(now, since unit.Instant, asked []Ask) (why string, until unit.Instant) {
	until = since.Add(Grace)
	for _, a := range asked {
		text, final := b.obstacle(a)
		if text == "" {
			continue
		}
		if why == "" {
			why = text
		} else {
			why += "; " + text
		}
		if final || now >= since.Add(Grace) {
			until = 0
		}
	}
	if why == "" {
		return "", 0
	}
	return why, until
}

// obstacle says what keeps a from being had, and whether that is not expected to pass.
func (b *Book) obstacle(a Ask) (why string, final bool) {
	e := b.entries[a.Resource]
	switch {
	case e == nil && b.recalled:
		return "", false // no plugin's: counted by others, if at all
	case e == nil:
		return a.Resource + ": whether it is a device plugin's is not known before the API server answers", false
	case e.givenUp:
		return fmt.Sprintf("%s: its device plugin has not been there for more than %v", a.Resource, Grace), true
	case !e.connected:
		return a.Resource + ": its device plugin is not registered", false
	case !e.listed:
		return a.Resource + ": its device plugin has not listed its devices yet", false
	case !slices.ContainsFunc(e.devices, func(d numa.Device) bool { return d.Healthy }):
		return a.Resource + ": none of its devices is healthy", false
	}
	for _, id := range a.IDs {
		if h, _ := b.Device(a.Resource, id); h != Healthy {
			return fmt.Sprintf("%s: device %s, which the pod has, is not healthy", a.Resource, id), false
		}
	}
	return "", false
}
