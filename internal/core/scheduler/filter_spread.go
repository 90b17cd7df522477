package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

type spreadFilter struct{}

func (spreadFilter) about() ruling {
	return ruling{
		rule:   RuleSpread,
		plugin: "PodTopologySpread",
		ends:   byNode | byCounters,
		reads:  podFields{"Spread", "Namespace", "Labels", "Owner", "NodeSelector", "NodeAffinity", "Tolerations"},
	}
}

func (spreadFilter) asks(d *demand) bool { return len(d.hard) > 0 }

// judge demands for every hard spread constraint that the node has the key, and that with the pod its domain
// would hold at most maxSkew more pods than the domain with the fewest. With fewer than minDomains domains the fewest
// counts as none. Only rows in the constraint's scope have a say in what the fewest is.
func (f spreadFilter) judge(_ *state, d *demand, r row) bool {
	return f.meets(&d.surroundings, r)
}

func (spreadFilter) meets(x *surroundings, r row) bool {
	for i := range x.hard {
		if !x.hard[i].allows(r) {
			return false
		}
	}
	return true
}

func (a *spreadAsk) allows(r row) bool {
	domain := a.topo.At(r)
	if domain == census.NoDomain {
		return false
	}
	if a.counter == nil { // an empty selector counts nothing
		return true
	}
	fewest := a.counter.Fewest()
	if a.counter.Ground.Domains < int(a.minDomains) {
		fewest = 0
	}
	return a.counter.At(domain)+a.self-fewest <= a.maxSkew
}

func (spreadFilter) explain(c *state, d *demand, r row, reasons []string) []string {
	for i := range d.hard {
		if d.hard[i].topo.At(r) == census.NoDomain {
			return append(reasons, "node(s) didn't match pod topology spread constraints (missing required label)")
		}
		if !d.hard[i].allows(r) {
			break
		}
	}
	return append(reasons, "node(s) didn't match pod topology spread constraints")
}

// final: no eviction gives a node the label that it lacks.
func (spreadFilter) final(c *state, d *demand, r row) bool {
	for i := range d.hard {
		if d.hard[i].topo.At(r) == census.NoDomain {
			return true
		}
		if !d.hard[i].allows(r) {
			return false
		}
	}
	return false
}

// key: the answer depends on the domain; where every domain is one row, on its count.
func (spreadFilter) key(c *state, d *demand, r row, key []int32) []int32 {
	for i := range d.hard {
		if a := &d.hard[i]; a.counter == nil {
			key = append(key, min(a.topo.At(r), 0))
		} else {
			key = append(key, keyOf(a.topo, a.counter, r))
		}
	}
	return key
}

// keyOf tells rows apart whose domains have different counts, as coarsely as it can: by the count where what happens
// to a domain happens to one row, else by the domain.
func keyOf(t *census.Topology, k *census.Counter, r row) int32 {
	domain := t.At(r)
	if domain == census.NoDomain || !t.Single() {
		return domain
	}
	return k.At(domain)
}

// narrow looks at the domains only that have pods: of all others a constraint says the same.
func (spreadFilter) narrow(c *state, d *demand, m rows.Mask) {
	for i := range d.hard {
		a := &d.hard[i]
		m.Only(a.topo.Placed)
		if a.counter != nil {
			a.narrow(c, m)
		}
	}
}

func (a *spreadAsk) narrow(c *state, m rows.Mask) {
	fewest := a.counter.Fewest()
	if a.counter.Ground.Domains < int(a.minDomains) {
		fewest = 0
	}
	allows := func(count int32) bool { return count+a.self-fewest <= a.maxSkew }
	if allows(0) {
		a.counter.Count.Each(func(domain, count int32) {
			if !allows(count) {
				a.topo.Each(domain, m.Clear)
			}
		})
		return
	}
	in := c.emptyMask(len(m))
	a.counter.Count.Each(func(domain, count int32) {
		if allows(count) {
			a.topo.Each(domain, in.Set)
		}
	})
	m.Only(in)
}
