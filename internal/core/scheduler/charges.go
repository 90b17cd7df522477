package scheduler

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// What victims take from budgets before the status of these says so, and which rows have to be asked again when budgets
// allow another number.

// charge is what one victim takes from the budgets that select it: until the victim will not be evicted after all; or,
// once it was seen to be deleted, until the status of the budget is seen again, which has counted it then. A status
// that names the pod among its disrupted ones has, too.
type charge struct {
	by     PodID // the preemptor
	name   string
	ending bool      // the victim was seen to be deleted
	on     rows.Mask // the budgets that are charged, by number: one bit for each, as there may be thousands of both
	count  int       // of these
}

// ending is a charge that ends at an instant, if it has not before.
type ending struct {
	in     *budgetsIn
	id     PodID
	charge *charge
	at     unit.Instant
}

// chargeMax is how long a charge lasts at most after its victim was seen to be deleted: the status of a budget stays as
// it is if the victim was not ready. Upstream's disruption controller waits as long for a pod that it counts as
// disrupted (DeletionTimeout, 2 minutes).
const chargeMax = 2 * time.Minute

// charge takes a victim that was chosen from what budgets allow. What is being deleted already is in their status, or
// about to be.
func (c *cluster) charge(preemptor, victim PodID) {
	h := c.pods[victim]
	if h == nil || h.Deleting {
		return
	}
	by := &keptWith(h.Who).budgets
	if by.in == nil {
		return
	}
	x := by.in.charged[victim]
	if x == nil {
		x = &charge{name: h.name}
	}
	x.by = preemptor
	before, counted, change := x.count, by.count(h), c.changeAllowed(by.in)
	for s := range by.each {
		change.of(s)
		for _, b := range s.budgets {
			if !counted || !b.counts(h) {
				b.charges++
				x.on = x.on.With(b.number)
				x.count++
			}
		}
	}
	if x.count > before {
		by.in.charged[victim] = x
		c.allowances.Add(h.Row)
	}
	change.note()
}

// discharge ends what h takes from budgets, if it was not seen to be deleted; by a preemptor, or by any if that is "".
func (c *cluster) discharge(h *held, by PodID) {
	in := keptWith(h.Who).budgets.in
	if in == nil {
		return
	}
	if x := in.charged[h.id]; x != nil && !x.ending && (by == "" || by == x.by) {
		c.unchargeAll(in, h.id, x)
	}
}

// uncharge ends what victim id takes from b.
func (c *cluster) uncharge(b *budget, id PodID, x *charge) {
	x.on.Clear(b.number)
	b.charges--
	if x.count--; x.count == 0 {
		delete(b.of.in.charged, id)
	}
	if h := c.pods[id]; h != nil {
		c.allowances.Add(h.Row)
	}
}

// unchargeAll ends what victim id takes from all budgets.
func (c *cluster) unchargeAll(in *budgetsIn, id PodID, x *charge) {
	change := c.changeAllowed(in)
	x.on.Each(func(number row) {
		b := in.numbers.of[number]
		change.of(b.of)
		b.charges--
	})
	delete(in.charged, id)
	if h := c.pods[id]; h != nil {
		c.allowances.Add(h.Row)
	}
	change.note()
}

// heed ends the charges that the status of b, which was just seen, has counted.
func (c *cluster) heed(b *budget) {
	if b.charges == 0 {
		return
	}
	for id, x := range b.of.in.charged {
		if x.on.Has(b.number) && (x.ending || b.names(x.name)) {
			c.uncharge(b, id, x)
		}
	}
}

// chargeEnds notes that a victim was seen to be deleted, or is gone: its budgets will be seen to count that.
func (c *cluster) chargeEnds(now unit.Instant, id PodID) {
	h := c.pods[id]
	if h == nil {
		return
	}
	in := keptWith(h.Who).budgets.in
	if in == nil {
		return
	}
	if x := in.charged[id]; x != nil && !x.ending {
		x.ending = true
		c.budgets.ending = append(c.budgets.ending, ending{in: in, id: id, charge: x, at: now.Add(chargeMax)})
	}
}

