package placement

import "github.com/plimsoll-dev/plimsoll/internal/core/placement/selector"

// sweepStrings forgets the strings that nobody uses, if it is time. No number that is not written down where marked
// looks may be used after it.
func (c *cluster) sweepStrings() {
	if !c.intern.Due() {
		return
	}
	used := c.marked()
	c.intern.Sweep(func(id int32) bool { return used.has(row(id)) })
	clear(c.atoms.byKey) // they have numbers, too
}

// marked is the set of numbers that are in use.
func (c *cluster) marked() mask {
	m := marker{in: make(mask, (c.intern.End()+63)/64)}
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

func (m *marker) labels(list []selector.LabelID) {
	for _, l := range list {
		m.mark(l.Key, l.Value)
	}
}

func (m *marker) terms(list []selector.Term) {
	for i := range list {
		for j := range list[i].Labels {
			m.mark(list[i].Labels[j].Key)
			m.mark(list[i].Labels[j].Values...)
		}
	}
}

func (m *marker) weighted(list []weightedTerm) {
	for i := range list {
		m.terms([]selector.Term{list[i].term})
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
			m.terms([]selector.Term{k.nodes})
		}
	}
}
