package scheduler

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
)

func (h *history) changeBudget() {
	b := Budget{
		Namespace: []string{"x", "y"}[h.rng.IntN(2)],
		Name:      []string{"b0", "b1"}[h.rng.IntN(2)],
		Allowed:   int32(h.rng.IntN(3)),
	}
	b.Selector.Requirements = []Requirement{{Key: "app", Op: In, Values: []string{[]string{"web", "db"}[h.rng.IntN(2)]}}}
	if id, ok := pick(h.rng, h.pods); ok && h.rng.IntN(4) == 0 {
		b.Disrupted = []string{string(id)}
	}
	if h.rng.IntN(5) == 0 {
		h.placer.BudgetGone(h.now, b.Namespace, b.Name)
	} else {
		h.placer.BudgetSeen(h.now, b)
	}
}

// checkBudgets compares budgets' pods and numbers with a fresh count, and checks that no charges remain for pods that
// are gone, or that are no victims.
func (h *history) checkBudgets() {
	c := h.placer.cluster
	for _, in := range c.budgets.in {
		h.checkCharges(in)
		for _, b := range in.byName {
			if in.numbers.of[b.number] != b || b.of.budgets[b.place] != b || !b.of.selector.Equal(&b.Selector) {
				h.t.Errorf("budget %s is not at its index", b.Name)
			}
		}
		for _, s := range in.bySelector {
			least := int32(anyNumber)
			for _, b := range s.budgets {
				least = min(least, b.left())
			}
			if len(s.budgets) == 0 || s.leastLeft() != least {
				h.t.Errorf("the strictest of %d budgets with one selector allows %d, recorded: %d", len(s.budgets), least,
					s.leastLeft())
			}
		}
	}
	for who := range c.Identities() {
		known := budgetsOf(who)
		for _, b := range allBudgets(c, who.Namespace) {
			if in := len(who.Labels) > 0 && b.Selector.Matches(who.Labels); in != slices.Contains(known, b) {
				h.t.Errorf("pods with labels %v are in budget %s: %v, recorded: %v", who.Labels, b.Name, in, !in)
			}
		}
	}
	for _, pods := range c.podsOn {
		h.checkOverBudget(pods)
	}
}

func allBudgets(c *cluster, namespace string) []*budget {
	if in := c.budgets.in[namespace]; in != nil {
		return slices.Collect(maps.Values(in.byName))
	}
	return nil
}

// budgetsOf returns the budgets that are recorded for the pods of who.
func budgetsOf(who *census.Identity) (all []*budget) {
	for s := range dataOf(who).budgets.each {
		all = append(all, s.budgets...)
	}
	return all
}

func (h *history) checkCharges(in *budgetsIn) {
	c := h.placer.cluster
	charges, named := map[*budget]int32{}, map[string]int{}
	for id, x := range in.charged {
		w, pod := c.nominations[x.by], c.pods[id]
		if !x.ending && (pod == nil || w == nil || !slices.Contains(w.victims, id)) {
			h.t.Errorf("budgets are charged for pod %s (%v) by %s, whose victims are %v", id, pod, x.by, w)
		}
		n := 0
		x.on.Each(func(number row) {
			n++
			b := in.numbers.of[number]
			charges[b]++
			if !x.ending && pod != nil && !slices.Contains(budgetsOf(pod.Who), b) {
				h.t.Errorf("budget %s is charged for pod %s, which it does not select", b.Name, id)
			}
		})
		if n != x.count || n == 0 {
			h.t.Errorf("pod %s is charged to %d budgets, recorded: %d", id, n, x.count)
		}
	}
	for _, b := range in.byName {
		if b.charges != charges[b] {
			h.t.Errorf("budget %s is charged for %d pods, recorded: %d", b.Name, charges[b], b.charges)
		}
		for _, pod := range b.Disrupted {
			named[pod]++
		}
	}
	if !maps.Equal(named, in.named) {
		h.t.Errorf("budgets name %v as disrupted, recorded: %v", named, in.named)
	}
}

// checkOverBudget compares overBudget with each budget's own numbers.
func (h *history) checkOverBudget(pods []*placedPod) {
	c := h.placer.cluster
	for range 2 { // in two orders
		left := map[*budget]int32{}
		for i, over := range c.overBudget(pods) {
			pod, want, spent := pods[i], false, false
			for _, b := range allBudgets(c, pod.Who.Namespace) {
				charge := b.of.in.charged[pod.id]
				selects := len(pod.Who.Labels) > 0 && b.Selector.Matches(pod.Who.Labels)
				if !selects || slices.Contains(b.Disrupted, pod.name) || charge != nil && charge.on.Has(b.number) {
					continue
				}
				if _, known := left[b]; !known {
					left[b] = b.left()
				}
				left[b]--
				want, spent = want || left[b] < 0, spent || b.left() <= 0
			}
			if over != want || pod.isProtected() != spent {
				h.t.Errorf("pod %s, victim number %d: over budget %v, protected %v; want %v, %v",
					pod.id, i, over, pod.isProtected(), want, spent)
			}
		}
		pods = slices.Clone(pods)
		slices.Reverse(pods)
	}
}
