package placement

type spreadFilter struct{}

func (spreadFilter) about() ruling {
	return ruling{rule: RuleSpread, plugin: "PodTopologySpread", reads: podFields{"Spread", "Namespace", "Labels", "Owner", "NodeSelector", "NodeAffinity", "Tolerations"}}
}

// judge demands for every hard spread constraint that the node has the key, and that with the pod its domain
// would hold at most maxSkew more pods than the domain with the fewest. With fewer than minDomains domains the fewest
// counts as none. Only rows in the constraint's scope have a say in what the fewest is.
func (spreadFilter) judge(c *cluster, d *demand, r row) bool {
	for i := range d.hard {
		if !d.hard[i].allows(r) {
			return false
		}
	}
	return true
}

func (a *spreadAsk) allows(r row) bool {
	domain := a.topo.at(r)
	if domain == noDomain {
		return false
	}
	if a.counter == nil { // an empty selector counts nothing
		return true
	}
	fewest := a.counter.fewest()
	if a.counter.ground.domains < int(a.minDomains) {
		fewest = 0
	}
	return a.counter.at(domain)+a.self-fewest <= a.maxSkew
}

func (spreadFilter) explain(c *cluster, d *demand, r row, reasons []string) []string {
	for i := range d.hard {
		if d.hard[i].topo.at(r) == noDomain {
			return append(reasons, "node(s) didn't match pod topology spread constraints (missing required label)")
		}
		if !d.hard[i].allows(r) {
			break
		}
	}
	return append(reasons, "node(s) didn't match pod topology spread constraints")
}

// final: no eviction gives a node the label that it lacks.
func (spreadFilter) final(c *cluster, d *demand, r row) bool {
	for i := range d.hard {
		if d.hard[i].topo.at(r) == noDomain {
			return true
		}
		if !d.hard[i].allows(r) {
			return false
		}
	}
	return false
}

// key: the answer depends on the domain; where every domain is one row, on its count.
func (spreadFilter) key(c *cluster, d *demand, r row, key []int32) []int32 {
	for i := range d.hard {
		if a := &d.hard[i]; a.counter == nil {
			key = append(key, min(a.topo.at(r), 0))
		} else {
			key = append(key, keyOf(a.topo, a.counter, r))
		}
	}
	return key
}

// keyOf tells rows apart whose domains have different counts, as coarsely as it can: by the count where what happens
// to a domain happens to one row, else by the domain.
func keyOf(t *topology, k *counter, r row) int32 {
	domain := t.at(r)
	if domain == noDomain || !t.single() {
		return domain
	}
	return k.at(domain)
}

// narrow looks at the domains only that have pods: of all others a constraint says the same.
func (spreadFilter) narrow(c *cluster, d *demand, m mask) {
	for i := range d.hard {
		a := &d.hard[i]
		m.only(a.topo.placed)
		if a.counter != nil {
			a.narrow(c, m)
		}
	}
}

func (a *spreadAsk) narrow(c *cluster, m mask) {
	fewest := a.counter.fewest()
	if a.counter.ground.domains < int(a.minDomains) {
		fewest = 0
	}
	allows := func(count int32) bool { return count+a.self-fewest <= a.maxSkew }
	if allows(0) {
		a.counter.count.each(func(domain, count int32) {
			if !allows(count) {
				a.topo.each(domain, m.clear)
			}
		})
		return
	}
	in := c.emptyMask(len(m))
	a.counter.count.each(func(domain, count int32) {
		if allows(count) {
			a.topo.each(domain, in.set)
		}
	})
	m.only(in)
}
