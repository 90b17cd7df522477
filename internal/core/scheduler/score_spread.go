package scheduler

import (
	"math"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// spreadScorer prefers domains with few pods that soft spread constraints count.
type spreadScorer struct{}

func (spreadScorer) about() scoring {
	return scoring{plugin: "PodTopologySpread", weight: 2, reads: podFields{"Spread", "Namespace", "Labels", "Owner", "NodeSelector", "NodeAffinity", "Tolerations"}}
}

func (spreadScorer) applies(d *demand) bool { return len(d.soft) > 0 }

// leftOut is the raw score of a node that lacks the key of a soft constraint: it takes no part and ends with 0.
const leftOut = -1

// prepare weighs the constraints by how many domains the feasible nodes lie in, so that the few pods of many small
// domains count as much as the many of a few large ones. For the host name the domains are the nodes.
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
			case domain == census.NoDomain:
				missing = true // to upstream the absent label is a domain like any other
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

func (a *spreadAsk) isHost(c *state) bool { return a.key == c.hostKey }

// isFresh reports whether the domain has not been asked about since the stamp last changed.
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

// scoresSpread reports whether row r takes part: it has all the keys, or need not have them.
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

// raw sums, over the constraints whose key the node has, the weighted number of pods in its domain. Less is
// better.
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

// key: for the host name the count on the row, else the domain: how many there are matters too.
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

// normalize turns fewest into scoreMax and most into what is left of it in proportion. Without pods anywhere
// everyone gets scoreMax.
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

// split tells the rows apart that have pods that a constraint counts, or lack its key. Coarse topologies
// divide the rows already.
func (spreadScorer) split(c *state, d *demand, m rows.Mask, g *grouping) {
	for i := range d.soft {
		a := &d.soft[i]
		if g.isCoarse(a.topo) && !a.isHost(c) {
			continue
		}
		lacking := m.CopyOf(c.survey.before)
		c.survey.before = lacking
		if lacking.Less(a.topo.Placed); m.Meets(a.topo.Placed) { // else all lack it
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

// measureSpread counts, for the soft constraints about many small domains, in how many the rows in m lie: groups do not
// tell.
func (c *state) measureSpread(d *demand, m rows.Mask) {
	d.spans = d.spans[:0]
	for i := range d.soft {
		a := &d.soft[i]
		if a.isHost(c) || c.survey.groups.isCoarse(a.topo) {
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

// unmeasured is the span of a constraint whose domains the groups tell apart.
const unmeasured = -1
