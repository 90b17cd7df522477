package scheduler

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// A Preemption makes room for a pod on Node by evicting Victims, which are sorted by importance, the highest first.
type Preemption struct {
	Node       string
	Victims    []Victim
	Violations int // victims whose disruption budget does not allow it
}

// Victim is a pod to be evicted.
type Victim struct {
	ID              PodID
	Namespace, Name string
	// Assumed says that the Placer placed the pod and its bind is not finished. Instead of deleting the pod, the shell
	// must withdraw the bind (BindWithdrawn). If the pod is bound nevertheless, the preemptor is tried again, and may
	// then choose it as a bound victim.
	Assumed bool
}

// preemptCost is what preemption on one row costs. Costs are compared by the fields from violations on, in this order.
// Less is better, except for earliest.
type preemptCost struct {
	state      costState
	by         RuleSet // if state is costNone: a rule that rejects the pod whichever pods are evicted
	violations int32   // victims whose disruption budgets do not allow it
	highest    int32   // the highest priority of a victim
	// count is the number of victims.
	count    int32
	sum      int64 // of the victims' priorities, each raised above zero, so that fewer victims have a smaller sum
	earliest int64 // the earliest start of a victim with the highest priority, in nanoseconds since 1970
}

type costState uint8

const (
	costNone costState = iota // eviction does not help on this row
	costHelps
)

// priorityOffset is added to priorities that are summed, so that they are above zero. Upstream's MaxInt32+1.
const priorityOffset = math.MaxInt32 + 1

// preempt chooses the preemption for a pod that fits nowhere. If there is none, why is the reason.
func (c *cluster) preempt(d *demand, self PodID) (p *Preemption, why string) {
	if may, why := c.eligible(d, self); !may {
		return nil, why
	}
	if p = c.cheapestPreemption(d, self); p == nil {
		return nil, c.whyNoPreemption(d, self)
	}
	return p, ""
}

// eligible reports whether preemption is to be considered. If not, why is the reason.
func (c *cluster) eligible(d *demand, self PodID) (may bool, why string) {
	switch {
	case d.profile.NoPreemption:
		return false, ""
	case d.neverPreempts:
		return false, "not eligible due to preemptionPolicy=Never."
	case c.awaitsVictims(d, self):
		return false, "not eligible due to a terminating pod on the nominated node."
	case d.conflict || d.claimsProblem() != "":
		f := Failure{Nodes: c.seenCount, Reasons: map[string]int{reasonNotHelpful: c.seenCount}}
		return false, f.String()
	}
	return true, ""
}

// cheapestPreemption chooses the row where preemption costs least. The order is upstream's: fewest violated budgets,
// lowest highest priority, smallest sum of priorities, fewest victims, latest start of the oldest victim with the
// highest priority. Ties, which upstream breaks at random, are broken by winsTie. Unlike upstream, every row is
// considered. nil: there is none.
func (c *cluster) cheapestPreemption(d *demand, self PodID) *Preemption {
	if !c.anyBelow(d.priority) {
		return nil
	}
	best, cost := c.cheapest(d, self)
	if best == noRow {
		return nil
	}
	_, victims := c.costOn(d, self, best)
	return c.preemptionOf(best, &cost, victims)
}

func (c *cluster) preemptionOf(r row, b *preemptCost, victims []*placedPod) *Preemption {
	p := &Preemption{Node: c.name[r], Violations: int(b.violations)}
	for _, v := range victims {
		p.Victims = append(p.Victims, Victim{ID: v.id, Namespace: v.Who.Namespace, Name: v.name})
	}
	return p
}

// evictions returns a possible preemption for each node, in the order of names.
func (c *cluster) evictions(d *demand, self PodID) (out []Preemption) {
	for _, n := range c.byName() {
		if b, victims := c.costOn(d, self, n.row); b.state == costHelps {
			out = append(out, *c.preemptionOf(n.row, &b, victims))
		}
	}
	return out
}

