package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

type podAffinityFilter struct{}

func (podAffinityFilter) about() ruling {
	return ruling{
		rule:   RulePodAffinity,
		plugin: "InterPodAffinity",
		ends:   byNode | byCounters,
		reads:  podFields{"Affinity", "AntiAffinity", "Namespace", "Labels"},
	}
}

func (podAffinityFilter) asks(d *demand) bool {
	return len(d.together)+len(d.apart)+len(d.shunnedBy) > 0
}

// judge applies required terms between pods, in both directions.
//
//   - Affinity: each term's domain of the node holds a pod that all terms mean. The first of a group that demands each
//     other has nobody to join: if no such pod is anywhere and the terms mean the pod itself, having the keys is
//     enough.
//   - Anti-affinity: no term's domain of the node holds a pod that it means.
//   - And no pod in any domain of the node holds an anti-affinity term, about that domain, that means this one.
//
// One thing is left as upstream has it: terms of pods that are only nominated are looked at if the pod has required
// terms itself or some counted pod has an anti-affinity term that means it, but not if theirs are the only ones.
func (f podAffinityFilter) judge(c *state, d *demand, r row) bool {
	return c.beside.on && c.beside.nobodyShuns || f.meets(&d.surroundings, r)
}

func (podAffinityFilter) meets(x *surroundings, r row) bool {
	return x.joins(r) && x.avoids(r) && x.isAdmitted(r)
}

// nobodyShuns reports whether neither the pod has required terms nor any counted pod an anti-affinity term that means
// it. While pods are taken off a row to see what that helps, it stays what it was before.
func (d *demand) nobodyShuns(c *state) bool {
	if c.evicting.on {
		return c.evicting.nobodyShuns
	}
	if len(d.together)+len(d.apart) > 0 {
		return false
	}
	for _, k := range d.shunnedBy {
		if k.Total > 0 {
			return false
		}
	}
	return true
}

func (x *surroundings) joins(r row) bool {
	if len(x.together) == 0 {
		return true
	}
	met, anywhere := true, int64(0)
	for _, k := range x.together {
		domain := k.Of.Topo.At(r)
		if domain == census.NoDomain {
			return false
		}
		met = met && k.At(domain) > 0
		anywhere += k.Total
	}
	return met || anywhere == 0 && x.togetherSelf
}

func (x *surroundings) avoids(r row) bool {
	for _, k := range x.apart {
		if k.On(r) > 0 {
			return false
		}
	}
	return true
}

func (x *surroundings) isAdmitted(r row) bool {
	for _, k := range x.shunnedBy {
		if k.On(r) > 0 {
			return false
		}
	}
	return true
}

const (
	reasonJoins    = "node(s) didn't match pod affinity rules"
	reasonAvoids   = "node(s) didn't match pod anti-affinity rules"
	reasonAdmitted = "node(s) didn't satisfy existing pods anti-affinity rules"
)

func (podAffinityFilter) explain(c *state, d *demand, r row, reasons []string) []string {
	switch {
	case !d.joins(r):
		return append(reasons, reasonJoins)
	case !d.avoids(r):
		return append(reasons, reasonAvoids)
	}
	return append(reasons, reasonAdmitted)
}

// final: evicting pods does not bring one to join.
func (podAffinityFilter) final(c *state, d *demand, r row) bool { return !d.joins(r) }

func (podAffinityFilter) key(c *state, d *demand, r row, key []int32) []int32 {
	for _, list := range [][]*census.Counter{d.together, d.apart, d.shunnedBy} {
		for _, k := range list {
			key = append(key, keyOf(k.Of.Topo, k, r))
		}
	}
	return key
}

// narrow looks at the domains only that have pods.
func (podAffinityFilter) narrow(c *state, d *demand, m rows.Mask) {
	anywhere := int64(0)
	for _, k := range d.together {
		m.Only(k.Of.Topo.Placed)
		anywhere += k.Total
	}
	if len(d.together) > 0 && (anywhere != 0 || !d.togetherSelf) {
		for _, k := range d.together {
			m.Only(c.rowsWith(k, len(m)))
		}
	}
	for _, list := range [...][]*census.Counter{d.apart, d.shunnedBy} {
		for _, k := range list {
			k.Count.Each(func(domain, count int32) {
				if count > 0 {
					k.Of.Topo.Each(domain, m.Clear)
				}
			})
		}
	}
}

// rowsWith is the set of rows in whose domain k counts any, in working space.
func (c *state) rowsWith(k *census.Counter, words int) rows.Mask {
	in := c.emptyMask(words)
	k.Count.Each(func(domain, count int32) {
		if count > 0 {
			k.Of.Topo.Each(domain, in.Set)
		}
	})
	return in
}
