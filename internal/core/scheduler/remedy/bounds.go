package remedy

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// This file bounds the cost of a remedy from below by all rules that reject a node, not by the first only. So most
// nodes need not be tried; a try is several questions to the Placer.

// bounded are the rules that are counted. About the others nothing is assumed.
const bounded = scheduler.RuleUnschedulable | scheduler.RuleTaints | scheduler.RuleNames | scheduler.RuleNodeAffinity |
	scheduler.RulePorts | scheduler.RuleResources | scheduler.RuleSpread | scheduler.RulePodAffinity

// aboutNode are the rules whose changes may end a rejection by RuleSpread, too: they decide which nodes count.
const aboutNode = scheduler.RuleUnschedulable | scheduler.RuleTaints | scheduler.RuleNames | scheduler.RuleNodeAffinity

// leastCost returns a lower bound of the cost of a remedy for a node, and false if there is none.
type leastCost func(*scheduler.Rejection) (least cost, may bool)

// apart returns those of the rules that reject a node each of which needs a change of its own: no change for another of
// them ends its rejection.
func apart(r *scheduler.Rejection) scheduler.RuleSet {
	rules := r.Rules
	if rules&scheduler.RuleUnschedulable != 0 {
		rules &^= scheduler.RuleTaints // a cordon has a taint
	}
	if rules&scheduler.RuleNames != 0 {
		rules &^= scheduler.RuleNodeAffinity // names are a part of node affinity
	}
	if rules&aboutNode != 0 {
		rules &^= scheduler.RuleSpread &^ r.Final // a label that is missing is missing whichever nodes count
	}
	return rules
}

// leastPod is the leastCost of changes of the pod.
func leastPod(r *scheduler.Rejection) (least cost, may bool) { return leastOf(apart(r), r, podBound) }

// leastNode is the leastCost of changes of the node.
func leastNode(pod *scheduler.Pod) leastCost {
	sets := map[string]bool{} // labels that nodeOptions may change
	for _, l := range pod.NodeSelector {
		sets[l.Key] = true
	}
	if pod.NodeAffinity != nil {
		for _, term := range *pod.NodeAffinity {
			for _, q := range term.Labels {
				sets[q.Key] = true
			}
		}
	}
	spreads := slices.ContainsFunc(pod.Spread, func(s scheduler.SpreadConstraint) bool { return sets[s.TopologyKey] })
	return func(r *scheduler.Rejection) (least cost, may bool) {
		rules := apart(r)
		if r.Rules&scheduler.RuleNodeAffinity != 0 { // a label that is set may move the node to another domain
			rules &^= scheduler.RulePodAffinity
			if spreads {
				rules &^= scheduler.RuleSpread
			}
		}
		return leastOf(rules, r, nodeBound)
	}
}

// leastOf adds what each of rules needs at least.
func leastOf(rules scheduler.RuleSet, r *scheduler.Rejection, bound bound) (sum cost, may bool) {
	for rest := rules; rest != 0; rest &= rest - 1 {
		least, may := bound(rest&-rest, r.Short)
		if !may {
			return cost{}, false
		}
		sum = sum.plus(least)
	}
	return sum, true
}
