package placement

import (
	"cmp"
	"slices"
)

// An interner gives each distinct string a small number, so that rules compare numbers. Nobody counts who uses one:
// when there are many more than were in use when it was last swept, all that are in use are marked, and the others
// forgotten.
type interner struct {
	ids   map[string]int32
	texts []string
	free  []int32
	most  int // beyond it, a sweep is due
}

// internedMin is how many strings are kept without looking who uses them. Chosen: the labels of some thousand nodes.
const internedMin = 1 << 15

func newInterner() *interner { return &interner{ids: map[string]int32{}, most: internedMin} }

func (in *interner) id(s string) int32 {
	if id, ok := in.ids[s]; ok {
		return id
	}
	id := int32(len(in.texts))
	if n := len(in.free); n > 0 {
		id, in.free = in.free[n-1], in.free[:n-1]
		in.texts[id] = s
	} else {
		in.texts = append(in.texts, s)
	}
	in.ids[s] = id
	return id
}

// labels returns the numbers of a node's labels, sorted by key.
func (in *interner) labels(list []Label) []labelID {
	out := make([]labelID, 0, len(list))
	for _, l := range list {
		out = append(out, labelID{key: in.id(l.Key), value: in.id(l.Value)})
	}
	slices.SortFunc(out, func(a, b labelID) int { return cmp.Compare(a.key, b.key) })
	return out
}

func (in *interner) text(id int32) string { return in.texts[id] }

// sweepStrings forgets the strings that nobody uses, if it is time. No number that is not written down where marked
// looks may be used after it.
func (c *cluster) sweepStrings() {
	in := c.intern
	if len(in.ids) <= in.most {
		return
	}
	used := c.marked()
	ids := map[string]int32{}
	in.free = in.free[:0]
	for id, text := range in.texts {
		if used.has(row(id)) {
			ids[text] = int32(id)
			continue
		}
		in.texts[id] = ""
		in.free = append(in.free, int32(id))
	}
	in.ids, in.most = ids, max(internedMin, 2*len(ids))
	clear(c.atoms.byKey) // they have numbers, too
}

// marked is the set of numbers that are in use.
func (c *cluster) marked() mask {
	m := marker{in: make(mask, (len(c.intern.texts)+63)/64)}
	m.mark(c.hostKey)
	m.mark(c.zoneKeys...)
	for _, p := range c.profiles {
		m.terms(p.added)
		m.weighted(p.preferred)
	}
	for _, list := range c.labels {
		m.labels(list)
	}
	for key, t := range c.topologies {
		m.mark(key)
		if key == nodeItself {
			continue // its values are rows
		}
		for value := range t.values {
			m.mark(value)
		}
	}
	for _, k := range c.classes {
		m.class(k)
		for _, d := range k.demands {
			m.demand(d)
		}
	}
	for _, s := range c.scopes {
		m.class(s.class)
		m.mark(s.keys...)
	}
	m.storage(&c.storage)
	return m.in
}

type marker struct{ in mask }

func (m *marker) mark(ids ...int32) {
	for _, id := range ids {
		if id >= 0 {
			m.in.set(row(id))
		}
	}
}

func (m *marker) labels(list []labelID) {
	for _, l := range list {
		m.mark(l.key, l.value)
	}
}

func (m *marker) terms(list []compiledTerm) {
	for i := range list {
		for j := range list[i].labels {
			m.mark(list[i].labels[j].key)
			m.mark(list[i].labels[j].values...)
		}
	}
}

func (m *marker) weighted(list []weightedTerm) {
	for i := range list {
		m.terms([]compiledTerm{list[i].term})
	}
}

func (m *marker) class(k *class) {
	m.labels(k.nodeSelector)
	m.terms(k.nodeTerms)
	m.weighted(k.preferred)
	m.mark(k.joinKeys...)
	for i := range k.spread {
		m.mark(k.spread[i].key)
	}
	for _, list := range [...][]podTerm{k.antis, k.prefers} {
		for i := range list {
			m.mark(list[i].key)
		}
	}
}

func (m *marker) demand(d *demand) {
	for _, list := range [...][]spreadAsk{d.hard, d.soft} {
		for i := range list {
			m.mark(list[i].key)
		}
	}
	if d.volumes == nil {
		return
	}
	m.zones(d.volumes.zones)
	for _, b := range d.volumes.bound {
		m.volume(b.volume)
	}
	for _, list := range [...][]provision{d.volumes.chosen, d.volumes.open} {
		for i := range list {
			m.terms(list[i].class.topologies)
		}
	}
}

func (m *marker) zones(list []zoneLabel) {
	for i := range list {
		m.mark(list[i].key, list[i].newKey)
		m.mark(list[i].values...)
	}
}

func (m *marker) volume(v *volume) {
	if v == nil {
		return
	}
	for _, t := range [...]*volumeTerms{&v.affinity, &v.moved} {
		m.terms(t.terms)
		m.mark(t.hosts...)
	}
	m.zones(v.zones)
}

func (m *marker) storage(s *storage) {
	for _, list := range [...]map[string]*volume{s.volumes, s.trueVolumes} {
		for _, v := range list {
			m.volume(v)
		}
	}
	for _, k := range s.classes {
		m.terms(k.topologies)
	}
	for _, list := range s.capacities {
		for _, k := range list {
			m.terms([]compiledTerm{k.nodes})
		}
	}
}
