package topology

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Names of attributes. All writers of such objects use the first two.
const (
	attributePolicy  = "topologyManagerPolicy"
	attributeScope   = "topologyManagerScope"
	attributeMachine = "plimsoll.dev/machine"
	attributeConfig  = "plimsoll.dev/config"
	attributePlugins = "plimsoll.dev/plugins"
	attributePods    = "plimsoll.dev/pods"
)

const (
	scopeContainer = "container"
	scopePod       = "pod"
)

// The JSON forms of attributes. A field may be added only if its absence keeps the old meaning: readers refuse fields
// that they do not know.

// wireConfig is a numa.Config without what the usual attributes contain.
type wireConfig struct {
	CPU *wireCPU `json:"cpu,omitempty"` // nil: not static
	// reserved bytes by node and resource; nil: not static
	Memory        map[machine.NUMAID]map[string]int64 `json:"memory,omitempty"`
	PreferClosest bool                                `json:"preferClosest,omitempty"`
}

type wireCPU struct {
	Reserved      string   `json:"reserved,omitempty"` // kernel list format
	ReservedCount int      `json:"reservedCount,omitempty"`
	Options       []string `json:"options,omitempty"` // the options that are on
}

type wirePlugin struct {
	Resource string        `json:"resource"`
	Gone     bool          `json:"gone,omitempty"`
	Prefers  bool          `json:"prefers,omitempty"`
	Devices  []wireDevices `json:"devices,omitempty"`
}

// wireDevices are devices that differ only in their ids: a resource can have thousands.
type wireDevices struct {
	IDs       []string         `json:"ids"`
	Nodes     []machine.NUMAID `json:"nodes,omitempty"`
	Unhealthy bool             `json:"unhealthy,omitempty"`
}

type wirePod struct {
	UID        string         `json:"uid"`
	Containers []wireAssigned `json:"containers"`
}

type wireAssigned struct {
	Name      string              `json:"name"`
	Init      bool                `json:"init,omitempty"`
	Nodes     []machine.NUMAID    `json:"nodes,omitempty"`
	Preferred bool                `json:"preferred,omitempty"`
	CPUs      string              `json:"cpus,omitempty"`
	Memory    []wireBlock         `json:"memory,omitempty"`
	Devices   map[string][]string `json:"devices,omitempty"`
}

type wireBlock struct {
	Nodes    []machine.NUMAID `json:"nodes"`
	PageSize int64            `json:"pageSize,omitempty"` // bytes; absent: ordinary memory
	Bytes    int64            `json:"bytes"`
}

func configToWire(c numa.Config) wireConfig {
	out := wireConfig{PreferClosest: c.Topology.PreferClosest}
	if c.CPU.Static {
		out.CPU = &wireCPU{Reserved: c.CPU.Reserved.String(), ReservedCount: c.CPU.ReservedCount}
		for name, on := range c.CPU.Options() {
			if *on {
				out.CPU.Options = append(out.CPU.Options, name)
			}
		}
		slices.Sort(out.CPU.Options)
	}
	if c.Memory.Static {
		out.Memory = map[machine.NUMAID]map[string]int64{}
		for node, sizes := range c.Memory.Reserved {
			out.Memory[node] = map[string]int64{}
			for size, amount := range sizes {
				out.Memory[node][numa.KindName(size)] = int64(amount)
			}
		}
	}
	return out
}

// config translates a wireConfig.
func (w wireConfig) config(m machine.Machine, p *problems) numa.Config {
	var out numa.Config
	out.Topology.PreferClosest = w.PreferClosest
	if w.CPU != nil {
		reserved, err := idset.Parse(w.CPU.Reserved)
		if err != nil {
			p.add(attributeConfig+": cpu.reserved", err.Error())
		}
		out.CPU = numa.CPUConfig{Static: true, Reserved: reserved, ReservedCount: w.CPU.ReservedCount}
		known := out.CPU.Options()
		for _, name := range w.CPU.Options {
			on, ok := known[name]
			if !ok {
				p.add(attributeConfig+": cpu.options", fmt.Sprintf("%.80q is not an option that this version knows", name))
				continue
			}
			*on = true
		}
	}
	if w.Memory == nil {
		return out
	}
	if len(w.Memory) > len(m.NUMANodes) {
		p.add(attributeConfig+": memory", fmt.Sprintf("%d NUMA nodes: the machine has %d", len(w.Memory), len(m.NUMANodes)))
		return out
	}
	out.Memory = numa.MemoryConfig{Static: true, Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{}}
	names := map[string]unit.Bytes{numa.KindName(0): 0}
	for size := range m.HugePages {
		names[numa.KindName(size)] = size
	}
	for node, amounts := range w.Memory {
		out.Memory.Reserved[node] = map[unit.Bytes]unit.Bytes{}
		for name, amount := range amounts {
			size, ok := names[name]
			if !ok || amount < 0 {
				p.add(fmt.Sprintf("%s: memory.%d.%.80s", attributeConfig, node, name), fmt.Sprintf("%d: want bytes of one of %v",
					amount, slices.Sorted(maps.Keys(names))))
				continue
			}
			out.Memory.Reserved[node][size] = unit.Bytes(amount)
		}
	}
	return out
}

