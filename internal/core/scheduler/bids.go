package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// bids are what preemption on rows costs for a demand, as far as it was computed. They are kept for demands for which
// the bounds say little. A row's bid is recomputed when the row changed, when budgets allow another number of
// disruptions for its pods, or when a counter changed in its domain.
type bids struct {
	worth    bool              // many rows were evaluated the last time
	known    rows.Mask         // rows whose bid is known; nil: no bids are kept
	rows     []bid             // by row; meaningful for rows in known
	position int               // in cluster.changes
	budgeted int               // in cluster.allowances
	volumes  *volumes.Ask      // the volumes for which they were computed
	floors   []int32           // the values of floorsOf for which they were computed, for each hard spread constraint
	stale    bool              // a counter changed for too many rows
	heard    []*census.Counter // the counters that notify this demand

	// why no row has a good bid, as of position hopelessAt, with hopelessFor, and not because of one pod
	hopeless    string
	hopelessAt  int
	hopelessFor *volumes.Ask
}

// bidsWorth is how many rows must be evaluated for one preemption so that bids are kept. Chosen: evaluating that many
// takes about as long as applying the changes between two preemptors on 5,000 nodes.
const bidsWorth = 64

// bidRowsMax limits the rows of all bids together, at 40 bytes each. Chosen: 40 MiB, which is the bids of 200 demands
// on 5,000 nodes. If more demands preempt in turn, all bids are recomputed now and then.
const bidRowsMax = 1 << 20

// nominatedMax is the largest number of pods nominated on a row whose bid is kept. Chosen: more than a node has room
// for.
const nominatedMax = 256

// floorsOf returns what the count of a domain is compared with, and what that would be if the domain with the fewest
// pods had nominatedMax more. Nominated pods count in the domain of their row, so the fewest are in another domain.
func (a *spreadAsk) floorsOf() (fewest, next int32) {
	if a.counter == nil || a.counter.Ground.Domains < int(a.minDomains) {
		return 0, -1
	}
	return a.counter.Fewest(), a.counter.NextFewest(nominatedMax)
}

// domainRowsMax is the largest number of rows of a domain whose bids are dropped one by one when a counter changes in
// the domain. Chosen: there are few larger domains, and their counts change all the time.
const domainRowsMax = 8

// cheapest returns the row where making room for d costs least, or noRow. Rows without a known bid are evaluated in the
// order of their bounds, until no bound is lower than the best cost. The row on which self is nominated is always
// evaluated, because bounds count self as nominated there.
func (c *cluster) cheapest(d *demand, self PodID) (best row, cost bid) {
	own := row(noRow) // the row on which self is nominated: its bid differs from that of other pods like it
	if w := c.wishes[self]; w != nil {
		own = w.Row
	}
	bounds, open := c.boundsFor(d), c.mayBid(d)
	d.useless |= bounds.useless
	exactly := c.asBoundsSee(d)
	rounded := !slices.Equal(exactly.requests, bounds.of.requests)
	best = noRow
	mine := c.turnOf(self)
	wins := func(r row, b *bid) bool {
		order := compareBids(b, &cost)
		return best == noRow || order < 0 || order == 0 && c.winsTie(r, best, mine)
	}
	kept := c.keptBids(d)
	if kept != nil {
		if own != noRow {
			kept.known.Clear(own)
		}
		kept.known.Both(open, func(r row) {
			if kept.rows[r].state == bidGood && wins(r, &kept.rows[r]) {
				best, cost = r, kept.rows[r]
			}
		})
		open.Less(kept.known)
	}
	asked, misled := 0, 0
	ask := func(r row) {
		asked++
		b, _ := c.bidFor(d, self, r)
		d.useless |= b.by
		if kept != nil && r != own && len(c.nominated[r]) < nominatedMax {
			kept.keep(r, b)
		}
		if b.state == bidGood && wins(r, &b) {
			best, cost = r, b
		}
	}
	if own != noRow && open.Has(own) {
		open.Clear(own)
		ask(own)
	}
	next := c.byBound.begin(c, bounds, open, mine)
	for r := next.than(best, &cost); r != noRow; r = next.than(best, &cost) {
		if rounded {
			if x := c.boundOn(exactly, r); x.state != bidGood || !wins(r, &x) {
				d.useless |= x.by
				misled++
				continue
			}
		}
		ask(r)
	}
	c.wasMisled(d, misled)
	if kept == nil {
		d.bids.worth = asked >= bidsWorth
	}
	return best, cost
}

