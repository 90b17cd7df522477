package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// preemptCosts are what preemption on rows costs for a demand, as far as it was computed. They are kept for demands for
// which the bounds say little. A row's cost is recomputed when the row changed, when budgets allow another number of
// disruptions for its pods, or when a counter changed in its domain.
type preemptCosts struct {
	worth    bool              // many rows were evaluated the last time
	known    rows.Mask         // rows whose cost is known; nil: no costs are kept
	rows     []preemptCost     // by row; meaningful for rows in known
	position int               // in cluster.changes
	budgeted int               // in cluster.allowances
	volumes  *volumes.Needs    // the volumes for which they were computed
	floors   []int32           // the values of fewestTwo for which they were computed, for each hard spread constraint
	stale    bool              // a counter changed for too many rows
	counters []*census.Counter // the counters that notify this demand

	// why says why preemption helps on no row, for any pod of the demand. It was found at position whyAt of
	// cluster.changes, with the volumes whyFor. Empty: not known.
	why    string
	whyAt  int
	whyFor *volumes.Needs
}

// costsWorth is how many rows one preemption must evaluate before costs are kept for the demand. Chosen: evaluating
// that many takes about as long as bringing kept costs up to date between two preemptors on 5,000 nodes.
const costsWorth = 64

// costRowsMax limits the rows of all costs together, at 40 bytes each. Chosen: 40 MiB, which is the costs of 200
// demands on 5,000 nodes. If more demands preempt in turn, all costs are recomputed now and then.
const costRowsMax = 1 << 20

// nominatedMax is the largest number of pods nominated on a row whose cost is kept. Chosen: more than a node has room
// for.
const nominatedMax = 256

// fewestTwo returns the fewest pods of any domain, with which the count of a domain is compared, and what that number
// would be if the domain with the fewest pods had nominatedMax more. Pods nominated on a row count in its domain; then
// another domain may have the fewest.
func (a *countedSpread) fewestTwo() (fewest, next int32) {
	if a.counter == nil || a.counter.Coverage.Domains < int(a.minDomains) {
		return 0, -1
	}
	return a.counter.Fewest(), a.counter.NextFewest(nominatedMax)
}

// domainRowsMax is how many rows a domain may have so that only their costs are dropped when a counter changes in the
// domain. For larger domains, all costs are dropped. Chosen: few domains are larger, and their counts change often.
const domainRowsMax = 8

// cheapest returns the row where making room for d costs least, or noRow. Rows without a known cost are evaluated in
// the order of their bounds, until no bound is lower than the best cost. The row on which self is nominated is always
// evaluated, because bounds count self as nominated there.
func (c *cluster) cheapest(d *demand, self PodID) (best row, cost preemptCost) {
	own := row(noRow) // the row on which self is nominated: its cost differs from that of other pods like it
	if w := c.nominations[self]; w != nil {
		own = w.Row
	}
	bounds, open := c.boundsFor(d), c.mayPreemptOn(d)
	d.finalRules |= bounds.rejecting
	exactly := c.boundsDemand(d)
	rounded := !slices.Equal(exactly.requests, bounds.of.requests)
	best = noRow
	offset := c.tieOffset(self)
	wins := func(r row, b *preemptCost) bool {
		order := compareCosts(b, &cost)
		return best == noRow || order < 0 || order == 0 && c.winsTie(r, best, offset)
	}
	kept := c.keptCosts(d)
	if kept != nil {
		if own != noRow {
			kept.known.Clear(own)
		}
		kept.known.Both(open, func(r row) {
			if kept.rows[r].state == costHelps && wins(r, &kept.rows[r]) {
				best, cost = r, kept.rows[r]
			}
		})
		open.Less(kept.known)
	}
	asked, misled := 0, 0
	ask := func(r row) {
		asked++
		b, _ := c.costOn(d, self, r)
		d.finalRules |= b.by
		if kept != nil && r != own && len(c.nominated[r]) < nominatedMax {
			kept.keep(r, b)
		}
		if b.state == costHelps && wins(r, &b) {
			best, cost = r, b
		}
	}
	if own != noRow && open.Has(own) {
		open.Clear(own)
		ask(own)
	}
	next := c.boundOrder.begin(c, bounds, open, offset)
	for r := next.nextBelow(best, &cost); r != noRow; r = next.nextBelow(best, &cost) {
		if rounded {
			if x := c.boundOn(exactly, r); x.state != costHelps || !wins(r, &x) {
				d.finalRules |= x.by
				misled++
				continue
			}
		}
		ask(r)
	}
	c.countTooLow(d, misled)
	if kept == nil {
		d.costs.worth = asked >= costsWorth
	}
	return best, cost
}

