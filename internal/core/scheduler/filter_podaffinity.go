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

func (podAffinityFilter) applies(d *demand) bool {
	return len(d.affinityPods)+len(d.antiAffinityPods)+len(d.antiAffinityOfOthers) > 0
}

// judge applies the required terms of inter-pod affinity, in both directions.
//
//   - Affinity: for each term, the node's domain has a pod that matches all terms. There is an exception for the first
//     pod of a group with affinity to itself: if no pod anywhere matches and the terms match the pod itself, the node
//     only needs the topology keys.
//   - Anti-affinity: for no term, the node's domain has a pod that matches it.
//   - No pod in a domain of the node has an anti-affinity term about that domain that matches this pod.
//
// One detail is as upstream: terms of nominated pods count if the pod has required terms itself, or if some pod on a
// node has an anti-affinity term that matches it. They do not count if only nominated pods have such terms.
func (f podAffinityFilter) judge(c *state, d *demand, r row) bool {
	return c.nominating.on && c.nominating.noAntiAffinity || f.meets(&d.surroundings, r)
}

func (podAffinityFilter) meets(x *surroundings, r row) bool {
	return x.meetsAffinity(r) && x.meetsAntiAffinity(r) && x.meetsOthersAntiAffinity(r)
}

// noAntiAffinity reports whether the pod has no required terms and no pod on a row has an anti-affinity term that
// matches it. During a trial eviction, the value from before the trial is used.
func (d *demand) noAntiAffinity(c *state) bool {
	if c.evicting.on {
		return c.evicting.noAntiAffinity
	}
	if len(d.affinityPods)+len(d.antiAffinityPods) > 0 {
		return false
	}
	for _, k := range d.antiAffinityOfOthers {
		if k.Total > 0 {
			return false
		}
	}
	return true
}

func (x *surroundings) meetsAffinity(r row) bool {
	if len(x.affinityPods) == 0 {
		return true
	}
	met, anywhere := true, int64(0)
	for _, k := range x.affinityPods {
		domain := k.Of.Topo.At(r)
		if domain == census.NoDomain {
			return false
		}
		met = met && k.At(domain) > 0
		anywhere += k.Total
	}
	return met || anywhere == 0 && x.affinitySelf
}

func (x *surroundings) meetsAntiAffinity(r row) bool {
	for _, k := range x.antiAffinityPods {
		if k.On(r) > 0 {
			return false
		}
	}
	return true
}

func (x *surroundings) meetsOthersAntiAffinity(r row) bool {
	for _, k := range x.antiAffinityOfOthers {
		if k.On(r) > 0 {
			return false
		}
	}
	return true
}

const (
	reasonAffinity           = "node(s) didn't match pod affinity rules"
	reasonAntiAffinity       = "node(s) didn't match pod anti-affinity rules"
	reasonOthersAntiAffinity = "node(s) didn't satisfy existing pods anti-affinity rules"
)

func (podAffinityFilter) explain(c *state, d *demand, r row, reasons []string) []string {
	switch {
	case !d.meetsAffinity(r):
		return append(reasons, reasonAffinity)
	case !d.meetsAntiAffinity(r):
		return append(reasons, reasonAntiAffinity)
	}
	return append(reasons, reasonOthersAntiAffinity)
}

// final: no eviction adds a pod that the affinity terms match.
func (podAffinityFilter) final(c *state, d *demand, r row) bool { return !d.meetsAffinity(r) }

func (podAffinityFilter) key(c *state, d *demand, r row, key []int32) []int32 {
	for _, list := range [][]*census.Counter{d.affinityPods, d.antiAffinityPods, d.antiAffinityOfOthers} {
		for _, k := range list {
			key = append(key, keyOf(k.Of.Topo, k, r))
		}
	}
	return key
}

// narrow examines only the domains that have pods.
func (podAffinityFilter) narrow(c *state, d *demand, m rows.Mask) {
	anywhere := int64(0)
	for _, k := range d.affinityPods {
		m.Only(k.Of.Topo.Placed)
		anywhere += k.Total
	}
	if len(d.affinityPods) > 0 && (anywhere != 0 || !d.affinitySelf) {
		for _, k := range d.affinityPods {
			m.Only(c.rowsWith(k, len(m)))
		}
	}
	for _, list := range [...][]*census.Counter{d.antiAffinityPods, d.antiAffinityOfOthers} {
		for _, k := range list {
			k.Count.Each(func(domain, count int32) {
				if count > 0 {
					k.Of.Topo.Each(domain, m.Clear)
				}
			})
		}
	}
}

// rowsWith returns the rows in whose domain the count of k is above zero. The mask is working space.
func (c *state) rowsWith(k *census.Counter, words int) rows.Mask {
	in := c.emptyMask(words)
	k.Count.Each(func(domain, count int32) {
		if count > 0 {
			k.Of.Topo.Each(domain, in.Set)
		}
	})
	return in
}
