package placement

// passesPodAffinity applies required terms between pods, in both directions.
//
//   - Affinity: each term's domain of the node holds a pod that all terms mean. The first of a group that demands each
//     other has nobody to join: if no such pod is anywhere and the terms mean the pod itself, having the keys is enough.
//   - Anti-affinity: no term's domain of the node holds a pod that it means.
//   - And no pod in any domain of the node holds an anti-affinity term, about that domain, that means this one.
func passesPodAffinity(c *cluster, d *demand, r row) bool {
	return d.joins(r) && d.avoids(r) && d.isAdmitted(r)
}

func (d *demand) joins(r row) bool {
	if len(d.together) == 0 {
		return true
	}
	met, anywhere := true, int64(0)
	for _, k := range d.together {
		domain := k.of.topo.domain[r]
		if domain == noDomain {
			return false
		}
		met = met && k.at(domain) > 0
		anywhere += k.total
	}
	return met || anywhere == 0 && d.togetherSelf
}

func (d *demand) avoids(r row) bool {
	for _, k := range d.apart {
		if k.at(k.of.topo.domain[r]) > 0 {
			return false
		}
	}
	return true
}

func (d *demand) isAdmitted(r row) bool {
	for _, k := range d.shunnedBy {
		if k.at(k.of.topo.domain[r]) > 0 {
			return false
		}
	}
	return true
}

func explainPodAffinity(c *cluster, d *demand, r row, reasons []string) []string {
	switch {
	case !d.joins(r):
		return append(reasons, "node(s) didn't match pod affinity rules")
	case !d.avoids(r):
		return append(reasons, "node(s) didn't match pod anti-affinity rules")
	}
	return append(reasons, "node(s) didn't satisfy existing pods anti-affinity rules")
}

// podAffinityIsFinal: evicting pods does not bring one to join.
func podAffinityIsFinal(c *cluster, d *demand, r row) bool { return !d.joins(r) }

func keyPodAffinity(c *cluster, d *demand, r row, key []int32) []int32 {
	for _, list := range [][]*counter{d.together, d.apart, d.shunnedBy} {
		for _, k := range list {
			key = append(key, keyOf(k.of.topo, k, r))
		}
	}
	return key
}
