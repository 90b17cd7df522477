// Package devicemanager tracks a node's device plugins: which devices the node has, how many it publishes in the Node's
// status, and how long a pod waits for a plugin that is not connected.
//
// # Model
//
// The shell reports to a State that a plugin connected, listed its devices, or was lost. Once it also reports what this
// node published before the agent started. The State returns what follows from that: the facts for the allocator
// (Plugins), the numbers for the Node (Amounts), whether a pod must wait for its devices (Wait), and when a resource is
// given up (Wake, Expire).
//
// # Vocabulary
//
//   - lost: no plugin of the resource is connected. Its devices stay in the capacity, but none is allocatable. So the
//     scheduler sends no more pods, and running pods keep their devices.
//   - recalled: published by a previous agent process. Such a resource counts as lost from the start.
//   - given up: lost for Grace. Its capacity is 0, not absent: an absent resource is not checked at admission, so pods
//     that request it would be admitted without a device.
//
// # Invariants
//
//   - A resource is in one state at a time. The list of its devices is kept when its plugin is lost.
//   - Allocatable is never above capacity. It counts devices that a connected plugin has listed as healthy since it
//     connected.
//   - A pod waits at most Grace, and not at all for a resource that was given up.
//
// These are upstream's rules (kubelet 1.36, cm/devicemanager), with two exceptions. Upstream rejects a pod whose plugin
// is not connected; here the pod waits. After a kubelet restart upstream's capacity drops to 0, and upstream's list of
// resources is a file; here the list is the Node object, and a restart looks like the loss of every plugin.
//
// The package does not choose devices (core/numa) and does not talk to plugins (host/deviceplugin).
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

// Grace is how long the agent waits for a lost plugin to come back (upstream's endpointStopGracePeriod, 5 min), and
// therefore how long a pod waits for one. A longer time helps pods on machines whose plugins start slowly. A shorter
// one moves pods to other nodes sooner.
const Grace = 5 * time.Minute

// Options are the calls that a plugin asks for when it registers.
type Options struct {
	Prefers  bool // it chooses which devices fit together (GetPreferredAllocation)
	PreStart bool // it is called before every start of a container (PreStartContainer)
}

// Amount is how many devices of a resource a node publishes.
type Amount struct {
	Resource              string
	Capacity, Allocatable int
}

// State is the state of a node's device plugins. It is for one goroutine at a time. Only its methods change it.
type State struct {
	entries  map[string]*entry // by resource name; entries are never dropped
	recalled bool              // Recall was called: it is known what this node published before
}

// entry is the state of one resource.
type entry struct {
	connected bool          // a plugin of this resource is connected
	listed    bool          // the plugin has listed devices since it connected; otherwise no device is healthy
	lost      unit.Instant  // since when no plugin is connected; valid while connected is false
	givenUp   bool          // lost for Grace; until a plugin connects again
	options   Options       // as the plugin last said
	named     bool          // devices is valid; otherwise only recalled is known
	devices   []numa.Device // as last listed, sorted by id
	recalled  int           // capacity that the node published before; used while named is false
}

// NewState returns the State of a node about which nothing is known.
func NewState() *State { return &State{entries: map[string]*entry{}} }

// Recall takes what this node published before. Only the first call counts. Resources whose plugin has connected
// already are not changed.
func (s *State) Recall(now unit.Instant, published []Amount) {
	if s.recalled {
		return
	}
	s.recalled = true
	for _, a := range published {
		if s.entries[a.Resource] == nil {
			s.entries[a.Resource] = &entry{lost: now, recalled: a.Capacity}
		}
	}
}

// Recalled reports whether Recall was called.
func (s *State) Recalled() bool { return s.recalled }

// Connected records that a plugin of resource has connected. It has not listed its devices yet.
func (s *State) Connected(resource string, o Options) {
	e := s.entries[resource]
	if e == nil {
		e = &entry{}
		s.entries[resource] = e
	}
	e.connected = true
	e.listed = false
	e.givenUp = false
	e.options = o
}

// Listed records the complete list of devices of a connected plugin. Of two devices with the same id the first counts.
// It reports whether the list differs from the one before.
func (s *State) Listed(resource string, devices []numa.Device) bool {
	e := s.entries[resource]
	if e == nil || !e.connected {
		return false
	}
	devices = slices.SortedStableFunc(slices.Values(devices), func(x, y numa.Device) int {
		return cmp.Compare(x.ID, y.ID)
	})
	devices = slices.CompactFunc(devices, func(x, y numa.Device) bool { return x.ID == y.ID })
	news := !e.listed || !slices.EqualFunc(e.devices, devices, sameDevice)
	e.listed = true
	e.named = true
	e.devices = devices
	return news
}

