package placement

import (
	"math"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/shrink"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A Budget is a PodDisruptionBudget: how many of the pods it selects may still be disrupted.
type Budget struct {
	Namespace, Name string
	Selector        LabelSelector
	Allowed         int32
	Disrupted       []string // names of pods whose disruption is counted already
}

// budget is a Budget with the victims that were chosen and that its status does not count yet.
type budget struct {
	Budget
	means   *census.Aim // the pods it selects; it is listed nowhere
	charged map[PodID]*charge

	// While overBudget looks at a row: what remains, if asked is its turn.
	remains int32
	asked   uint64
}

// charge is what one victim takes from a budget: until the victim will not be evicted after all; or, once it was seen
// to be deleted, until the budget's status is seen again, which has counted it then. A status that names the pod among
// its disrupted ones has, too.
type charge struct {
	by     PodID // the preemptor
	name   string
	ending bool // the victim was seen to be deleted
}

// chargeMax is how long a charge lasts at most after its victim was seen to be deleted: the status of a budget stays as
// it is if the victim was not ready. Upstream's disruption controller waits as long for a pod that it counts as
// disrupted (DeletionTimeout, 2 minutes).
const chargeMax = 2 * time.Minute

// left is how many pods may still be disrupted.
func (b *budget) left() int32 { return b.Allowed - int32(len(b.charged)) }

// counts reports whether the disruption of h is counted already.
func (b *budget) counts(h *held) bool {
	return len(b.charged) > 0 && b.charged[h.id] != nil || slices.Contains(b.Disrupted, h.name)
}

// budgets are all of them. An identity knows those that select its pods.
type budgets struct {
	in     map[string]*budgetList // by namespace
	asked  uint64                 // by overBudget
	ending []ending               // the first first
}

// ending is a charge that ends at an instant, if it has not before.
type ending struct {
	of     *budget
	id     PodID
	charge *charge
	at     unit.Instant
}

// budgetList holds the budgets of a namespace. One that demands one of some values of a label is found by each.
type budgetList struct {
	byName  map[string]*budget
	byLabel map[Label][]*budget
	others  []*budget
}

func newBudgets() budgets { return budgets{in: map[string]*budgetList{}} }

// at returns a budget, nil if there is none of that name.
func (b *budgets) at(namespace, name string) *budget {
	if list := b.in[namespace]; list != nil {
		return list.byName[name]
	}
	return nil
}

// setBudget replaces what is known of a budget.
func (c *cluster) setBudget(of Budget) {
	b := c.budgets.at(of.Namespace, of.Name)
	if b != nil && !b.Selector.Equal(&of.Selector) {
		c.removeBudget(of.Namespace, of.Name)
		b = nil
	}
	if b == nil {
		c.addBudget(of)
		return
	}
	left := b.left()
	if !slices.Equal(b.Disrupted, of.Disrupted) {
		c.rebudget(b, 0, anyNumber)
	}
	b.Budget = of
	for id, x := range b.charged {
		if x.ending || slices.Contains(of.Disrupted, x.name) {
			c.uncharge(b, id)
		}
	}
	c.rebudget(b, left, b.left())
}

func (c *cluster) addBudget(of Budget) {
	pods := census.AimPart{Namespaces: []string{of.Namespace}, ByLabels: LabelSelector{Nothing: true}, Pods: of.Selector}
	b := &budget{Budget: of, means: &census.Aim{Parts: []census.AimPart{pods}}, charged: map[PodID]*charge{}}
	list := c.budgets.in[of.Namespace]
	if list == nil {
		list = &budgetList{byName: map[string]*budget{}, byLabel: map[Label][]*budget{}}
		c.budgets.in[of.Namespace] = list
	}
	list.byName[of.Name] = b
	if q := b.means.Demanded(); q == nil {
		list.others = append(list.others, b)
	} else {
		for _, value := range q.Values {
			label := Label{Key: q.Key, Value: value}
			list.byLabel[label] = append(list.byLabel[label], b)
		}
	}
	for _, who := range c.MayMean(b.means) {
		protect(who, b)
	}
	c.rebudget(b, anyNumber, b.left())
}

func (c *cluster) removeBudget(namespace, name string) {
	b := c.budgets.at(namespace, name)
	if b == nil {
		return
	}
	c.rebudget(b, 0, anyNumber)
	for _, who := range c.MayMean(b.means) {
		keptWith(who).budgets = shrink.Without(keptWith(who).budgets, b)
	}
	list := c.budgets.in[namespace]
	if delete(list.byName, name); len(list.byName) == 0 {
		delete(c.budgets.in, namespace)
		return
	}
	q := b.means.Demanded()
	if q == nil {
		list.others = shrink.Without(list.others, b)
		return
	}
	for _, value := range q.Values {
		label := Label{Key: q.Key, Value: value}
		if list.byLabel[label] = shrink.Without(list.byLabel[label], b); len(list.byLabel[label]) == 0 {
			delete(list.byLabel, label)
		}
	}
}

// protect notes that b selects the pods of who, if it does. As upstream has it, pods without labels are in no budget.
func protect(who *census.Identity, b *budget) {
	if len(who.Labels) > 0 && b.Selector.Matches(who.Labels) && !slices.Contains(keptWith(who).budgets, b) {
		keptWith(who).budgets = append(keptWith(who).budgets, b)
	}
}

// findBudgets finds the budgets that select the pods of a new identity.
func (c *cluster) findBudgets(who *census.Identity) {
	list := c.budgets.in[who.Namespace]
	if list == nil {
		return
	}
	for _, label := range who.Labels {
		for _, b := range list.byLabel[label] {
			protect(who, b)
		}
	}
	for _, b := range list.others {
		protect(who, b)
	}
}

// anyNumber is what no budget allows of pods.
const anyNumber = math.MaxInt32

// rebudget notes the rows for which it matters that b, which allowed so many disruptions, allows so many now: those
// that have more of its pods than the fewer of both.
func (c *cluster) rebudget(b *budget, before, now int32) {
	before, now = max(before, 0), max(now, 0)
	enough := min(before, now)
	switch {
	case before == now, int(enough) >= c.heldMost:
		return
	case len(c.bidding) == 0 && (enough > 0 || len(c.bounds) == 0): // bounds look whether anything is allowed
		return
	}
	on := map[row]int32{}
	for _, who := range c.MayMean(b.means) {
		if !slices.Contains(keptWith(who).budgets, b) {
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

// charge takes a victim that was chosen from what budgets allow. What is being deleted already is in their status, or
// about to be.
func (c *cluster) charge(preemptor, victim PodID) {
	h := c.pods[victim]
	if h == nil || h.Deleting {
		return
	}
	for _, b := range keptWith(h.Who).budgets {
		if x := b.charged[victim]; x != nil {
			x.by = preemptor
			continue
		}
		if b.counts(h) {
			continue
		}
		b.charged[victim] = &charge{by: preemptor, name: h.name}
		c.allowances.Add(h.Row)
		c.rebudget(b, b.left()+1, b.left())
	}
}

// discharge ends what h takes from budgets, if it was not seen to be deleted; by a preemptor, or by any if that is "".
func (c *cluster) discharge(h *held, by PodID) {
	for _, b := range keptWith(h.Who).budgets {
		if x := b.charged[h.id]; x != nil && !x.ending && (by == "" || by == x.by) {
			c.uncharge(b, h.id)
			c.rebudget(b, b.left()-1, b.left())
		}
	}
}

func (c *cluster) uncharge(b *budget, id PodID) {
	delete(b.charged, id)
	if h := c.pods[id]; h != nil {
		c.allowances.Add(h.Row)
	}
}

// chargeEnds notes that a victim was seen to be deleted, or is gone: its budgets will be seen to count that.
func (c *cluster) chargeEnds(now unit.Instant, id PodID) {
	h := c.pods[id]
	if h == nil {
		return
	}
	for _, b := range keptWith(h.Who).budgets {
		if x := b.charged[id]; x != nil && !x.ending {
			x.ending = true
			c.budgets.ending = append(c.budgets.ending, ending{of: b, id: id, charge: x, at: now.Add(chargeMax)})
		}
	}
}

// expireCharges ends charges that no status has counted in time.
func (c *cluster) expireCharges(now unit.Instant) {
	list := c.budgets.ending
	for len(list) > 0 && list[0].at <= now {
		if e := list[0]; e.of.charged[e.id] == e.charge {
			c.uncharge(e.of, e.id)
			c.rebudget(e.of, e.of.left()-1, e.of.left())
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
	w.victims, w.back = nil, nil
}

// overBudget tells which of pods, evicted in this order, some disruption budget no longer allows.
func (c *cluster) overBudget(pods []*held) []bool {
	spent := c.spent[:0]
	c.budgets.asked++
	for _, h := range pods {
		over := false
		for _, b := range keptWith(h.Who).budgets {
			if b.counts(h) {
				continue
			}
			if b.asked != c.budgets.asked {
				b.asked, b.remains = c.budgets.asked, b.left()
			}
			b.remains--
			over = over || b.remains < 0
		}
		spent = append(spent, over)
	}
	c.spent = spent
	return spent
}
