package scheduler

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// This file counts chosen victims against budgets until the status of the budgets shows them, and records which rows
// must be evaluated again when budgets allow another number of disruptions.

// A charge counts one victim against the budgets that select it. It ends if the victim is not evicted after all. Once
// the victim is seen to be deleted, the charge ends for each budget whose next status arrives, because that status
// counts the victim. It also ends for a budget whose status names the pod as disrupted.
type charge struct {
	by     PodID     // the preemptor
	name   string    // of the victim
	ending bool      // the victim was seen to be deleted
	on     rows.Mask // the numbers of the budgets; a mask, because there may be thousands of budgets and victims
	count  int       // how many budgets are in on
}

// expiry is a charge that ends at an instant, unless it has ended before.
type expiry struct {
	in     *budgetsIn
	id     PodID
	charge *charge
	at     unit.Instant
}

// chargeMax is how long a charge lasts at most after its victim was seen to be deleted. It is needed because the status
// of a budget does not change if the victim was not ready. Upstream's disruption controller waits that long for a pod
// that it counts as disrupted (DeletionTimeout, 2 minutes).
const chargeMax = 2 * time.Minute

// charge counts a chosen victim against its budgets. A pod that is being deleted already is in their status, or will be
// soon.
func (c *cluster) charge(preemptor, victim PodID) {
	h := c.pods[victim]
	if h == nil || h.Deleting {
		return
	}
	by := &dataOf(h.Who).budgets
	if by.in == nil {
		return
	}
	x := by.in.charged[victim]
	if x == nil {
		x = &charge{name: h.name}
	}
	x.by = preemptor
	before := x.count
	counted := by.count(h)
	change := c.changeAllowed(by.in)
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
	change.record()
}

// discharge ends the charge of h, unless h was seen to be deleted. If by is not empty, it ends only a charge by that
// preemptor.
func (c *cluster) discharge(h *placedPod, by PodID) {
	in := dataOf(h.Who).budgets.in
	if in == nil {
		return
	}
	if x := in.charged[h.id]; x != nil && !x.ending && (by == "" || by == x.by) {
		c.unchargeAll(in, h.id, x)
	}
}

// uncharge ends the charge of victim id against b.
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

// unchargeAll ends the charge of victim id against all budgets.
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
	change.record()
}

// statusSeen ends the charges that the new status of b counts.
func (c *cluster) statusSeen(b *budget) {
	if b.charges == 0 {
		return
	}
	for id, x := range b.of.in.charged {
		if x.on.Has(b.number) && (x.ending || b.names(x.name)) {
			c.uncharge(b, id, x)
		}
	}
}

// chargeEnds records that a victim was seen to be deleted, or is gone: the status of its budgets will count it.
func (c *cluster) chargeEnds(now unit.Instant, id PodID) {
	h := c.pods[id]
	if h == nil {
		return
	}
	in := dataOf(h.Who).budgets.in
	if in == nil {
		return
	}
	if x := in.charged[id]; x != nil && !x.ending {
		x.ending = true
		c.budgets.expiries = append(c.budgets.expiries, expiry{in: in, id: id, charge: x, at: now.Add(chargeMax)})
	}
}

// expireCharges ends charges that no status has counted in time.
func (c *cluster) expireCharges(now unit.Instant) {
	list := c.budgets.expiries
	for len(list) > 0 && list[0].at <= now {
		if e := list[0]; e.in.charged[e.id] == e.charge {
			c.unchargeAll(e.in, e.id, e.charge)
		}
		list[0], list = expiry{}, list[1:]
	}
	c.budgets.expiries = list
}

// dropCharges ends the charges of the victims chosen for w, because they will not be evicted for it. Charges of victims
// that are being deleted remain.
func (c *cluster) dropCharges(w *nominated) {
	for _, id := range w.victims {
		if h := c.pods[id]; h != nil {
			c.discharge(h, w.id)
		}
	}
	w.victims = nil
}

// selectionsMax is how many selections may change at once so that their affected rows are determined. If more change,
// all rows with pods of the namespace count as affected. Chosen: most pods are in one budget, and few are in several.
// It limits the cost of one victim that is in thousands of selections.
const selectionsMax = 8

// An allowedChange determines the rows that are affected when budgets of a namespace allow another number of
// disruptions, and records them in cluster.allowances.
type allowedChange struct {
	c    *cluster
	in   *budgetsIn
	some []selectionChange // the selections that change, up to selectionsMax
	many bool              // more selections change than some has
}

// selectionChange is the state of a selection before the change.
type selectionChange struct {
	of      *selection
	allowed int32 // leastLeft of the selection
	several bool  // it had more than one budget
}

func (c *cluster) changeAllowed(in *budgetsIn) *allowedChange { return &allowedChange{c: c, in: in} }

// of must be called before a budget of s changes.
func (x *allowedChange) of(s *selection) {
	switch {
	case x.many, slices.ContainsFunc(x.some, func(y selectionChange) bool { return y.of == s }):
	case len(x.some) == selectionsMax:
		x.many = true
	default:
		x.some = append(x.some, selectionChange{of: s, allowed: s.leastLeft(), several: len(s.budgets) > 1})
	}
	s.stale = true
}

// record must be called after all changes.
func (x *allowedChange) record() {
	switch {
	case !x.many:
		for _, was := range x.some {
			x.c.recordAffected(was)
		}
	case len(x.c.withCosts)+len(x.c.bounds) > 0:
		for _, who := range x.c.MayBeIn(x.in.allPods) {
			for _, h := range who.Pods {
				x.c.allowances.Add(h.Row)
			}
		}
	}
}

// recordAffected records the rows that are affected by the change of a selection: those with more of its pods than were
// or are allowed to be disrupted, whichever is less. A budget that counts a pod already does not limit that pod. On
// rows with such pods, the other budgets matter.
func (c *cluster) recordAffected(was selectionChange) {
	s := was.of
	before, now := max(was.allowed, 0), max(s.leastLeft(), 0)
	enough, several := min(before, now), was.several || len(s.budgets) > 1
	switch {
	case int(enough) >= c.podsMost:
	// bounds only depend on whether anything is allowed
	case len(c.withCosts) == 0 && (enough > 0 || len(c.bounds) == 0):
	case before != now, several && len(s.in.named) > 0:
		c.recordRows(s, enough)
	case several:
		for id := range s.in.charged {
			if h := c.pods[id]; h != nil {
				c.allowances.Add(h.Row)
			}
		}
	}
}

// recordAll records the rows with pods of s.
func (c *cluster) recordAll(s *selection) {
	if len(c.withCosts)+len(c.bounds) > 0 {
		c.recordRows(s, 0)
	}
}

// recordRows records the rows with more than enough pods of s.
func (c *cluster) recordRows(s *selection, enough int32) {
	on := map[row]int32{}
	for _, who := range c.MayBeIn(s.pods) {
		if !dataOf(who).budgets.which.Has(s.number) {
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
