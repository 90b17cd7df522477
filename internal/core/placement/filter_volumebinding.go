package placement

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/selector"
)

// passesVolumeBinding demands that every claim of the pod has, or can get, a volume that can be reached from the node.
//
//   - A claim that is bound: its volume must be there, and the node in its node affinity.
//   - A claim whose class waits for the first consumer: the smallest free volume of that class that will do, or one
//     that is kept for the claim. Claims choose one after another, the smallest first.
//   - Claims that find none are provisioned: the class must have a provisioner, the node be in its allowed topologies
//     and, if the driver publishes capacities, one of them for the node be large enough.
//   - A claim for which a node was selected already is provisioned there, and nowhere else.
//   - A node whose agent says that it would not mount a volume does not get it: others are looked for.
//
// Claims that are bound as soon as they are made have a reason of their own if they are not (volumeAsk.useless).
func passesVolumeBinding(c *cluster, d *demand, r row) bool {
	return d.volumes == nil || c.bindVolumes(d.volumes, r, nil) == 0
}

// bindingConflict is a set of reasons for which volumes cannot be bound.
type bindingConflict int32

const (
	outOfReach bindingConflict = 1 << iota // a bound volume
	noMatch                                // for an unbound claim
	noSpace
	notThere   // a bound volume
	notMounted // a volume that would be made
)

var bindingReasons = []string{
	"node(s) didn't match PersistentVolume's node affinity",
	"node(s) didn't find available persistent volumes to bind",
	"node(s) did not have enough free storage",
	"node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)",
	"node(s) had an agent that would hold the pod: it does not mount volumes of the storage class's provisioner",
}

func explainVolumeBinding(c *cluster, d *demand, r row, reasons []string) []string {
	conflict := c.bindVolumes(d.volumes, r, nil)
	for i, reason := range bindingReasons {
		if conflict&(1<<i) != 0 {
			reasons = append(reasons, reason)
		}
	}
	return reasons
}

func keyVolumeBinding(c *cluster, d *demand, r row, key []int32) []int32 {
	if d.volumes == nil || len(d.volumes.claims) == 0 {
		return key
	}
	return append(key, int32(c.bindVolumes(d.volumes, r, nil)))
}

// bindVolumes finds volumes for the claims of a on row r, and writes into plan, if there is one, what is to be done.
func (c *cluster) bindVolumes(a *volumeAsk, r row, plan *VolumePlan) (conflict bindingConflict) {
	for _, b := range a.bound {
		if b.volume == nil {
			conflict |= notThere
			break
		}
		if !c.reaches(b.volume, r) {
			conflict |= outOfReach
			break
		}
	}
	for i := range a.chosen {
		if a.chosen[i].claim.Node != c.name[r] {
			return conflict | noMatch
		}
	}
	for i := range a.chosen {
		if why := c.provisions(&a.chosen[i], r, plan); why != 0 {
			return conflict | why
		}
	}
	var taken [4]*volume // of most pods, all
	chosen := taken[:0]
	made := bindingConflict(0)
	for i := range a.open {
		p := &a.open[i]
		if v := c.match(p, r, chosen); v != nil {
			chosen = append(chosen, v)
			plan.bind(v, p.claim)
		} else if made == 0 {
			made = c.provisions(p, r, plan)
		}
	}
	return conflict | made
}

// reaches reports whether a volume can be reached from row r.
func (c *cluster) reaches(v *volume, r row) bool {
	if v.Plugin != "" && c.stored[r] != nil && c.stored[r].node != nil && slices.Contains(c.stored[r].node.Plugins, v.Plugin) {
		return c.allows(&v.moved, r)
	}
	return c.allows(&v.affinity, r)
}

func (c *cluster) allows(t *volumeTerms, r row) bool { return !t.bound || c.anyMatches(t.terms, r) }

// match chooses the volume for an unbound claim on row r: one that is kept for it, else the smallest free one. Volumes
// that other claims of the pod have chosen are out.
func (c *cluster) match(p *provision, r row, chosen []*volume) *volume {
	claim := p.claim
	for _, v := range p.stock.kept[claimKey{claim.Namespace, claim.Name}] {
		if (v.ClaimUID == "" || v.ClaimUID == claim.UID) && !v.Deleting && v.suits(claim) && !slices.Contains(chosen, v) {
			if !c.allows(&v.affinity, r) || c.agentLacksAny(r, v.NeedsOfAgent) {
				return nil
			}
			return v
		}
	}
	var best *volume
	look := func(list []*volume) {
		for _, v := range list {
			if best != nil && smallestFirst(best, v) < 0 {
				return
			}
			if v.suits(claim) && v.offers(claim) && c.allows(&v.affinity, r) && !c.agentLacksAny(r, v.NeedsOfAgent) && !slices.Contains(chosen, v) {
				best = v
				return
			}
		}
	}
	if host, ok := c.label(r, c.hostKey); ok {
		look(p.stock.byHost[host])
	}
	look(p.stock.anywhere)
	return best
}

// suits holds of any volume that a claim may be bound to.
func (v *volume) suits(claim *Claim) bool {
	return v.Capacity >= claim.Size && v.Block == claim.Block && v.Attributes == claim.Attributes
}

// offers holds of a volume that a claim may choose.
func (v *volume) offers(claim *Claim) bool {
	if claim.Selector != nil && !claim.Selector.Selects(v.Labels) {
		return false
	}
	for _, mode := range claim.Modes {
		if !slices.Contains(v.Modes, mode) {
			return false
		}
	}
	return true
}