// nodeRules are rules that depend only on facts about the node itself. Where one of them rejects, no eviction helps.
const nodeRules = RuleSupported | RuleAgent | RuleNames | RuleUnschedulable | RuleTaints | RuleNodeAffinity

// mayPreemptOn returns the rows that nodeRules do not reject. The mask is working space.
func (c *cluster) mayPreemptOn(d *demand) rows.Mask {
	rows := c.updateMarks().seen.CopyOf(c.preemptible)
	c.preemptible = rows
	for _, f := range d.profile.filters {
		if f.rule&nodeRules != 0 {
			f.narrow(&c.state, d, rows)
		}
	}
	return rows
}

// keptCosts returns the known costs of d, brought up to date; nil: no costs are kept.
func (c *cluster) keptCosts(d *demand) *preemptCosts {
	b := &d.costs
	if !b.worth || d.volumes != nil && len(d.volumes.Once) > 0 {
		return nil
	}
	if b.known == nil {
		c.keepCosts(d)
	}
	if n := len(c.name) - len(b.rows); n > 0 {
		b.rows = append(b.rows, make([]preemptCost, n)...)
	}
	next, ok := c.changes.Since(b.position, b.known.Clear)
	budgeted, budgetsToo := c.allowances.Since(b.budgeted, b.known.Clear)
	b.position, b.budgeted = next, budgeted
	floors := make([]int32, 0, 2*len(d.hard))
	for i := range d.hard {
		fewest, next := d.hard[i].fewestTwo()
		floors = append(floors, fewest, next)
	}
	if !ok || !budgetsToo || b.stale || b.volumes != d.volumes || !slices.Equal(b.floors, floors) {
		clear(b.known)
	}
	b.stale = false
	b.volumes = d.volumes
	b.floors = floors
	return b
}

func (b *preemptCosts) keep(r row, x preemptCost) { b.known, b.rows[r] = b.known.With(r), x }

// keepCosts begins to keep costs for d. It drops all others if there are too many.
func (c *cluster) keepCosts(d *demand) {
	if (len(c.withCosts)+1)*len(c.name) > costRowsMax {
		for x := range c.withCosts {
			c.dropCosts(x)
		}
	}
	c.withCosts[d] = true
	b := &d.costs
	b.known = rows.Mask{}
	b.position, b.budgeted = c.changes.End(), c.allowances.End()
	d.eachCounter(func(k *census.Counter) { b.listen(d, k) })
}

// listen makes counter k notify d, whose costs b are, of changes.
func (b *preemptCosts) listen(d *demand, k *census.Counter) {
	if !slices.Contains(b.counters, k) {
		b.counters = append(b.counters, k)
		listenersOf(k).withCosts = append(listenersOf(k).withCosts, d)
	}
}

// dropCosts drops the costs of d.
func (c *cluster) dropCosts(d *demand) {
	for _, k := range d.costs.counters {
		listenersOf(k).withCosts = shrink.Without(listenersOf(k).withCosts, d)
	}
	delete(c.withCosts, d)
	d.costs = preemptCosts{worth: d.costs.worth}
}

// costsChanged marks costs as stale because the count of k changed in a domain. The change matters for all rows if it
// decides whether there is any pod at all, or whether pods are in more than one domain. The latter matters because a
// pod with affinity to its own labels may be the first such pod where all others can be evicted.
func (c *cluster) costsChanged(k *census.Counter, domain int32) {
	if len(listenersOf(k).withCosts) == 0 {
		return
	}
	many := k.Of.Topo.Rows[domain] > domainRowsMax || k.Count.Len() <= 2
	for _, d := range listenersOf(k).withCosts {
		b := &d.costs
		if b.stale = b.stale || many; b.stale {
			continue
		}
		k.Of.Topo.Each(domain, b.known.Clear)
	}
}

// allCosts computes the cost of every row.
func (c *cluster) allCosts(d *demand, self PodID) []preemptCost {
	all := make([]preemptCost, len(c.name))
	for i := range all {
		all[i], _ = c.costOn(d, self, row(i))
	}
	return all
}
