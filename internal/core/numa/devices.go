package numa

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
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
	taken set // by place in ids
}

// deviceTable is what all States share of a pool.
type deviceTable struct {
	plugin        *Plugin // as it was told; nil: it never came
	unnamed       bool    // some devices are known from pods only
	resource      string
	gone, prefers bool
	aligned       bool // some device is near a node: then hints are given
	ids           []string
	places        []set  // by device: places of the nodes it is near
	somewhere     []bool // by device: the plugin named nodes, known or not
	healthy       set
	near          set // all nodes that some device is near
}

func (l *Layout) table(p Plugin) *deviceTable {
	devices := slices.SortedStableFunc(slices.Values(p.Devices), func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	devices = slices.CompactFunc(devices, func(a, b Device) bool { return a.ID == b.ID })
	t := &deviceTable{resource: p.Resource, gone: p.Gone, prefers: p.Prefers, healthy: newSet(len(devices)), near: newSet(len(l.nodeID))}
	for i, d := range devices {
		t.ids = append(t.ids, d.ID)
		t.places = append(t.places, l.places(d.Nodes))
		t.somewhere = append(t.somewhere, len(d.Nodes) > 0)
		t.near.unite(t.places[i])
		if t.aligned = t.aligned || len(d.Nodes) > 0; d.Healthy && !p.Gone {
			t.healthy.add(i)
		}
	}
	return t
}

func (p *pool) free() set {
	s := p.healthy.clone()
	s.drop(p.taken)
	return s
}

// away reports whether there is nothing to choose from for as long as the plugin is not there, or calls none of its devices healthy.
func (p *pool) away() bool { return p.gone || p.healthy.isEmpty() }

// choose settles which devices a container gets, in ascending order of their ids where nobody has an opinion. held is what
// the pod has from finished init containers. A false result comes with the reason, in upstream's words.
func (p *pool) choose(count int, held, affinity set, ask func(available, included set) []string) (set, string) {
	switch {
	case p.gone:
		return nil, "cannot allocate unregistered device " + p.resource
	case p.healthy.isEmpty():
		return nil, "no healthy devices present; cannot allocate unhealthy devices " + p.resource
	}
	got := newSet(len(p.ids))
	from := func(s set) bool {
		for i := range s.all {
			if got.count() == count {
				break
			}
			got.add(i)
		}
		return got.count() == count
	}
	if count == 0 || from(held) {
		return got, ""
	}
	available := p.free()
	if missing := count - got.count(); available.count() < missing {
		return nil, fmt.Sprintf("requested number of devices unavailable for %s. Requested: %d, Available: %d", p.resource, missing, available.count())
	}
	aligned, elsewhere := p.split(available, affinity)
	if count-got.count() < aligned.count() {
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
func (p *pool) split(available, affinity set) (aligned, elsewhere set) {
	aligned, elsewhere = newSet(len(p.ids)), newSet(len(p.ids))
	if !p.aligned || affinity == nil {
		return aligned, elsewhere
	}
	for i := range available.all {
		switch {
		case p.places[i].meets(affinity):
			aligned.add(i)
		case p.somewhere[i]:
			elsewhere.add(i)
		}
	}
	return aligned, elsewhere
}

// preferred returns which of available the plugin would take beside included.
func (p *pool) preferred(ask func(available, included set) []string, available, included set) set {
	out := newSet(len(p.ids))
	if !p.prefers {
		return out
	}
	all := available.clone()
	all.unite(included)
	for _, id := range ask(all, included) {
		if i, ok := slices.BinarySearch(p.ids, id); ok && available.has(i) {
			out.add(i)
		}
	}
	return out
}

func (p *pool) names(devices set) []string {
	var out []string
	for i := range devices.all {
		out = append(out, p.ids[i])
	}
	return out
}

// want returns the sets of nodes that have count devices, those in held among them. Nil when nodes do not matter; possible
// is false when no set will do.
func (p *pool) want(l *Layout, count int, held set) (w *want, possible bool) {
	if !p.aligned {
		return nil, true
	}
	usable := p.free()
	usable.unite(held)
	if usable.count() < count {
		return nil, false
	}
	f := p.family(l, usable, count)
	for i := range held.all {
		switch {
		case !p.somewhere[i]:
		case p.places[i].count() == 1:
			f.must.unite(p.places[i])
		default:
			f.hit = append(f.hit, p.places[i])
		}
	}
	if f.isEmpty() {
		return nil, false
	}
	most, steps := f.within.count(), searchSteps
	width := cmp.Or(p.family(l, full(len(p.ids)), count).narrowest(most, len(l.nodeID), &steps).count(), most)
	return &want{families: []*family{f}, copies: 1, width: width}, true
}

// family returns the sets of nodes that some of devices, count of them, are near.
func (p *pool) family(l *Layout, devices set, count int) *family {
	f := &family{within: p.near, must: newSet(len(l.nodeID)), need: int64(count)}
	if f.within.isEmpty() {
		f.within = full(len(l.nodeID))
	}
	weight, several := make([]int64, len(l.nodeID)), false
	for i := range devices.all {
		for n := range p.places[i].all {
			weight[n]++
		}
		several = several || p.places[i].count() > 1
	}
	f.loads = []load{{weight, int64(count)}}
	if several {
		for i := range devices.all {
			f.near = append(f.near, near{p.places[i], 1})
		}
	}
	return f
}