// provisions says why no volume can be made for a claim so that row r reaches it; zero: one can. With a plan the row
// was found to have room for it.
func (c *cluster) provisions(p *provision, r row, plan *VolumePlan) bindingConflict {
	k := p.class
	if k.Provisioner == "" || k.Provisioner == noProvisioner || k.Topologies != nil && !c.anyMatches(k.topologies, r) {
		return noMatch
	}
	if plan == nil && p.claim.Sized && c.storage.opted[k.Provisioner] && !c.hasSpace(k.Name, p.claim.Size, r) {
		return noSpace
	}
	if c.agentLacksAny(r, p.ofAgent) {
		return notMounted
	}
	plan.provision(p.claim, c.name[r])
	return 0
}

func (c *cluster) hasSpace(class string, size int64, r row) bool {
	for _, k := range c.storage.capacities[class] {
		if k.Sized && k.Size >= size && k.Nodes != nil && c.selects(&k.nodes, r) {
			return true
		}
	}
	return false
}

// selects is termMatches for the selector of a capacity, of which an empty one selects everything.
func (c *cluster) selects(t *selector.Term, r row) bool {
	return !t.Never && c.intern.Meet(t.Labels, c.labels[r])
}

// narrowVolumeBinding asks for each bound volume once where it can be reached from: most volumes are to be reached from
// the nodes of one zone, as many others are.
func narrowVolumeBinding(c *cluster, d *demand, m mask) {
	a := d.volumes
	if a == nil {
		return
	}
	for i := range a.chosen {
		there := c.emptyMask(len(m))
		if r, known := c.rows[a.chosen[i].claim.Node]; known && m.has(r) {
			there.set(r)
		}
		m.only(there)
	}
	if len(a.open) > 0 {
		c.narrowOpen(a, m)
	}
	if len(a.chosen) > 0 {
		c.narrowAmong(passesVolumeBinding, d, m, m)
	}
	for _, b := range a.bound {
		if b.volume == nil {
			clear(m)
			return
		}
		c.narrowReached(b.volume, m)
	}
}

// narrowReached takes out of m the rows from which v cannot be reached.
func (c *cluster) narrowReached(v *volume, m mask) {
	if v.Plugin == "" && !v.affinity.bound {
		return
	}
	reached := func(r row) bool { return c.reaches(v, r) }
	if v.Plugin != "" || v.Volume.Affinity == nil {
		c.keepIn(m, m, reached)
		return
	}
	if v.affinity.hosts != nil {
		there := c.emptyMask(len(m))
		byHost := c.topologyOf(c.hostKey)
		for _, host := range v.affinity.hosts {
			if domain, known := byHost.values[host]; known {
				byHost.each(domain, there.set)
			}
		}
		m.only(there)
		c.keepIn(m, m, reached)
		return
	}
	c.scratch = append(c.scratch[:0], asksVolume)
	for i := range *v.Volume.Affinity {
		c.scratch = selector.AppendNodeTerm(c.scratch, &(*v.Volume.Affinity)[i])
	}
	c.narrowBy(m, c.scratch, func(r row) bool { return c.allows(&v.affinity, r) })
}

// narrowOpen asks row by row where there are volumes that the claims may get, and of all other rows at once whether
// volumes can be made for them.
func (c *cluster) narrowOpen(a *volumeAsk, m mask) {
	stocked := make(mask, len(m))
	byHost := c.topologyOf(c.hostKey)
	for i := range a.open {
		p, claim := a.open[i].stock, a.open[i].claim
		if len(p.kept[claimKey{claim.Namespace, claim.Name}])+len(p.anywhere) > 0 {
			stocked.add(m)
			break
		}
		for host := range p.byHost {
			if domain, known := byHost.values[host]; known {
				byHost.each(domain, func(r row) { stocked = stocked.with(r) })
			}
		}
	}
	stocked.only(m)
	c.keepIn(stocked, stocked, func(r row) bool { return c.bindVolumes(a, r, nil) == 0 })
	m.less(stocked)
	rest := m.copyOf(nil)
	for i := range a.open {
		c.narrowProvisioned(&a.open[i], rest)
	}
	clear(m)
	m.add(rest)
	m.add(stocked)
}

// narrowProvisioned takes out of m the rows that could not reach a volume that is made for p. See provisions.
func (c *cluster) narrowProvisioned(p *provision, m mask) {
	k := p.class
	if k.Provisioner == "" || k.Provisioner == noProvisioner {
		clear(m)
		return
	}
	if k.Topologies != nil {
		c.scratch = append(c.scratch[:0], asksVolume)
		for i := range k.topologies {
			c.scratch = append(c.scratch, k.topologies[i].Text...)
		}
		c.narrowBy(m, c.scratch, func(r row) bool { return c.anyMatches(k.topologies, r) })
	}
	if p.claim.Sized && c.storage.opted[k.Provisioner] {
		most := c.spaceOf(k.Name)
		c.keepIn(m, m, func(r row) bool { return most[r] >= p.claim.Size && most[r] != noSpaceAtAll })
	}
	if len(p.ofAgent) > 0 {
		c.keepIn(m, c.marks.lacking, func(r row) bool { return !c.agentLacksAny(r, p.ofAgent) })
	}
}
