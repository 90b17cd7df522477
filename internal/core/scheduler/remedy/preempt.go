package remedy

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// priorityMax is the highest priority that a user may define (HighestUserDefinablePriority, scheduling.k8s.io/v1).
const priorityMax = 1_000_000_000

// preemptions returns the preemption that the pod may make as it is, and that which it might make with a change.
func (w *World) preemptions(pod *scheduler.Pod) (out []Remedy) {
	changed := *pod
	var changes []Change
	made := w.placer.Preempt(*pod)
	if made == nil && pod.NeverPreempts {
		changes = []Change{{Kind: AllowPreemption}}
		changed = ChangePod(*pod, changes)
		made = w.placer.Preempt(changed)
	}
	if made == nil {
		if made, changed, changes = w.withPriority(pod, changes); made == nil {
			return nil
		}
	}
	r := Remedy{
		Of:         OfPreemption,
		Node:       made.Node,
		Changes:    changes,
		Victims:    made.Victims,
		Violations: made.Violations,
	}
	if len(changes) > 0 {
		r.Of, r.cost = OfPriority, cost{rules: 1, weight: weightPriority}
	}
	out = append(out, r)
	if b := w.withBudgets(&changed, made, changes); b != nil {
		out = append(out, *b)
	}
	return out
}

// Weights of changes that lead to a preemption (chosen): after all that ends no other pod.
const (
	weightPriority = 20
	weightBudget   = 21
)

// withPriority finds the lowest priority with which the pod may preempt others. changes are those that were made
// already.
func (w *World) withPriority(pod *scheduler.Pod, changes []Change) (
	made *scheduler.Preemption, changed scheduler.Pod, with []Change,
) {
	var above []int32 // the priorities of pods that it might preempt if its own was higher
	for _, p := range w.placer.Priorities() {
		if p >= pod.Priority && p < priorityMax {
			above = append(above, p)
		}
	}
	changed = *pod
	// The first that helps. The last that was tried with success is it.
	_, _ = slices.BinarySearchFunc(above, true, func(over int32, _ bool) int {
		more := append(slices.Clone(changes), Change{
			Kind: RaisePriority,
			From: int64(pod.Priority),
			To:   int64(over) + 1,
		})
		raised := ChangePod(*pod, more)
		preemption := w.placer.Preempt(raised)
		if preemption == nil {
			return -1
		}
		made, changed = preemption, raised
		with = more
		return 0
	})
	return made, changed, with
}

// roundsMax bounds how many more disruptions than one for each victim are tried. More may be needed, because a budget
// is spent on the most important pods of the node first, evicted or not. Chosen: a node has a few pods of one budget.
const roundsMax = 16

// withBudgets returns the disruptions that budgets must allow, so that the pod can preempt without violating one. nil:
// made violates none, or no such change was found.
func (w *World) withBudgets(pod *scheduler.Pod, made *scheduler.Preemption, changes []Change) *Remedy {
	if made.Violations == 0 {
		return nil
	}
	needs := w.disruptions(made)
	defer func() {
		for _, key := range slices.Sorted(maps.Keys(needs)) {
			w.placer.BudgetSeen(w.now, *w.budgets[key])
		}
	}()
	for more := range int32(roundsMax) {
		all := slices.Clone(changes)
		for _, key := range slices.Sorted(maps.Keys(needs)) {
			b := *w.budgets[key]
			if to := needs[key] + more; to > b.Allowed {
				all = append(all, Change{Kind: AllowDisruptions, Name: key, From: int64(b.Allowed), To: int64(to)})
				b.Allowed = to
			}
			w.placer.BudgetSeen(w.now, b)
		}
		if again := w.placer.Preempt(*pod); again != nil && again.Violations == 0 {
			return &Remedy{
				Of:      OfBudget,
				Node:    again.Node,
				Changes: all,
				Victims: again.Victims,
				cost:    cost{rules: 1, weight: weightBudget},
			}
		}
	}
	return nil
}

// disruptions returns how many of the victims each budget selects, without those whose disruption it counts already.
func (w *World) disruptions(made *scheduler.Preemption) map[string]int32 {
	needs := map[string]int32{}
	for _, v := range made.Victims {
		pod := w.placed[v.ID]
		for key, b := range w.budgets {
			if b.Namespace == pod.namespace && b.Selector.Matches(pod.labels) && !slices.Contains(b.Disrupted, pod.name) {
				needs[key]++
			}
		}
	}
	return needs
}
