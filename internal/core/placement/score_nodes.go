package placement

import "github.com/plimsoll-dev/plimsoll/internal/core/placement/selector"

// softTaintsAgainst counts the PreferNoSchedule taints that the pod does not tolerate.
func softTaintsAgainst(c *cluster, d *demand, r row) int64 {
	n := int64(0)
	for _, t := range c.softTaints[r] {
		if !selector.Tolerate(d.tolerations, t) {
			n++
		}
	}
	return n
}

func keySoftTaints(c *cluster, d *demand, r row, key []int32) []int32 {
	return append(key, int32(softTaintsAgainst(c, d, r)))
}

func prefersNodes(d *demand) bool { return len(d.preferred)+len(d.profile.preferred) > 0 }

// preferredWeight sums the weights of the preferred affinity terms that match: the pod's, and those its profile adds.
func preferredWeight(c *cluster, d *demand, r row) int64 {
	sum := int64(0)
	for _, list := range [...][]weightedTerm{d.preferred, d.profile.preferred} {
		for i := range list {
			if c.termMatches(&list[i].term, r) {
				sum += list[i].weight
			}
		}
	}
	return sum
}

func keyPreferred(c *cluster, d *demand, r row, key []int32) []int32 {
	return append(key, int32(preferredWeight(c, d, r)))
}

func splitSoftTaints(c *cluster, d *demand, m mask, g *grouping) {
	step := g.step()
	m.both(c.marks.discouraged, func(r row) {
		if n := softTaintsAgainst(c, d, r); n > 0 {
			g.move(step, r, n)
		}
	})
}

func splitPreferred(c *cluster, d *demand, m mask, g *grouping) {
	for _, list := range [...][]weightedTerm{d.preferred, d.profile.preferred} {
		for i := range list {
			term := &list[i].term
			c.scratch = append(append(c.scratch[:0], asksTerm), term.Text...)
			holds := func(r row) bool { return c.termMatches(term, r) }
			if a := c.atomOf(&c.moves, m, c.scratch, holds); a != nil {
				g.moveAll(m, a.rows)
				continue
			}
			step := g.step()
			m.each(func(r row) {
				if holds(r) {
					g.move(step, r, 1)
				}
			})
		}
	}
}
