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
	ID      string
	Nodes   []machine.NUMAID // that it is near; none: it does not matter. Nodes the machine does not have are ignored
	Healthy bool
}

// Plugin is what is known of the devices of one resource.
type Plugin struct {
	Resource string
	Devices  []Device
	// Gone: the plugin is not there (yet). Its devices are known from pods that hold them, and none can be handed out.
	Gone bool
	// Prefers: the plugin has an opinion on which devices go well together, and wants to be asked.
	Prefers bool
}

// pool is the devices of one resource.
type pool struct {
	*deviceTable
	taken bitset.Set // by place in ids
}

// deviceTable is what all States share of a pool.
type deviceTable struct {
	plugin        *Plugin // as it was told; nil: it never came
	unnamed       bool    // some devices are known from pods only
	resource      string
	gone, prefers bool
	aligned       bool // some device is near a node: then hints are given
	ids           []string
	places        []bitset.Set // by device: places of the nodes it is near
	somewhere     []bool       // by device: the plugin named nodes, known or not
	healthy       bitset.Set
	near          bitset.Set // all nodes that some device is near
}

func (l *Layout) table(p Plugin) *deviceTable {
	devices := slices.SortedStableFunc(slices.Values(p.Devices), func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	devices = slices.CompactFunc(devices, func(a, b Device) bool { return a.ID == b.ID })
	t := &deviceTable{resource: p.Resource, gone: p.Gone, prefers: p.Prefers, healthy: bitset.New(len(devices)), near: bitset.New(len(l.nodeID))}
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

// away reports whether there is nothing to choose from for as long as the plugin is not there, or calls none of its devices healthy.
func (p *pool) away() bool { return p.gone || p.healthy.IsEmpty() }

// choose settles which devices a container gets, in ascending order of their ids where nobody has an opinion. held is what
// the pod has from finished init containers. A false result comes with the reason, in upstream's words.
func (p *pool) choose(count int, held, affinity bitset.Set, ask func(available, included bitset.Set) []string) (bitset.Set, string) {
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
		return nil, fmt.Sprintf("requested number of devices unavailable for %s. Requested: %d, Available: %d", p.resource, missing, available.Count())
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

// split tells the devices near the nodes of affinity from those near others only; the rest is in neither.
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

// preferred returns which of available the plugin would take beside included.
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

// want returns the sets of nodes that have count devices, those in held among them. Nil when nodes do not matter; possible
// is false when no set will do.
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

// family returns the sets of nodes that some of devices, count of them, are near.
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
