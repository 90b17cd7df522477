package scheduler

import (
	"math"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// spreadScorer prefers domains with few pods, by soft spread constraints.
type spreadScorer struct{}

func (spreadScorer) about() scoring {
	return scoring{
		plugin: "PodTopologySpread",
		weight: 2,
		reads:  podFields{"Spread", "Namespace", "Labels", "Owner", "NodeSelector", "NodeAffinity", "Tolerations"},
	}
}

func (spreadScorer) applies(d *demand) bool { return len(d.soft) > 0 }

// leftOut is the raw score of a node without the topology key of a soft constraint: its score is 0.
const leftOut = -1

// prepare computes the weights of the constraints from the number of domains in which the feasible nodes are. So a
// topology with many domains that have few pods each counts as much as one with few domains that have many. For the
// host name, each node is a domain.
func (spreadScorer) prepare(c *state, d *demand, rows []row, alike []int32) {
	d.weights = d.weights[:0]
	for i := range d.soft {
		a := &d.soft[i]
		c.stamp++
		size, missing := 0, false
		measured := i < len(d.spans) && d.spans[i] != unmeasured
		if measured {
			size = d.spans[i]
		}
		for j, r := range rows {
			if !d.scoresSpread(r) {
				continue
			}
			domain := a.topo.At(r)
			switch {
			case a.isHost(c):
				size += int(alike[j])
			case domain == census.NoDomain: // as upstream, the absent label counts as one domain
				missing = true
			case !measured && c.isFresh(domain):
				size++
			}
		}
		if missing {
			size++
		}
		d.weights = append(d.weights, math.Log(float64(size+2)))
	}
}

func (a *countedSpread) isHost(c *state) bool { return a.key == c.hostKey }

// isFresh reports whether it is called for this domain for the first time since stamp changed.
func (c *state) isFresh(domain int32) bool {
	for int(domain) >= len(c.stamps) {
		c.stamps = append(c.stamps, 0)
	}
	if c.stamps[domain] == c.stamp {
		return false
	}
	c.stamps[domain] = c.stamp
	return true
}

// scoresSpread reports whether row r is scored: it has all topology keys, or need not have them.
func (d *demand) scoresSpread(r row) bool {
	if d.softEverywhere {
		return true
	}
	for i := range d.soft {
		if d.soft[i].topo.At(r) == census.NoDomain {
			return false
		}
	}
	return true
}

// raw sums, over the constraints whose key the node has, the weighted number of pods in its domain. Lower is better.
func (spreadScorer) raw(c *state, d *demand, r row) int64 {
	if !d.scoresSpread(r) {
		return leftOut
	}
	sum := 0.0
	for i := range d.soft {
		a := &d.soft[i]
		if a.topo.At(r) == census.NoDomain {
			continue
		}
		count := int32(0)
		if a.counter != nil {
			count = a.counter.On(r)
		}
		sum += float64(count)*d.weights[i] + float64(a.maxSkew-1)
	}
	return int64(math.Round(sum))
}

// key appends, for each constraint, the count on the row if its key is the host name. Otherwise it appends the domain,
// because prepare needs to know in how many domains the rows are.
func (spreadScorer) key(c *state, d *demand, r row, key []int32) []int32 {
	for i := range d.soft {
		a := &d.soft[i]
		domain := a.topo.At(r)
		if domain != census.NoDomain && a.isHost(c) {
			domain = 0
			if a.counter != nil {
				domain = a.counter.On(r)
			}
		}
		key = append(key, domain)
	}
	return key
}

// normalize gives the node with the smallest value scoreMax, and the others proportionally less. If there are no pods,
// every node gets scoreMax.
func (spreadScorer) normalize(scores []int64) {
	low, high := int64(math.MaxInt64), int64(0)
	for _, s := range scores {
		if s != leftOut {
			low, high = min(low, s), max(high, s)
		}
	}
	for i, s := range scores {
		switch {
		case s == leftOut:
			scores[i] = 0
		case high == 0:
			scores[i] = scoreMax
		default:
			scores[i] = scoreMax * (high + low - s) / high
		}
	}
}

// split separates the rows with pods that a constraint counts, and those without its key. Coarse topologies need no
// split: the division separates their domains already.
func (spreadScorer) split(c *state, d *demand, m rows.Mask, g *grouping) {
	for i := range d.soft {
		a := &d.soft[i]
		if g.isCoarse(a.topo) && !a.isHost(c) {
			continue
		}
		lacking := m.CopyOf(c.masks.before)
		c.masks.before = lacking
		if lacking.Less(a.topo.Placed); m.Meets(a.topo.Placed) { // otherwise all rows lack it
			g.moveAll(m, lacking)
		}
		if a.counter == nil {
			continue
		}
		step := g.step()
		a.counter.Count.Each(func(domain, count int32) {
			a.counter.Of.Topo.Each(domain, func(r row) {
				if m.Has(r) {
					g.move(step, r, int64(count))
				}
			})
		})
	}
}

// measureSpread computes, for soft constraints about topologies that are not coarse, in how many domains the rows in m
// are. Groups do not have this information.
func (c *state) measureSpread(d *demand, m rows.Mask) {
	d.spans = d.spans[:0]
	for i := range d.soft {
		a := &d.soft[i]
		if a.isHost(c) || c.masks.groups.isCoarse(a.topo) {
			d.spans = append(d.spans, unmeasured)
			continue
		}
		c.stamp++
		n := 0
		m.Both(a.topo.Placed, func(r row) {
			if d.scoresSpread(r) && c.isFresh(a.topo.Domain[r]) {
				n++
			}
		})
		d.spans = append(d.spans, n)
	}
}

// unmeasured is the span of a constraint for which groups are enough.
const unmeasured = -1
