package placement

// passesTaints demands that every NoSchedule and NoExecute taint of the node is tolerated.
func passesTaints(c *cluster, d *demand, r row) bool {
	return toleratesAll(d.class, c.taints[r])
}

func toleratesAll(k *class, taints []Taint) bool {
	for _, t := range taints {
		if !tolerated(k.tolerations, t) {
			return false
		}
	}
	return true
}

func tolerated(tolerations []Toleration, taint Taint) bool {
	for i := range tolerations {
		if tolerations[i].matches(taint) {
			return true
		}
	}
	return false
}

func (t *Toleration) matches(taint Taint) bool {
	if t.Never || t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	return t.Exists || t.Value == taint.Value
}

func narrowTaints(c *cluster, d *demand, m mask) {
	if len(d.tolerations) == 0 {
		m.less(c.marks.tainted)
		return
	}
	if m.meets(c.marks.tainted) {
		k := d.class
		c.scratch = appendTolerations(append(c.scratch[:0], asksTaints), k.tolerations)
		c.narrowBy(m, c.scratch, func(r row) bool { return toleratesAll(k, c.taints[r]) })
	}
}
