package placement

import "github.com/plimsoll-dev/plimsoll/internal/core/placement/selector"

// passesTaints demands that every NoSchedule and NoExecute taint of the node is tolerated.
func passesTaints(c *cluster, d *demand, r row) bool {
	return selector.TolerateAll(d.tolerations, c.taints[r])
}

func narrowTaints(c *cluster, d *demand, m mask) {
	if len(d.tolerations) == 0 {
		m.less(c.marks.tainted)
		return
	}
	if m.meets(c.marks.tainted) {
		k := d.class
		c.scratch = selector.AppendTolerations(append(c.scratch[:0], asksTaints), k.tolerations)
		c.narrowBy(m, c.scratch, func(r row) bool { return selector.TolerateAll(k.tolerations, c.taints[r]) })
	}
}
