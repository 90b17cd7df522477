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

func (spreadFilter) applies(d *demand) bool { return len(d.hard) > 0 }

// judge requires for every hard spread constraint that the node has the topology key, and that with the pod its domain
// has at most maxSkew more pods than the domain with the fewest. If there are fewer than minDomains domains, the fewest
// is zero. Only rows in the constraint's scope decide what the fewest is.
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

func (a *countedSpread) allows(r row) bool {
	domain := a.topo.At(r)
	if domain == census.NoDomain {
		return false
	}
	if a.counter == nil { // an empty selector counts nothing
		return true
	}
	fewest := a.counter.Fewest()
	if a.counter.Coverage.Domains < int(a.minDomains) {
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

// final: no eviction gives the node a missing label.
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

// key: the answer depends on the domain or, if every domain is one row, on the domain's count.
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

// keyOf returns a value that differs for rows whose domains have different counts, with as few values as possible: the
// count if a domain is one row, so that a change in a domain concerns one row only; otherwise the domain.
func keyOf(t *census.Topology, k *census.Counter, r row) int32 {
	domain := t.At(r)
	if domain == census.NoDomain || !t.Single() {
		return domain
	}
	return k.At(domain)
}

// narrow examines only the domains that have pods; a constraint gives the same answer for all others.
func (spreadFilter) narrow(c *state, d *demand, m rows.Mask) {
	for i := range d.hard {
		a := &d.hard[i]
		m.Only(a.topo.Placed)
		if a.counter != nil {
			a.narrow(c, m)
		}
	}
}

func (a *countedSpread) narrow(c *state, m rows.Mask) {
	fewest := a.counter.Fewest()
	if a.counter.Coverage.Domains < int(a.minDomains) {
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