func compareCosts(a, b *preemptCost) int {
	return cmp.Or(cmp.Compare(a.violations, b.violations), cmp.Compare(a.highest, b.highest), cmp.Compare(a.sum, b.sum),
		cmp.Compare(a.count, b.count), cmp.Compare(b.earliest, a.earliest))
}

// awaitsVictims reports whether the pod must wait because its victims are terminating on its nominated row. If the
// rejection there is final, it need not wait.
func (c *cluster) awaitsVictims(d *demand, self PodID) bool {
	w := c.nominations[self]
	if w == nil || !c.Present(w.Row) {
		return false
	}
	if c.verdict(d, self, w.Row).Final {
		return false
	}
	return slices.ContainsFunc(c.podsOn[w.Row], func(h *placedPod) bool {
		return h.class.priority < d.priority && h.Deleting && h.preempted || slices.Contains(w.victims, h.id)
	})
}

// mayEvict reports whether pods of the demand may preempt at all.
func (c *cluster) mayEvict(d *demand) bool {
	return !d.neverPreempts && !d.profile.NoPreemption && c.anyBelow(d.priority) && !d.conflict && d.claimsProblem() == ""
}

// costOn finds victims on row r for d. First all pods of lower priority are removed. Then each of them is put back if d
// still fits with it: first the pods whose eviction would violate a budget, then the others, each time the most
// important first.
func (c *cluster) costOn(d *demand, self PodID, r row) (b preemptCost, victims []*placedPod) {
	if !c.seen[r] {
		return b, nil
	}
	if !c.anyBelowOn(r, d.priority) {
		return b, nil
	}
	if c.affinityRejects(d, r) != "" {
		b.by = RulePodAffinity
		return b, nil
	}
	helps, by := c.mayHelp(d, self, r)
	if !helps {
		b.by = by
		return b, nil
	}
	defer c.tryWithout(d, r).end()
	if by := c.rejectedBy(d, self, r); by != nil {
		b.by = by.rule
		return b, nil
	}
	removed := append(c.removed[:0], c.evicting.pods...)
	c.removed = removed
	slices.SortFunc(removed, moreImportant)
	over := c.overBudget(removed)
	for _, violating := range [...]bool{true, false} {
		for i, h := range removed {
			if over[i] != violating {
				continue
			}
			if c.evicting.count(h, 1); c.feasible(d, self, r) {
				continue
			}
			c.evicting.count(h, -1)
			victims = append(victims, h)
			if violating {
				b.violations++
			}
		}
	}
	if len(victims) == 0 {
		return b, nil // it fits as it is
	}
	b = costOf(victims, b.violations)
	return b, victims
}

// mayHelp reports whether evictions can change the rejection on row r, and which rule rejects.
func (c *cluster) mayHelp(d *demand, self PodID, r row) (helps bool, by RuleSet) {
	if d.tables != nil && !d.looksAround() {
		if t := c.tablesOf(d); t.of[r] < nowhere {
			x := &t.rejections[nowhere-1-t.of[r]]
			return !x.final, x.by.rule
		}
	}
	c.withNominated(d, self, r, func() bool {
		f := c.firstRejecting(d.profile.filters, d, r)
		if f != nil {
			helps, by = !f.final(&c.state, d, r), f.rule
		}
		return f == nil
	})
	return helps, by
}

// affinityRejects returns why terms of inter-pod affinity reject d on row r whichever pods are evicted there: because
// of pods on other rows of a domain, because of pods that d may not evict, or because no pod matches the affinity.
// Empty: they do not. Counters answer this without a trial.
func (c *cluster) affinityRejects(d *demand, r row) (reason string) {
	terms := len(d.affinityPods) + len(d.antiAffinityPods) + len(d.antiAffinityOfOthers)
	if terms == 0 || !d.profile.hasRule(RulePodAffinity) {
		return ""
	}
	if !d.meetsAffinity(r) {
		return reasonAffinity // if all pods that match are on r, meetsAffinity is true
	}
	for _, k := range d.antiAffinityPods {
		if k.On(r) > 0 && c.countBeyond(d, k, r) > 0 {
			return reasonAntiAffinity
		}
	}
	for _, k := range d.antiAffinityOfOthers {
		if k.On(r) > 0 && c.countBeyond(d, k, r) > 0 {
			return reasonOthersAntiAffinity
		}
	}
	return ""
}

