package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// taintScorer prefers nodes with few PreferNoSchedule taints that the pod does not tolerate.
type taintScorer struct{}

func (taintScorer) about() scoring {
	return scoring{plugin: "TaintToleration", weight: 3, reads: podFields{"Tolerations"}}
}

func (taintScorer) applies(*demand) bool { return true }

func (taintScorer) raw(c *state, d *demand, r row) int64 { return softTaintsAgainst(c, d, r) }

func (taintScorer) normalize(scores []int64) { normalizeReversed(scores) }

// softTaintsAgainst returns how many PreferNoSchedule taints of row r the pod does not tolerate.
func softTaintsAgainst(c *state, d *demand, r row) int64 {
	n := int64(0)
	for _, t := range c.softTaints[r] {
		if !selector.Tolerate(d.tolerations, t) {
			n++
		}
	}
	return n
}

func (taintScorer) key(c *state, d *demand, r row, key []int32) []int32 {
	return append(key, int32(softTaintsAgainst(c, d, r)))
}

// nodeAffinityScorer prefers nodes that match preferred affinity terms.
type nodeAffinityScorer struct{}

func (nodeAffinityScorer) about() scoring {
	return scoring{plugin: "NodeAffinity", weight: 2, reads: podFields{"Preferred"}}
}

func (nodeAffinityScorer) applies(d *demand) bool {
	return d.preferred.terms.Len()+d.profile.preferred.terms.Len() > 0
}

func (nodeAffinityScorer) raw(c *state, d *demand, r row) int64 { return preferredWeight(c, d, r) }

func (nodeAffinityScorer) normalize(scores []int64) { normalizeByMax(scores) }

// preferredWeight returns the sum of the weights of the matching preferred affinity terms, of the pod and of its
// profile.
func preferredWeight(c *state, d *demand, r row) int64 {
	sum := int64(0)
	for _, list := range [...]*weightedTerms{&d.preferred, &d.profile.preferred} {
		sum += c.weightAt(list, r)
	}
	return sum
}

func (c *state) weightAt(list *weightedTerms, r row) (sum int64) {
	c.intern.EachMatch(&list.terms, c.name[r], c.labels[r], func(i int) bool {
		sum += list.weights[i]
		return true
	})
	return sum
}

func (nodeAffinityScorer) key(c *state, d *demand, r row, key []int32) []int32 {
	return append(key, int32(preferredWeight(c, d, r)))
}

func (taintScorer) split(c *state, d *demand, m rows.Mask, g *grouping) {
	step := g.step()
	m.Both(c.marks.discouraged, func(r row) {
		if n := softTaintsAgainst(c, d, r); n > 0 {
			g.move(step, r, n)
		}
	})
}

// predicateTermsMax is the largest number of preferred terms for which each has a predicate, which pods of other
// classes may share. Chosen: more than people write. Longer lists are evaluated as a whole, node by node.
const predicateTermsMax = 16

func (nodeAffinityScorer) split(c *state, d *demand, m rows.Mask, g *grouping) {
	for _, list := range [...]*weightedTerms{&d.preferred, &d.profile.preferred} {
		if list.terms.Len() > predicateTermsMax {
			step := g.step()
			m.Each(func(r row) {
				if sum := c.weightAt(list, r); sum != 0 {
					g.move(step, r, sum)
				}
			})
			continue
		}
		for i := range list.terms.Len() {
			term := list.terms.At(i)
			c.scratch = append(append(c.scratch[:0], keyTerm), term.Text...)
			holds := func(r row) bool { return c.termMatches(term, r) }
			if a := c.predicateOf(&c.moves, m, c.scratch, holds); a != nil {
				g.moveAll(m, a.rows)
				continue
			}
			step := g.step()
			m.Each(func(r row) {
				if holds(r) {
					g.move(step, r, 1)
				}
			})
		}
	}
}