// expireCharges ends charges that no status has counted in time.
func (c *cluster) expireCharges(now unit.Instant) {
	list := c.budgets.ending
	for len(list) > 0 && list[0].at <= now {
		if e := list[0]; e.in.charged[e.id] == e.charge {
			c.unchargeAll(e.in, e.id, e.charge)
		}
		list[0], list = ending{}, list[1:]
	}
	c.budgets.ending = list
}

// spare notes that the victims chosen for w will not be evicted for it, but for those that are ending.
func (c *cluster) spare(w *nominated) {
	for _, id := range w.victims {
		if h := c.pods[id]; h != nil {
			c.discharge(h, w.id)
		}
	}
	w.victims = nil
}

// selectionsNoted is for how many selections that change at once the rows are found of which it matters. With more, all
// rows with pods of the namespace are noted. Chosen: pods are in one budget mostly, seldom in a few; it bounds what one
// victim costs that thousands select, each otherwise.
const selectionsNoted = 8

// An allowedChange notes the rows for which it matters that budgets of a namespace allow another number.
type allowedChange struct {
	c    *cluster
	in   *budgetsIn
	some []selectionChange // while they are not too many
	many bool
}

// selectionChange is what a selection was before.
type selectionChange struct {
	of      *selection
	allowed int32 // at least
	several bool  // of more than one budget
}

func (c *cluster) changeAllowed(in *budgetsIn) *allowedChange { return &allowedChange{c: c, in: in} }

// of is called before a budget of s changes.
func (x *allowedChange) of(s *selection) {
	switch {
	case x.many, slices.ContainsFunc(x.some, func(y selectionChange) bool { return y.of == s }):
	case len(x.some) == selectionsNoted:
		x.many = true
	default:
		x.some = append(x.some, selectionChange{of: s, allowed: s.leastLeft(), several: len(s.budgets) > 1})
	}
	s.stale = true
}

// note is called after all changes.
func (x *allowedChange) note() {
	switch {
	case !x.many:
		for _, was := range x.some {
			x.c.rebudget(was)
		}
	case len(x.c.bidding)+len(x.c.bounds) > 0:
		for _, who := range x.c.MayMean(x.in.everybody) {
			for _, h := range who.Pods {
				x.c.allowances.Add(h.Row)
			}
		}
	}
}

// rebudget notes the rows for which it matters what a selection was and is now: those that have more of its pods than
// the fewer of both allow. A budget that counts a pod already does not matter to it, so that on rows with such pods the
// others do.
func (c *cluster) rebudget(was selectionChange) {
	s := was.of
	before, now := max(was.allowed, 0), max(s.leastLeft(), 0)
	enough, several := min(before, now), was.several || len(s.budgets) > 1
	switch {
	case int(enough) >= c.heldMost:
	case len(c.bidding) == 0 && (enough > 0 || len(c.bounds) == 0): // bounds look whether anything is allowed
	case before != now, several && len(s.in.named) > 0:
		c.noteRows(s, enough)
	case several:
		for id := range s.in.charged {
			if h := c.pods[id]; h != nil {
				c.allowances.Add(h.Row)
			}
		}
	}
}

// noteAllOf notes the rows with pods of s.
func (c *cluster) noteAllOf(s *selection) {
	if len(c.bidding)+len(c.bounds) > 0 {
		c.noteRows(s, 0)
	}
}

// noteRows notes the rows that have more pods of s than enough.
func (c *cluster) noteRows(s *selection, enough int32) {
	on := map[row]int32{}
	for _, who := range c.MayMean(s.means) {
		if !keptWith(who).budgets.which.Has(s.number) {
			continue
		}
		for _, h := range who.Pods {
			if enough == 0 {
				c.allowances.Add(h.Row)
			} else if on[h.Row]++; on[h.Row] == enough+1 {
				c.allowances.Add(h.Row)
			}
		}
	}
}