// countBeyond returns the count of k in the domain of row r without the pods on r that d may evict.
func (c *cluster) countBeyond(d *demand, k *census.Counter, r row) int32 {
	n := k.On(r)
	for _, h := range c.podsOn[r] {
		if h.class.priority >= d.priority {
			continue
		}
		if k.Of.What == census.CountPods {
			if h.Who.In(k.Of.Set) {
				n--
			}
			continue
		}
		for _, t := range h.Terms {
			if t.Counter == k {
				n -= t.Weight
			}
		}
	}
	return n
}

// moreImportant orders by priority, then by start time, then by ID.
func moreImportant(a, b *placedPod) int {
	return cmp.Or(
		cmp.Compare(b.class.priority, a.class.priority),
		cmp.Compare(startOf(a), startOf(b)),
		strings.Compare(string(a.id), string(b.id)),
	)
}

// startOf returns when h started; if it has not, a time after all others.
func startOf(h *placedPod) int64 {
	if h.started == 0 {
		return math.MaxInt64
	}
	return h.started
}

// anyBelowOn reports whether a pod on row r has a priority below p.
func (c *cluster) anyBelowOn(r row, p int32) bool {
	return slices.ContainsFunc(c.podsOn[r], func(h *placedPod) bool { return h.class.priority < p })
}

// anyBelow reports whether any pod on a row has a priority below p.
func (c *cluster) anyBelow(p int32) bool {
	for q := range c.atPriority {
		if q < p {
			return true
		}
	}
	return false
}

// Upstream's messages for nodes on which eviction does not help.
const (
	reasonNotHelpful = "Preemption is not helpful for scheduling"
	reasonNoVictims  = "No preemption victims found for incoming pod"
)

// whyNoPreemption returns, in upstream's words, why no eviction helps.
func (c *cluster) whyNoPreemption(d *demand, self PodID) string {
	if c.nominations[self] != nil {
		return c.whyNoPreemptionByRow(d, self)
	}
	if d.tables != nil && !c.anyBelow(d.priority) {
		return c.whyNoPreemptionByGroup(d, c.tablesOf(d))
	}
	if b := &d.costs; b.why == "" || b.whyAt != c.changes.End() || b.whyFor != d.volumes || d.looksAround() {
		var bounds *costBounds
		if c.anyBelow(d.priority) {
			bounds = c.boundsFor(d)
		}
		b.why = c.whyNoPreemptionIn(d, self, bounds)
		b.whyAt = c.changes.End()
		b.whyFor = d.volumes
	}
	return d.costs.why
}

// whyNoPreemptionByGroup is whyNoPreemption by tables. It may only be used if no pod has a lower priority.
func (c *cluster) whyNoPreemptionByGroup(d *demand, t *tables) string {
	reasons := map[string]int{}
	add := func(final bool, rows int32) {
		if rows == 0 {
			return
		}
		if final {
			reasons[reasonNotHelpful] += int(rows)
		} else {
			reasons[reasonNoVictims] += int(rows)
		}
	}
	for i := range t.rejections {
		add(t.rejections[i].final, t.rejections[i].rows)
	}
	for i := range t.groups {
		if g := &t.groups[i]; g.size > 0 {
			helps, _ := c.mayHelp(d, "", row(g.root))
			add(!helps, g.size)
		}
	}
	f := Failure{Nodes: c.seenCount, Reasons: reasons}
	return f.String()
}

func (c *cluster) whyNoPreemptionByRow(d *demand, self PodID) string {
	return c.whyNoPreemptionIn(d, self, nil)
}

