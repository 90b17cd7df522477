package placement

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/shrink"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/volumes"
)

// bids are what making room on rows would cost a demand, as far as they were asked. They are kept for demands of which
// the bounds say little, and a row is asked again when it has changed, or what budgets allow of the pods on it, or
// what a counter says of its domain.
type bids struct {
	worth    bool  // many rows were asked the last time
	rows     []bid // bidUnknown: to be asked; none: nothing is kept
	position int   // in cluster.changes
	budgeted int   // in cluster.allowances
	volumes  *volumes.Ask
	floors   []int32 // of each hard spread constraint, what floorOf was
	stale    bool    // a counter says something else of many rows
	heard    []*census.Counter

	hopeless   string // why none is good, as of position hopelessAt and for no pod in particular
	hopelessAt int
}

// bidsWorth is from how many rows that were asked for one preemption on bids are kept. Chosen: asking them takes about
// as long as catching up with what has happened between two preemptors on 5,000 nodes.
const bidsWorth = 64

// bestFirst is how many rows are asked in the order of their bounds, each found by a look at all; the others follow in
// their own order. Chosen: mostly the first is the cheapest, and a look at all bounds takes as long as to ask some rows.
const bestFirst = 8

// bidRowsMax bounds the rows of all bids together, at 40 bytes each. Chosen: 40 MiB, that is the bids of 200 demands on
// 5,000 nodes. With more that preempt in turn, all are made anew now and then.
const bidRowsMax = 1 << 20

// domainRowsMax is up to how many rows of a domain are asked again one by one when a counter says something else of it.
// Chosen: of larger domains there are few, and something happens in them all the time.
const domainRowsMax = 8

// cheapest finds the row on which making room for d costs least: noRow, there is none. Of the rows whose bids are not
// known those are asked only whose bounds are better than the best so far.
func (c *cluster) cheapest(d *demand, self PodID) (best row, cost bid) {
	own := row(noRow) // on which self is nominated: its bid is another than that of its like
	if w := c.wishes[self]; w != nil {
		own = w.Row
	}
	rows, least, kept := c.mayBid(d), c.boundsFor(d), c.keptBids(d)
	known := func(r row) bool { return kept != nil && kept[r].state != bidUnknown && r != own }
	best = noRow
	mine := c.turnOf(self)
	wins := func(r row, b *bid) bool {
		order := compareBids(b, &cost)
		return best == noRow || order < 0 || order == 0 && c.winsTie(r, best, mine)
	}
	if kept != nil {
		rows.Each(func(r row) {
			if known(r) && kept[r].state == bidGood && wins(r, &kept[r]) {
				best, cost = r, kept[r]
			}
		})
	}
	promises := func(r row) bool {
		x := &least[r]
		d.useless |= x.by
		return x.state == bidGood && !known(r) && wins(r, x)
	}
	asked := 0
	ask := func(r row) {
		asked++
		rows.Clear(r)
		b, _ := c.bidFor(d, self, r)
		d.useless |= b.by
		if kept != nil && r != own {
			kept[r] = b
		}
		if b.state == bidGood && wins(r, &b) {
			best, cost = r, b
		}
	}
	for next := row(0); asked < bestFirst && next != noRow; {
		next = noRow
		rows.Each(func(r row) {
			if !promises(r) {
				return
			}
			if next == noRow {
				next = r
			} else if order := compareBids(&least[r], &least[next]); order < 0 || order == 0 && c.winsTie(r, next, mine) {
				next = r
			}
		})
		if next != noRow {
			ask(next)
		}
	}
	rows.Each(func(r row) {
		if promises(r) {
			ask(r)
		}
	})
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
			f.narrow(c, d, rows)
		}
	}
	return rows
}

// keptBids returns what is known of the bids for d as things are now; nil: nothing is kept.
func (c *cluster) keptBids(d *demand) []bid {
	b := &d.bids
	if !b.worth || d.volumes != nil && len(d.volumes.Once) > 0 {
		return nil
	}
	if b.rows == nil {
		c.keepBids(d)
	}
	for len(b.rows) < len(c.name) {
		b.rows = append(b.rows, bid{})
	}
	again := func(r row) { b.rows[r] = bid{} }
	next, ok := c.changes.Since(b.position, again)
	budgeted, budgetsToo := c.allowances.Since(b.budgeted, again)
	b.position, b.budgeted = next, budgeted
	floors := make([]int32, 0, len(d.hard))
	for i := range d.hard {
		floors = append(floors, d.hard[i].floorOf())
	}
	if !ok || !budgetsToo || b.stale || b.volumes != d.volumes || !slices.Equal(b.floors, floors) {
		clear(b.rows)
	}
	b.stale, b.volumes, b.floors = false, d.volumes, floors
	return b.rows
}

// keepBids begins to keep the bids for d, and drops all others if there are too many.
func (c *cluster) keepBids(d *demand) {
	if (len(c.bidding)+1)*len(c.name) > bidRowsMax {
		for x := range c.bidding {
			c.dropBids(x)
		}
	}
	c.bidding[d] = true
	b := &d.bids
	b.position, b.budgeted = c.changes.End(), c.allowances.End()
	for i := range d.hard {
		b.hear(d, d.hard[i].counter)
	}
	for _, list := range [...][]*census.Counter{d.together, d.apart, d.shunnedBy} {
		for _, k := range list {
			b.hear(d, k)
		}
	}
}

// hear lets d, whose bids b are, hear what happens to a counter.
func (b *bids) hear(d *demand, k *census.Counter) {
	if k != nil && !slices.Contains(b.heard, k) {
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
// nobody any more, matters everywhere.
func (c *cluster) rebid(k *census.Counter, domain int32) {
	if len(listenersOf(k).bidders) == 0 {
		return
	}
	many := k.Of.Topo.Rows[domain] > domainRowsMax || k.Total == int64(k.At(domain))
	for _, d := range listenersOf(k).bidders {
		b := &d.bids
		if b.stale = b.stale || many; b.stale {
			continue
		}
		k.Of.Topo.Each(domain, func(r row) {
			if int(r) < len(b.rows) {
				b.rows[r] = bid{}
			}
		})
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