// rulesOfNodes are rules that depend only on facts about the node itself. Where one of them rejects, no eviction helps.
const rulesOfNodes = RuleSupported | RuleAgent | RuleNames | RuleUnschedulable | RuleTaints | RuleNodeAffinity

// mayBid returns the rows that these rules do not reject. The mask is working space.
func (c *cluster) mayBid(d *demand) rows.Mask {
	rows := c.look().seen.CopyOf(c.biddable)
	c.biddable = rows
	for _, f := range d.profile.filters {
		if f.rule&rulesOfNodes != 0 {
			f.narrow(&c.state, d, rows)
		}
	}
	return rows
}

// keptBids returns the known bids of d, brought up to date; nil: no bids are kept.
func (c *cluster) keptBids(d *demand) *bids {
	b := &d.bids
	if !b.worth || d.volumes != nil && len(d.volumes.Once) > 0 {
		return nil
	}
	if b.known == nil {
		c.keepBids(d)
	}
	if n := len(c.name) - len(b.rows); n > 0 {
		b.rows = append(b.rows, make([]bid, n)...)
	}
	next, ok := c.changes.Since(b.position, b.known.Clear)
	budgeted, budgetsToo := c.allowances.Since(b.budgeted, b.known.Clear)
	b.position, b.budgeted = next, budgeted
	floors := make([]int32, 0, 2*len(d.hard))
	for i := range d.hard {
		fewest, next := d.hard[i].floorsOf()
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

func (b *bids) keep(r row, x bid) { b.known, b.rows[r] = b.known.With(r), x }

// keepBids begins to keep bids for d. It drops all others if there are too many.
func (c *cluster) keepBids(d *demand) {
	if (len(c.bidding)+1)*len(c.name) > bidRowsMax {
		for x := range c.bidding {
			c.dropBids(x)
		}
	}
	c.bidding[d] = true
	b := &d.bids
	b.known = rows.Mask{}
	b.position, b.budgeted = c.changes.End(), c.allowances.End()
	d.eachCounter(func(k *census.Counter) { b.hear(d, k) })
}

// hear makes counter k notify d, whose bids b are, of changes.
func (b *bids) hear(d *demand, k *census.Counter) {
	if !slices.Contains(b.heard, k) {
		b.heard = append(b.heard, k)
		listenersOf(k).bidders = append(listenersOf(k).bidders, d)
	}
}

// dropBids drops the bids of d.
func (c *cluster) dropBids(d *demand) {
	for _, k := range d.bids.heard {
		listenersOf(k).bidders = shrink.Without(listenersOf(k).bidders, d)
	}
	delete(c.bidding, d)
	d.bids = bids{worth: d.bids.worth}
}

// rebid marks bids as stale because the count of k changed in a domain. If the change decides whether there is any pod
// at all, it matters for all rows. It also does if it decides whether pods are in more than one domain: a pod with
// affinity to its own kind may be the first of its kind where all others can be evicted.
func (c *cluster) rebid(k *census.Counter, domain int32) {
	if len(listenersOf(k).bidders) == 0 {
		return
	}
	many := k.Of.Topo.Rows[domain] > domainRowsMax || k.Count.Len() <= 2
	for _, d := range listenersOf(k).bidders {
		b := &d.bids
		if b.stale = b.stale || many; b.stale {
			continue
		}
		k.Of.Topo.Each(domain, b.known.Clear)
	}
}

// allBids computes the bid of every row.
func (c *cluster) allBids(d *demand, self PodID) []bid {
	all := make([]bid, len(c.name))
	for i := range all {
		all[i], _ = c.bidFor(d, self, row(i))
	}
	return all
}
