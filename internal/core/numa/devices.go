package numa

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
)

// Device is one device of a plugin.
type Device struct {
	ID string
	// NUMA nodes it is near; none: no topology. Nodes that the machine does not have are ignored.
	Nodes   []machine.NUMAID
	Healthy bool
}

// Plugin is what is known about the devices of one resource.
type Plugin struct {
	Resource string
	Devices  []Device
	// Gone: the plugin is not connected. Its devices are known from pods that have them, and none can be assigned.
	Gone bool
	// Prefers: the plugin has a preference between devices, and asks to be called for it.
	Prefers bool
}

// pool is the devices of one resource, with those that are assigned.
type pool struct {
	*deviceTable
	taken bitset.Set // assigned devices, by index in ids
}

// deviceTable is the part of a pool that Forks share. It does not change: extend and table make new ones.
type deviceTable struct {
	plugin   *Plugin // as passed to SetPlugin; nil: the resource is known from pods only
	unnamed  bool    // some devices are known from pods only
	resource string
	// Copied from the plugin.
	gone, prefers bool
	aligned       bool         // some device is near a node: only then the resource has hints
	ids           []string     // of all devices, sorted
	places        []bitset.Set // by device: places of the nodes it is near
	somewhere     []bool       // by device: the plugin named nodes, whether the machine has them or not
	healthy       bitset.Set   // devices that are healthy and whose plugin is connected, by index in ids
	near          bitset.Set   // places of all nodes that some device is near
}

func (l *Layout) table(p Plugin) *deviceTable {
	devices := slices.SortedStableFunc(slices.Values(p.Devices), func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	devices = slices.CompactFunc(devices, func(a, b Device) bool { return a.ID == b.ID })
	t := &deviceTable{
		resource: p.Resource,
		gone:     p.Gone,
		prefers:  p.Prefers,
		healthy:  bitset.New(len(devices)),
		near:     bitset.New(len(l.nodeID)),
	}
	for i, d := range devices {
		t.ids = append(t.ids, d.ID)
		t.places = append(t.places, l.places(d.Nodes))
		t.somewhere = append(t.somewhere, len(d.Nodes) > 0)
		t.near.Unite(t.places[i])
		if t.aligned = t.aligned || len(d.Nodes) > 0; d.Healthy && !p.Gone {
			t.healthy.Add(i)
		}
	}
	return t
}

func (p *pool) free() bitset.Set {
	s := p.healthy.Clone()
	s.Drop(p.taken)
	return s
}

// away reports whether no device can be assigned because the plugin is not connected or has no healthy device.
func (p *pool) away() bool { return p.gone || p.healthy.IsEmpty() }

// choose returns the devices for a container: those that the plugin prefers, otherwise in ascending order of ids. held
// are the devices that finished init containers of the pod have passed on. If it fails, it returns the reason in
// upstream's words.
func (p *pool) choose(
	count int, held, affinity bitset.Set, ask func(available, included bitset.Set) []string,
) (bitset.Set, string) {
	switch {
	case p.gone:
		return nil, "cannot allocate unregistered device " + p.resource
	case p.healthy.IsEmpty():
		return nil, "no healthy devices present; cannot allocate unhealthy devices " + p.resource
	}
	got := bitset.New(len(p.ids))
	from := func(s bitset.Set) bool {
		for i := range s.All {
			if got.Count() == count {
				break
			}
			got.Add(i)
		}
		return got.Count() == count
	}
	if count == 0 || from(held) {
		return got, ""
	}
	available := p.free()
	if missing := count - got.Count(); available.Count() < missing {
		return nil, fmt.Sprintf("requested number of devices unavailable for %s. Requested: %d, Available: %d", p.resource,
			missing, available.Count())
	}
	aligned, elsewhere := p.split(available, affinity)
	if count-got.Count() < aligned.Count() {
		if !from(p.preferred(ask, aligned, got)) {
			from(aligned)
		}
		return got, ""
	}
	if !from(aligned) && !from(p.preferred(ask, available, got)) && !from(elsewhere) {
		from(available)
	}
	return got, ""
}

// split returns the available devices near the nodes of affinity, and those near other nodes only. Devices without
// topology are in neither set.
func (p *pool) split(available, affinity bitset.Set) (aligned, elsewhere bitset.Set) {
	aligned, elsewhere = bitset.New(len(p.ids)), bitset.New(len(p.ids))
	if !p.aligned || affinity == nil {
		return aligned, elsewhere
	}
	for i := range available.All {
		switch {
		case p.places[i].Meets(affinity):
			aligned.Add(i)
		case p.somewhere[i]:
			elsewhere.Add(i)
		}
	}
	return aligned, elsewhere
}

// preferred returns the devices of available that the plugin prefers in addition to included.
func (p *pool) preferred(ask func(available, included bitset.Set) []string, available, included bitset.Set) bitset.Set {
	out := bitset.New(len(p.ids))
	if !p.prefers {
		return out
	}
	all := available.Clone()
	all.Unite(included)
	for _, id := range ask(all, included) {
		if i, ok := slices.BinarySearch(p.ids, id); ok && available.Has(i) {
			out.Add(i)
		}
	}
	return out
}

func (p *pool) names(devices bitset.Set) []string {
	var out []string
	for i := range devices.All {
		out = append(out, p.ids[i])
	}
	return out
}

// want returns the sets of nodes near which there are count devices, including those in held. It returns nil when the
// devices have no topology. possible is false when there is no such set.
func (p *pool) want(l *Layout, count int, held bitset.Set) (w *hints.Want, possible bool) {
	if !p.aligned {
		return nil, true
	}
	usable := p.free()
	usable.Unite(held)
	if usable.Count() < count {
		return nil, false
	}
	f := p.family(l, usable, count)
	for i := range held.All {
		switch {
		case !p.somewhere[i]:
		case p.places[i].Count() == 1:
			f.Must.Unite(p.places[i])
		default:
			f.Hit = append(f.Hit, p.places[i])
		}
	}
	if f.IsEmpty() {
		return nil, false
	}
	width := p.family(l, bitset.Full(len(p.ids)), count).Width(f.Within.Count(), len(l.nodeID))
	return &hints.Want{Families: []*hints.Family{f}, Copies: 1, Width: width}, true
}

// family returns the sets of nodes that are near at least count of devices.
func (p *pool) family(l *Layout, devices bitset.Set, count int) *hints.Family {
	f := &hints.Family{Within: p.near, Must: bitset.New(len(l.nodeID)), Need: int64(count)}
	if f.Within.IsEmpty() {
		f.Within = bitset.Full(len(l.nodeID))
	}
	weight, several := make([]int64, len(l.nodeID)), false
	for i := range devices.All {
		for n := range p.places[i].All {
			weight[n]++
		}
		several = several || p.places[i].Count() > 1
	}
	f.Loads = []hints.Load{{Weight: weight, Need: int64(count)}}
	if several {
		for i := range devices.All {
			f.Near = append(f.Near, hints.Near{Nodes: p.places[i], Count: 1})
		}
	}
	return f
}
