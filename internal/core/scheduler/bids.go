package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// bids are what making room on rows would cost a demand, as far as they were asked. They are kept for demands of which
// the bounds say little, and a row is asked again when it has changed, or what budgets allow of the pods on it, or
// what a counter says of its domain.
type bids struct {
	worth    bool      // many rows were asked the last time
	known    rows.Mask // nil: nothing is kept
	rows     []bid     // of those known
	position int       // in cluster.changes
	budgeted int       // in cluster.allowances
	volumes  *volumes.Ask
	floors   []int32 // of each hard spread constraint, what floorsOf were
	stale    bool    // a counter says something else of many rows
	heard    []*census.Counter

	hopeless    string // why none is good, as of position hopelessAt, with these volumes, and for no pod in particular
	hopelessAt  int
	hopelessFor *volumes.Ask
}

// bidsWorth is from how many rows that were asked for one preemption on bids are kept. Chosen: asking them takes about
// as long as catching up with what has happened between two preemptors on 5,000 nodes.
const bidsWorth = 64

// bidRowsMax bounds the rows of all bids together, at 40 bytes each. Chosen: 40 MiB, that is the bids of 200 demands on
// 5,000 nodes. With more that preempt in turn, all are made anew now and then.
const bidRowsMax = 1 << 20

// nominatedMax is up to how many pods are nominated on a row whose bid is kept. Chosen: more than a node has room for.
const nominatedMax = 256

// floorsOf is what a domain's count is compared with, and what it would be if the domain with the fewest had
// nominatedMax pods more: where pods are nominated, they count in the row's domain, and the fewest are in another.
func (a *spreadAsk) floorsOf() (fewest, next int32) {
	if a.counter == nil || a.counter.Ground.Domains < int(a.minDomains) {
		return 0, -1
	}
	return a.counter.Fewest(), a.counter.NextFewest(nominatedMax)
}

// domainRowsMax is up to how many rows of a domain are asked again one by one when a counter says something else of it.
// Chosen: of larger domains there are few, and something happens in them all the time.
const domainRowsMax = 8

// cheapest finds the row on which making room for d costs least: noRow, there is none. Rows whose bids are not known
// are asked in the order of their bounds, until none promises more than the best so far. The row on which self is
// nominated is asked in any case: bounds count self there.
func (c *cluster) cheapest(d *demand, self PodID) (best row, cost bid) {
	own := row(noRow) // on which self is nominated: its bid is another than that of its like
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

// rulesOfNodes are those that look at what a node says of itself, before any rule that looks at its pods: where one of
// them objects, no eviction helps.
const rulesOfNodes = RuleSupported | RuleAgent | RuleNames | RuleUnschedulable | RuleTaints | RuleNodeAffinity

// mayBid is the set of rows to which these rules do not object, in working space.
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

// keptBids returns what is known of the bids for d as things are now; nil: nothing is kept.
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
	b.stale, b.volumes, b.floors = false, d.volumes, floors
	return b
}

func (b *bids) keep(r row, x bid) { b.known, b.rows[r] = b.known.With(r), x }

// keepBids begins to keep the bids for d, and drops all others if there are too many.
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

// hear lets d, whose bids b are, hear what happens to a counter.
func (b *bids) hear(d *demand, k *census.Counter) {
	if !slices.Contains(b.heard, k) {
		b.heard = append(b.heard, k)
		listenersOf(k).bidders = append(listenersOf(k).bidders, d)
	}
}

// dropBids forgets what is known of the bids for d.
func (c *cluster) dropBids(d *demand) {
	for _, k := range d.bids.heard {
		listenersOf(k).bidders = shrink.Without(listenersOf(k).bidders, d)
	}
	delete(c.bidding, d)
	d.bids = bids{worth: d.bids.worth}
}

// rebid notes for those who keep bids that k counts another number in a domain. That there is somebody at all, or
// nobody any more, matters everywhere; and whether there is somebody in more than one domain matters in the other: who
// wants to join its like is the first of them where all the others can be evicted.
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

// allBids asks every row.
func (c *cluster) allBids(d *demand, self PodID) []bid {
	all := make([]bid, len(c.name))
	for i := range all {
		all[i], _ = c.bidFor(d, self, row(i))
	}
	return all
}
