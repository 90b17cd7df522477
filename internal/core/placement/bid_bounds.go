package placement

import (
	"cmp"
	"slices"
	"strconv"
)

// bidBounds say of every row what an eviction for pods of one priority that ask for the same may cost at best: what
// resources make necessary, and budgets that allow nothing. All rules besides and nominated pods can only make it dearer.
// So of many rows the few are asked in full that could be cheapest, and pods that differ in all else share the bounds.
// They are kept, and worked out again where pods came or went, or their budgets allow some disruption or no longer.
type bidBounds struct {
	of       *demand
	position int    // in cluster.changes
	budgeted int    // in cluster.allowances
	used     uint64 // when they were asked last, in decisions
	rows     []bid  // by row; bidNone: no eviction makes room there
}

// boundsRowsMax bounds the rows of all bounds together, at 40 bytes each; boundsMin is their smallest number. One more,
// and the half asked longest ago is dropped. Chosen: 40 MiB, that is 20 vectors of requests on 50,000 nodes. With more
// in turn each is made anew, at about 0.2 microseconds a node.
const (
	boundsRowsMax = 1 << 20
	boundsMin     = 4
)

// boundsFor returns the bounds for d as things are now.
func (c *cluster) boundsFor(d *demand) []bid {
	key := d.fitKey + strconv.Itoa(int(d.priority))
	b := c.bounds[key]
	if b == nil {
		if len(c.bounds) >= max(boundsRowsMax/max(len(c.name), 1), boundsMin) {
			c.dropBounds()
		}
		b = &bidBounds{position: -1, budgeted: -1, of: &demand{class: &class{profile: d.profile, priority: d.priority}}}
		for _, q := range d.requests {
			if !d.profile.ignores(c.columns.all[q.column].resource) {
				b.of.requests = append(b.of.requests, q)
			}
		}
		c.bounds[key] = b
	}
	b.used = c.decisions
	if n := len(c.name) - len(b.rows); n > 0 {
		b.rows = append(b.rows, make([]bid, n)...)
	}
	again := func(r row) { b.rows[r] = c.boundOn(b.of, r) }
	if b.position = c.catchUp(&c.changes, b.position, again); b.budgeted >= 0 {
		b.budgeted = c.catchUp(&c.allowances, b.budgeted, again)
	} else {
		b.budgeted = c.allowances.End() // all rows are fresh
	}
	return b.rows
}

func (c *cluster) dropBounds() {
	uses := make([]uint64, 0, len(c.bounds))
	for _, b := range c.bounds {
		uses = append(uses, b.used)
	}
	slices.Sort(uses)
	for key, b := range c.bounds {
		if b.used <= uses[len(uses)/2] {
			delete(c.bounds, key)
		}
	}
}

// boundOn is no larger than what bidFor finds on row r for any demand that asks for what d does.
func (c *cluster) boundOn(d *demand, r row) bid {
	if !c.seen[r] {
		return bid{state: bidNone}
	}
	all, allowed := c.below[:0], c.allowed[:0]
	for _, h := range c.held[r] {
		if h.class.priority < d.priority {
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b *held) int { return cmp.Compare(a.class.priority, b.class.priority) })
	for _, h := range all {
		if !h.isSpent() {
			allowed = append(allowed, h)
		}
	}
	c.below, c.allowed = all, allowed
	if len(all) == 0 {
		return bid{state: bidNone}
	}
	if last, count, enough := c.fewestOf(d, r, allowed); enough {
		return boundOf(allowed, last, count)
	}
	last, count, enough := c.fewestOf(d, r, all)
	if !enough {
		return bid{state: bidNone, by: RuleResources}
	}
	b := boundOf(all, last, count)
	b.violations = int32(c.fewestSpent(d, r, all))
	return b
}

// boundOf is the bound where so many of pods, which are in order of priority, have to leave, and at least up to one.
func boundOf(pods []*held, last, count int) bid {
	b := bid{state: bidGood, highest: pods[last].class.priority, count: int32(count)}
	b.sum = int64(b.highest) + priorityLift
	for _, h := range pods[:count-1] {
		b.sum += int64(h.class.priority) + priorityLift
	}
	for _, h := range pods {
		if h.class.priority == b.highest {
			b.earliest = max(b.earliest, startOf(h))
		}
	}
	return b
}

// isSpent reports whether a budget of h allows no disruption.
func (h *held) isSpent() bool {
	return slices.ContainsFunc(keptWith(h.Who).budgets, func(b *budget) bool { return b.left() <= 0 && !b.counts(h) })
}

// fewestOf finds how many of pods, which are in order of priority, have to leave row r at least for the resources that
// d asks for, and up to which of them; enough: that helps.
func (c *cluster) fewestOf(d *demand, r row, pods []*held) (last, count int, enough bool) {
	if len(pods) == 0 {
		return 0, 0, false
	}
	count = 1
	if !d.profile.asksAbout(RuleResources) {
		return last, count, true
	}
	if lack := c.podsHeld[r] + 1 - c.podsMax[r]; lack > 1 {
		if lack > int64(len(pods)) {
			return last, count, false
		}
		last, count = int(lack)-1, int(lack)
	}
	for _, q := range d.requests {
		lack, freed := c.lack(r, q), int64(0)
		for i := 0; freed < lack; i++ {
			if i == len(pods) {
				return last, count, false
			}
			freed += pods[i].class.takes(q.column)
			last = max(last, i)
		}
	}
	for _, q := range d.requests {
		lack, most := c.lack(r, q), int64(0)
		if lack <= 0 {
			continue
		}
		for _, h := range pods {
			if h.class.priority <= pods[last].class.priority {
				most = max(most, h.class.takes(q.column))
			}
		}
		count = max(count, int((lack+most-1)/most)) // if each freed as much as the largest
	}
	return last, count, true
}

// fewestSpent is how many pods have to leave at least whose budgets allow it not, where those that may are not enough.
func (c *cluster) fewestSpent(d *demand, r row, pods []*held) (count int) {
	count = 1
	for _, q := range d.requests {
		lack, most := c.lack(r, q), int64(0)
		for _, h := range pods {
			if takes := h.class.takes(q.column); h.isSpent() {
				most = max(most, takes)
			} else {
				lack -= takes
			}
		}
		if lack > 0 {
			count = max(count, int((lack+most-1)/most))
		}
	}
	return count
}

// lack is how much of a resource is missing on row r for a pod that requests q; zero or less: nothing.
func (c *cluster) lack(r row, q request) int64 {
	return q.value - (c.columns.has(q.column, r) - c.columns.takes(q.column, r))
}

// takes is what a pod of class k takes from a column.
func (k *class) takes(column int) int64 {
	for _, q := range k.requests {
		if q.column == column {
			return q.value
		}
	}
	return 0
}