// whyNoPreemptionIn is the general form. If bounds is not nil, most rows need no trial.
func (c *cluster) whyNoPreemptionIn(d *demand, self PodID, bounds *costBounds) string {
	if d.othersApply(RuleResources | RulePodAffinity) {
		bounds = nil
	}
	reasons := map[string]int{}
	exactly := c.boundsDemand(d)
	anybody := c.anyBelow(d.priority)
	useless := 0   // rows whose rejection no eviction can change
	noVictims := 0 // rows without a pod of lower priority
	c.eachRejected(d, self, func(r row, helps bool) {
		switch {
		case !helps:
			useless++
		case !anybody || !c.anyBelowOn(r, d.priority):
			noVictims++
		default:
			why, known := c.knownRejection(d, exactly, r, bounds)
			if !known {
				why = c.stillRejected(d, self, r)
			}
			for _, reason := range why {
				reasons[reason]++
			}
		}
	})
	if useless > 0 {
		reasons[reasonNotHelpful] += useless
	}
	if noVictims > 0 {
		reasons[reasonNoVictims] += noVictims
	}
	f := Failure{Nodes: c.seenCount, Reasons: reasons}
	return f.String()
}

// eachRejected calls see for every row, with the result of mayHelp. Rules are evaluated for sets of rows, except for
// rows with nominated pods.
func (c *cluster) eachRejected(d *demand, self PodID, see func(r row, helps bool)) {
	marks := c.updateMarks()
	left := marks.seen.CopyOf(c.rejected[0])
	left.Less(marks.nominated)
	rejected := c.rejected[1]
	for _, f := range d.profile.filters {
		if left.None() {
			break
		}
		rejected = left.CopyOf(rejected)
		f.narrow(&c.state, d, left)
		rejected.Less(left)
		rejected.Each(func(r row) { see(r, !f.final(&c.state, d, r)) })
	}
	left.Each(func(r row) { see(r, false) })
	c.rejected = [2]rows.Mask{left, rejected}
	marks.nominated.Both(marks.seen, func(r row) {
		helps, _ := c.mayHelp(d, self, r)
		see(r, helps)
	})
}

// knownRejection returns what stillRejected returns, without a trial, if bounds and counters are enough for that. They
// are for demands that only facts about the node, resources and inter-pod affinity can reject. For other demands,
// bounds must be nil. exactly is boundsDemand(d). The list is working space.
func (c *cluster) knownRejection(d, exactly *demand, r row, bounds *costBounds) (reasons []string, known bool) {
	if bounds == nil || len(c.nominated[r]) > 0 {
		return nil, false
	}
	reasons = c.known[:0]
	free := &bounds.free[r]
	if free.state == costHelps && !slices.Equal(exactly.requests, bounds.of.requests) {
		x := c.freeBoundOn(exactly, r)
		free = &x
	}
	if free.state == costHelps {
		reason := c.affinityRejects(d, r)
		// pods on this row that match its affinity may be among those that are evicted
		if reason == "" || reason != reasonAffinity && len(d.affinityPods) > 0 {
			return nil, false
		}
		reasons = append(reasons, reason)
	} else {
		all := c.belowOn(d, r)
		if !FitsOneMore(c.podCount[r]-int64(len(all)), c.podsMax[r]) {
			reasons = append(reasons, reasonTooMany)
		}
		for _, q := range exactly.requests {
			lack := c.lack(r, q)
			for _, h := range all {
				lack -= h.class.takes(q.column)
			}
			if lack > 0 {
				reasons = append(reasons, c.columns.all[q.column].insufficient)
			}
		}
	}
	c.known = reasons
	return reasons, true
}

// stillRejected returns why d does not fit on row r even without the pods of lower priority.
func (c *cluster) stillRejected(d *demand, self PodID, r row) []string {
	defer c.tryWithout(d, r).end()
	return c.verdict(d, self, r).Reasons
}

// tryWithout begins a trial of row r without the pods of lower priority than d.
func (c *cluster) tryWithout(d *demand, r row) *trial {
	t := &c.evicting
	t.begin(&c.state, d)
	for _, h := range c.podsOn[r] {
		if h.class.priority < d.priority {
			t.count(h, -1)
		}
	}
	return t
}
