package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// sweepStrings drops the interned strings that are not in use, if a sweep is due. The number of a string that marked
// does not find must not be used afterwards.
func (c *cluster) sweepStrings() {
	if !c.intern.Due() {
		return
	}
	used := c.marked()
	c.intern.Sweep(func(id int32) bool { return used.Has(row(id)) })
	clear(c.predicates.byKey) // their functions refer to strings by number, too
}

// marked returns the numbers of the strings that are in use.
func (c *cluster) marked() rows.Mask {
	in := make(rows.Mask, (c.intern.End()+63)/64)
	m := marker{see: func(ids ...int32) {
		for _, id := range ids {
			if id >= 0 {
				in.Set(row(id))
			}
		}
	}}
	m.see(c.hostKey)
	for _, p := range c.profiles {
		selector.EachString(p.added.List(), m.see)
		selector.EachString(p.preferred.terms.List(), m.see)
	}
	for _, list := range c.labels {
		m.labels(list)
	}
	c.EachString(m.see)
	for _, k := range c.classes {
		m.class(k)
		for _, d := range k.demands {
			m.demand(d)
		}
	}
	c.storage.EachString(m.see)
	return in
}

// marker calls see for the number of every string that something uses.
type marker struct{ see func(...int32) }

func (m *marker) labels(list []selector.LabelID) {
	for _, l := range list {
		m.see(l.Key, l.Value)
	}
}

func (m *marker) class(k *class) {
	m.labels(k.nodeSelector)
	selector.EachString(k.nodeTerms.List(), m.see)
	selector.EachString(k.preferred.terms.List(), m.see)
	m.see(k.affinityKeys...)
	for i := range k.spread {
		m.see(k.spread[i].key)
	}
	for _, list := range [...][]podTerm{k.antiAffinity, k.preferredTerms} {
		for i := range list {
			m.see(list[i].key)
		}
	}
}

func (m *marker) demand(d *demand) {
	for _, list := range [...][]countedSpread{d.hard, d.soft} {
		for i := range list {
			m.see(list[i].key)
		}
	}
	if d.volumes != nil {
		d.volumes.EachString(m.see)
	}
}
