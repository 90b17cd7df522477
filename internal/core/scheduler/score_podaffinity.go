package scheduler

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"

// podAffinityScorer scores nodes by preferred terms of inter-pod affinity and anti-affinity.
type podAffinityScorer struct{}

func (podAffinityScorer) about() scoring {
	return scoring{
		plugin: "InterPodAffinity",
		weight: 2,
		reads:  podFields{"PreferredAffinity", "PreferredAntiAffinity", "Affinity", "Namespace", "Labels"},
	}
}

func (podAffinityScorer) applies(d *demand) bool {
	return len(d.preferredPods)+len(d.preferredByOthers) > 0
}

// raw sums the weights of preferred terms between this pod and those in the domains of the node, in both directions.
// Anti-affinity counts as negative. A required affinity term of a pod on a node counts with the profile's weight.
func (podAffinityScorer) raw(c *state, d *demand, r row) int64 {
	sum := int64(0)
	for _, list := range [...][]weightedCounter{d.preferredPods, d.preferredByOthers} {
		for i := range list {
			k := list[i].counter
			sum += list[i].weight * int64(k.On(r))
		}
	}
	return sum
}

func (podAffinityScorer) normalize(scores []int64) { normalizeByRange(scores) }

func (podAffinityScorer) key(c *state, d *demand, r row, key []int32) []int32 {
	for _, list := range [...][]weightedCounter{d.preferredPods, d.preferredByOthers} {
		for i := range list {
			key = append(key, keyOf(list[i].counter.Of.Topo, list[i].counter, r))
		}
	}
	return key
}

// split adds up the weights for rows in domains that have any. Coarse topologies need no split: the division separates
// their domains already.
func (podAffinityScorer) split(_ *state, d *demand, m rows.Mask, g *grouping) {
	weigh := func(see func(r row, weight int64)) {
		for _, list := range [...][]weightedCounter{d.preferredPods, d.preferredByOthers} {
			for _, w := range list {
				if g.isCoarse(w.counter.Of.Topo) {
					continue
				}
				w.counter.Count.Each(func(domain, count int32) {
					w.counter.Of.Topo.Each(domain, func(r row) { see(r, w.weight*int64(count)) })
				})
			}
		}
	}
	weigh(func(r row, weight int64) { g.sums[r] += weight })
	step := g.step()
	weigh(func(r row, _ int64) {
		if sum := g.sums[r]; sum != 0 && m.Has(r) {
			g.move(step, r, sum)
		}
		g.sums[r] = 0
	})
}