// devicesOf returns a plugin's devices by id. Of devices with the same id the first one counts, as in package numa.
func devicesOf(plugin numa.Plugin) []numa.Device {
	devices := slices.SortedStableFunc(slices.Values(plugin.Devices), func(a, b numa.Device) int {
		return cmp.Compare(a.ID,
			b.ID)
	})
	return slices.CompactFunc(devices, func(a, b numa.Device) bool { return a.ID == b.ID })
}

func pluginToWire(plugin numa.Plugin) wirePlugin {
	out := wirePlugin{Resource: plugin.Resource, Gone: plugin.Gone, Prefers: plugin.Prefers}
	for _, d := range devicesOf(plugin) {
		same := slices.IndexFunc(out.Devices, func(w wireDevices) bool {
			return w.Unhealthy == !d.Healthy &&
				slices.Equal(w.Nodes, d.Nodes)
		})
		if same < 0 {
			same = len(out.Devices)
			out.Devices = append(out.Devices, wireDevices{Nodes: d.Nodes, Unhealthy: !d.Healthy})
		}
		out.Devices[same].IDs = append(out.Devices[same].IDs, d.ID)
	}
	return out
}

func (w wirePlugin) plugin(p *problems) numa.Plugin {
	out := numa.Plugin{Resource: w.Resource, Gone: w.Gone, Prefers: w.Prefers}
	if w.Resource == "" {
		p.add(attributePlugins, "a resource without a name")
	}
	for _, group := range w.Devices {
		for _, id := range group.IDs {
			out.Devices = append(out.Devices, numa.Device{ID: id, Nodes: group.Nodes, Healthy: !group.Unhealthy})
		}
	}
	return out
}

// podToWire returns what is assigned to a pod; false: nothing.
func podToWire(a numa.Assignment) (wirePod, bool) {
	out, owns := wirePod{UID: a.Pod}, false
	for _, h := range a.Containers {
		w := wireAssigned{Name: h.Container, Init: h.Init, Nodes: h.Nodes, Preferred: h.Preferred, CPUs: h.CPUs.String()}
		for _, b := range h.Memory {
			w.Memory = append(w.Memory, wireBlock{b.Nodes, int64(b.PageSize), int64(b.Bytes)})
		}
		for _, d := range h.Devices {
			if w.Devices == nil {
				w.Devices = map[string][]string{}
			}
			w.Devices[d.Resource] = append(w.Devices[d.Resource], d.IDs...)
		}
		owns = owns || !h.CPUs.IsEmpty() || w.Memory != nil || w.Devices != nil
		out.Containers = append(out.Containers, w)
	}
	return out, owns
}

// totals is what is assigned to all pods that were read so far.
type totals struct {
	bytes     int64 // its sum must not overflow
	cpus      int
	resources map[string]bool
}

// note adds what is assigned to a container, and reports whether the totals are within the bounds on what is read.
func (t *totals) note(cpus int, devices map[string][]string) bool {
	if t.resources == nil {
		t.resources = map[string]bool{}
	}
	t.cpus += cpus
	for resource := range devices {
		t.resources[resource] = true
	}
	return t.cpus <= ownedCPUsMax && len(t.resources) <= resourcesMax
}

// assignment translates what is assigned to a pod. t contains what pods before it have.
func (w wirePod) assignment(t *totals, p *problems) numa.Assignment {
	out := numa.Assignment{Pod: w.UID}
	if w.UID == "" {
		p.add(attributePods, "a pod without a UID")
	}
	for _, c := range w.Containers {
		at := fmt.Sprintf("%s: pod %.80s: container %.80s", attributePods, w.UID, c.Name)
		cpus, err := idset.Parse(c.CPUs)
		if err != nil {
			p.add(at+": cpus", err.Error())
		}
		if !t.note(cpus.Len(), c.Devices) {
			p.add(at, fmt.Sprintf("all pods together have more than %d CPUs or %d resources assigned", ownedCPUsMax,
				resourcesMax))
			return out
		}
		h := numa.Assigned{Container: c.Name, Init: c.Init, Nodes: c.Nodes, Preferred: c.Preferred, CPUs: cpus}
		for _, b := range c.Memory {
			if b.Bytes < 0 || b.PageSize < 0 || t.bytes > math.MaxInt64-b.Bytes {
				p.add(at+": memory", fmt.Sprintf("%d bytes in pages of %d: want a number of bytes, all together below 2^63",
					b.Bytes, b.PageSize))
				continue
			}
			t.bytes += b.Bytes
			h.Memory = append(h.Memory, numa.Block{Nodes: b.Nodes, PageSize: unit.Bytes(b.PageSize), Bytes: unit.Bytes(b.Bytes)})
		}
		for _, resource := range slices.Sorted(maps.Keys(c.Devices)) {
			h.Devices = append(h.Devices, numa.Devices{Resource: resource, IDs: c.Devices[resource]})
		}
		out.Containers = append(out.Containers, h)
	}
	return out
}

// EncodePod returns what is assigned to a pod as text; empty when nothing is.
func EncodePod(a numa.Assignment) string {
	if w, owns := podToWire(a); owns {
		return text(w)
	}
	return ""
}

// DecodePod reads text that EncodePod wrote.
func DecodePod(note string) (numa.Assignment, error) {
	var p problems
	var w wirePod
	p.json(map[string]string{"": note}, "", &w)
	a := w.assignment(&totals{}, &p)
	if err := p.err(); err != nil {
		return numa.Assignment{}, fmt.Errorf("read what is assigned to a pod: %w", err)
	}
	return a, nil
}
