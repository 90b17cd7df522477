package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

type volumeBindingFilter struct{}

func (volumeBindingFilter) about() ruling {
	return ruling{
		rule:   RuleVolumeBinding,
		plugin: "VolumeBinding",
		ends:   byNode | byVolumes,
		reads:  podFields{"Namespace", "Mounts"},
	}
}

func (volumeBindingFilter) applies(d *demand) bool { return d.volumes != nil }

// judge requires that every claim of the pod has, or can get, a volume that is accessible from the node; see
// volumes.Store.Bind. Unbound claims with immediate binding have a reason of their own (volumes.Needs.UnusableClaim).
func (volumeBindingFilter) judge(c *state, d *demand, r row) bool {
	return d.volumes == nil || c.bindVolumes(d.volumes, r) == 0
}

func (volumeBindingFilter) final(*state, *demand, row) bool { return true }

// bindVolumes returns why volumes for the claims of a cannot be bound to row r; zero: they can.
func (c *state) bindVolumes(a *volumes.Needs, r row) volumes.Conflict {
	return c.storage.Bind(a, c.place(r), nil)
}

// place returns the node of row r as package volumes needs it.
func (n *nodes) place(r row) volumes.Place {
	return volumes.Place{Row: r, Name: n.name[r], Labels: n.labels[r], Lacks: n.agentLacks[r]}
}

func (volumeBindingFilter) explain(c *state, d *demand, r row, reasons []string) []string {
	return c.bindVolumes(d.volumes, r).Explain(reasons)
}

func (volumeBindingFilter) key(c *state, d *demand, r row, key []int32) []int32 {
	if d.volumes == nil || len(d.volumes.Claims) == 0 {
		return key
	}
	return append(key, int32(c.bindVolumes(d.volumes, r)))
}

// narrow checks each bound volume by its node affinity. Most volumes are accessible from the nodes of one zone, and
// many volumes share that affinity, so the answer is kept as a predicate.
func (f volumeBindingFilter) narrow(c *state, d *demand, m rows.Mask) {
	a := d.volumes
	if a == nil {
		return
	}
	for i := range a.Chosen {
		there := c.emptyMask(len(m))
		if r, known := c.rows[a.Chosen[i].Claim.Node]; known && m.Has(r) {
			there.Set(r)
		}
		m.Only(there)
	}
	if len(a.Open) > 0 {
		c.narrowOpen(a, m)
	}
	if len(a.Chosen) > 0 {
		c.narrowAmong(f.judge, d, m, m)
	}
	for _, b := range a.Bound {
		if b.Volume == nil {
			clear(m)
			return
		}
		c.narrowReached(b.Volume, m)
	}
}

// narrowReached removes from m the rows from which v is not accessible.
func (c *state) narrowReached(v *volumes.KnownVolume, m rows.Mask) {
	if v.Plugin == "" && !v.From.Limited {
		return
	}
	reached := func(r row) bool { return c.storage.Reaches(v, c.place(r)) }
	if v.Plugin != "" || v.Affinity == nil {
		c.keepIn(m, m, reached)
		return
	}
	if v.From.Hosts != nil {
		there := c.emptyMask(len(m))
		byHost := c.TopologyOf(c.hostKey)
		for _, host := range v.From.Hosts {
			if domain, known := byHost.Values[host]; known {
				byHost.Each(domain, there.Set)
			}
		}
		m.Only(there)
		c.keepIn(m, m, reached)
		return
	}
	c.scratch = append(c.scratch[:0], keyVolume)
	for i := range *v.Affinity {
		c.scratch = selector.AppendNodeTerm(c.scratch, &(*v.Affinity)[i])
	}
	c.narrowBy(m, c.scratch, func(r row) bool { return c.storage.Reaches(v, c.place(r)) })
}

// narrowOpen narrows m by claims that are not bound. It checks each row from which some existing volume that the claims
// may get is accessible. All other rows are checked at once: volumes must be provisioned there.
func (c *state) narrowOpen(a *volumes.Needs, m rows.Mask) {
	stocked := make(rows.Mask, len(m))
	byHost := c.TopologyOf(c.hostKey)
	for i := range a.Open {
		p, claim := a.Open[i].Stock, a.Open[i].Claim
		if p.AnywhereFor(claim) {
			stocked.Add(m)
			break
		}
		p.EachHost(func(host int32) {
			if domain, known := byHost.Values[host]; known {
				byHost.Each(domain, func(r row) { stocked = stocked.With(r) })
			}
		})
	}
	stocked.Only(m)
	c.keepIn(stocked, stocked, func(r row) bool { return c.bindVolumes(a, r) == 0 })
	m.Less(stocked)
	rest := m.CopyOf(nil)
	for i := range a.Open {
		c.narrowProvisioned(&a.Open[i], rest)
	}
	clear(m)
	m.Add(rest)
	m.Add(stocked)
}

// narrowProvisioned removes from m the rows for which no volume can be provisioned for p. See volumes.Store.Bind.
func (c *state) narrowProvisioned(p *volumes.Provision, m rows.Mask) {
	k := p.Class
	if !k.Provisions() {
		clear(m)
		return
	}
	if k.Limits() {
		c.scratch = append(c.scratch[:0], keyVolume)
		for i := range k.Topologies {
			c.scratch = append(c.scratch, k.Topologies[i].Text...)
		}
		c.narrowBy(m, c.scratch, func(r row) bool { return c.anyMatches(k.Topologies, r) })
	}
	if p.Claim.Sized && c.storage.PublishesCapacity(k.Provisioner) {
		most := c.spaceOf(k.Name)
		c.keepIn(m, m, func(r row) bool { return most[r] >= p.Claim.Size && most[r] != noSpaceAtAll })
	}
	if len(p.OfAgent) > 0 {
		c.keepIn(m, c.marks.lacking, func(r row) bool { return !c.agentLacksAny(r, p.OfAgent) })
	}
}