func sameDevice(a, b numa.Device) bool {
	return a.ID == b.ID && a.Healthy == b.Healthy && slices.Equal(a.Nodes, b.Nodes)
}

// Lost records that the plugin of resource is no longer connected.
func (s *State) Lost(now unit.Instant, resource string) {
	if e := s.entries[resource]; e != nil && e.connected {
		e.connected = false
		e.listed = false
		e.lost = now
	}
}

// Expire gives up the resources that have been lost for Grace, and returns their names.
func (s *State) Expire(now unit.Instant) []string {
	var gone []string
	for _, name := range s.Resources() {
		if e := s.entries[name]; !e.connected && !e.givenUp && now >= e.lost.Add(Grace) {
			e.givenUp = true
			gone = append(gone, name)
		}
	}
	return gone
}

// Wake is when Expire has something to do next. Zero: never, unless something changes.
func (s *State) Wake() unit.Instant {
	var wake unit.Instant
	for _, e := range s.entries {
		if !e.connected && !e.givenUp {
			wake = wake.Earlier(e.lost.Add(Grace))
		}
	}
	return wake
}

// Resources returns the names of all resources that plugins have or had, sorted.
func (s *State) Resources() []string { return slices.Sorted(maps.Keys(s.entries)) }

// Plugins returns the facts for the allocator, one Plugin per resource.
func (s *State) Plugins() []numa.Plugin {
	var out []numa.Plugin
	for _, name := range s.Resources() {
		e := s.entries[name]
		p := numa.Plugin{Resource: name, Gone: !e.listed, Prefers: e.options.Prefers}
		for _, d := range e.devices {
			d.Healthy = d.Healthy && e.listed
			p.Devices = append(p.Devices, d)
		}
		out = append(out, p)
	}
	return out
}

// Amounts returns what the Node's status says of each resource. A resource for which devices were never listed is left
// out.
func (s *State) Amounts() []Amount {
	var out []Amount
	for _, name := range s.Resources() {
		e, a := s.entries[name], Amount{Resource: name}
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

// Options returns the calls that the plugin of resource asks for. If it is not connected, these are the ones it last
// asked for.
func (s *State) Options(resource string) Options {
	if e := s.entries[resource]; e != nil {
		return e.options
	}
	return Options{}
}

// Health is the known health of a device that a pod has.
type Health int

// Values of Health. Upstream says Healthy for a device that its plugin no longer lists; here it is Unknown.
const (
	Unknown Health = iota // its plugin is not connected, or does not name it
	Healthy               // its plugin is not connected, or does not list it
	Unhealthy
)

// Device returns the health of a device, and its NUMA nodes as its plugin last reported them.
func (s *State) Device(resource, id string) (Health, []machine.NUMAID) {
	e := s.entries[resource]
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

// Ask is a request of a pod for devices of one resource.
type Ask struct {
	Resource string
	IDs      []string // exactly these devices, which are assigned to the pod already; empty: any
}

// Wait says why a pod that has asked since then cannot have its devices now, and until when it waits. why is empty when
// the pod need not wait. until is zero when the time to wait is over. Too few devices are no reason to wait.
func (s *State) Wait(now, since unit.Instant, asked []Ask) (why string, until unit.Instant) {
	until = since.Add(Grace)
	for _, a := range asked {
		text, final := s.obstacle(a)
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

// obstacle says why the request a cannot be served now, and whether waiting is pointless.
func (s *State) obstacle(a Ask) (why string, final bool) {
	e := s.entries[a.Resource]
	switch {
	case e == nil && s.recalled:
		return "", false // not a device plugin's resource: others count it, if at all
	case e == nil:
		return a.Resource + ": whether it belongs to a device plugin is not known before the API server answers", false
	case e.givenUp:
		return fmt.Sprintf("%s: its device plugin has not been connected for more than %v", a.Resource, Grace), true
	case !e.connected:
		return a.Resource + ": its device plugin is not registered", false
	case !e.listed:
		return a.Resource + ": its device plugin has not listed its devices yet", false
	case !slices.ContainsFunc(e.devices, func(d numa.Device) bool { return d.Healthy }):
		return a.Resource + ": none of its devices is healthy", false
	}
	for _, id := range a.IDs {
		if h, _ := s.Device(a.Resource, id); h != Healthy {
			return fmt.Sprintf("%s: device %s, which is assigned to the pod, is not healthy", a.Resource, id), false
		}
	}
	return "", false
}
