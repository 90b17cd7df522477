package remedy

import (
	"slices"
	"strconv"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// podOptions returns changes of the pod that may end a rejection by node n. exact says that all of them are needed.
func podOptions(pod *scheduler.Pod, n *scheduler.Node, v *scheduler.Verdict) (of []Change, exact bool) {
	switch v.Rule {
	case scheduler.RuleUnschedulable:
		cordon := scheduler.Taint{Key: wellknown.TaintUnschedulable, Effect: scheduler.NoSchedule}
		return []Change{{Kind: Tolerate, Taint: cordon}}, true
	case scheduler.RuleTaints:
		for _, t := range untolerated(pod, n) {
			of = append(of, Change{Kind: Tolerate, Taint: t})
		}
		return of, true
	case scheduler.RuleNames, scheduler.RuleNodeAffinity:
		for _, l := range pod.NodeSelector {
			of = append(of, Change{Kind: DropSelector, Name: l.Key, Value: l.Value})
		}
		if pod.NodeAffinity != nil {
			of = append(of, Change{Kind: DropNodeAffinity})
		}
	case scheduler.RulePorts:
		for i, p := range pod.Ports {
			of = append(of, Change{Kind: DropPort, Name: p.Protocol, Value: p.IP, To: int64(p.Port), Index: i})
		}
	case scheduler.RuleResources:
		return requestsLowered(v.Short), true
	case scheduler.RuleSpread:
		for i, s := range pod.Spread {
			if s.Hard {
				of = append(of, Change{Kind: SoftenSpread, Name: s.TopologyKey, Index: i})
			}
		}
	case scheduler.RulePodAffinity:
		for i, t := range pod.AntiAffinity {
			of = append(of, Change{Kind: DropAntiAffinity, Name: t.TopologyKey, Index: i})
		}
		for i, t := range pod.Affinity {
			of = append(of, Change{Kind: DropAffinity, Name: t.TopologyKey, Index: i})
		}
	}
	return of, false
}

// untolerated returns the taints for which node n rejects the pod.
func untolerated(pod *scheduler.Pod, n *scheduler.Node) []scheduler.Taint {
	hard := selector.WithEffects(n.Taints, scheduler.NoSchedule, scheduler.NoExecute)
	return slices.DeleteFunc(hard, func(t scheduler.Taint) bool { return selector.Tolerate(pod.Tolerations, t) })
}

// requestsLowered returns each request that is too large, lowered to what is free. nil: no lower request helps.
func requestsLowered(short []scheduler.Shortage) (of []Change) {
	for _, s := range short {
		if s.Resource == scheduler.Pods {
			return nil
		}
		of = append(of, requestLowered(s))
	}
	return of
}

func requestLowered(s scheduler.Shortage) Change {
	return Change{Kind: LowerRequest, Name: s.Resource, From: s.Asked, To: max(s.Free(), 0)}
}

// podBound returns the least that a change of the pod costs which ends a rejection. may is false if none does.
func podBound(rule scheduler.RuleSet, short []scheduler.Shortage) (least cost, may bool) {
	switch rule {
	case scheduler.RuleUnschedulable:
		return cost{rules: 1, weight: weightTolerateCondition}, true
	case scheduler.RuleTaints:
		return cost{rules: 1, weight: weights[Tolerate]}, true
	case scheduler.RuleNames:
		return cost{rules: 1, weight: weights[DropNodeAffinity]}, true
	case scheduler.RuleNodeAffinity:
		return cost{rules: 1, weight: weights[DropSelector]}, true
	case scheduler.RulePorts:
		return cost{rules: 1, weight: weights[DropPort]}, true
	case scheduler.RuleResources:
		least.rules = 1
		for _, s := range short {
			if s.Resource == scheduler.Pods {
				return cost{}, false
			}
			c := requestLowered(s)
			least.add(&c)
		}
		return least, len(short) > 0
	case scheduler.RuleSpread:
		return cost{rules: 1, weight: weights[SoftenSpread]}, true
	case scheduler.RulePodAffinity:
		return cost{rules: 1, weight: weights[DropAntiAffinity]}, true
	}
	return cost{}, false
}

// nodeOptions returns changes of node n that may end a rejection. exact says that all of them are needed.
func nodeOptions(pod *scheduler.Pod, n *scheduler.Node, v *scheduler.Verdict) (of []Change, exact bool) {
	switch v.Rule {
	case scheduler.RuleUnschedulable:
		return []Change{{Kind: Uncordon}}, true
	case scheduler.RuleTaints:
		for _, t := range untolerated(pod, n) {
			switch {
			case t.Key == wellknown.TaintUnschedulable && n.Unschedulable: // it goes with the cordon
			case isCondition(t):
				of = append(of, Change{Kind: EndCondition, Taint: t})
			default:
				of = append(of, Change{Kind: RemoveTaint, Taint: t})
			}
		}
	case scheduler.RuleNodeAffinity:
		return labelsFor(pod, n), false
	case scheduler.RuleResources:
		return roomMade(v.Short), true
	}
	return of, true
}

// roomMade returns what must be free on the node, or what it must have if it is too small for the pod alone.
func roomMade(short []scheduler.Shortage) (of []Change) {
	for _, s := range short {
		of = append(of, roomOf(s))
	}
	return of
}

func roomOf(s scheduler.Shortage) Change {
	if s.Asked > s.Allocatable {
		return Change{Kind: GrowNode, Name: s.Resource, From: s.Allocatable, To: s.Requested + s.Asked}
	}
	return Change{Kind: FreeResource, Name: s.Resource, From: s.Free(), To: s.Asked}
}

// nodeBound returns the least that a change of the node costs which ends a rejection. may is false if none does.
func nodeBound(rule scheduler.RuleSet, short []scheduler.Shortage) (least cost, may bool) {
	switch rule {
	case scheduler.RuleUnschedulable:
		return cost{rules: 1, weight: weights[Uncordon]}, true
	case scheduler.RuleTaints:
		return cost{rules: 1, weight: weights[RemoveTaint]}, true
	case scheduler.RuleNodeAffinity:
		return cost{rules: 1, weight: weights[SetLabel]}, true
	case scheduler.RuleResources:
		least.rules = 1
		for _, s := range short {
			c := roomOf(s)
			least.add(&c)
		}
		return least, true
	}
	return cost{}, false
}

// given are labels that say what a node is. Nobody sets them to let a pod in.
var given = []string{wellknown.LabelHostname, wellknown.LabelZone, wellknown.LabelRegion, wellknown.LabelZoneBeta,
	wellknown.LabelRegionBeta, "kubernetes.io/arch", "kubernetes.io/os", "node.kubernetes.io/instance-type"}

// labelsFor returns the fewest changes of labels with which node n has the pod's selector and matches one of its terms.
// nil: there are none, or they would change what is given.
func labelsFor(pod *scheduler.Pod, n *scheduler.Node) []Change {
	labels := map[string]string{}
	for _, l := range n.Labels {
		labels[l.Key] = l.Value
	}
	var of []Change
	for _, l := range pod.NodeSelector {
		if value, has := labels[l.Key]; !has || value != l.Value {
			of = append(of, Change{Kind: SetLabel, Name: l.Key, Value: l.Value})
			labels[l.Key] = l.Value
		}
	}
	if pod.NodeAffinity != nil {
		var best []Change
		found := false
		for i := range *pod.NodeAffinity {
			more, can := labelsForTerm(&(*pod.NodeAffinity)[i], n.Name, labels)
			if can && (!found || len(more) < len(best)) {
				best, found = more, true
			}
		}
		if !found {
			return nil
		}
		of = append(of, best...)
	}
	if slices.ContainsFunc(of, func(c Change) bool { return slices.Contains(given, c.Name) }) {
		return nil
	}
	return of
}

// labelsForTerm returns the changes of labels with which a node matches a term. can is false if none do.
func labelsForTerm(t *scheduler.NodeTerm, name string, labels map[string]string) (of []Change, can bool) {
	if t.Broken || len(t.Labels)+len(t.Names) == 0 {
		return nil, false
	}
	for _, q := range t.Names {
		if slices.Contains(q.Values, name) != (q.Op == scheduler.In) {
			return nil, false
		}
	}
	for i := range t.Labels {
		q := &t.Labels[i]
		value, has := labels[q.Key]
		n, err := strconv.ParseInt(value, 10, 64)
		set, to := false, ""
		switch q.Op {
		case scheduler.In:
			if len(q.Values) == 0 {
				return nil, false
			}
			set, to = !has || !slices.Contains(q.Values, value), q.Values[0]
		case scheduler.Exists:
			set = !has
		case scheduler.Gt:
			set, to = !has || err != nil || n <= q.Bound, strconv.FormatInt(q.Bound+1, 10)
		case scheduler.Lt:
			set, to = !has || err != nil || n >= q.Bound, strconv.FormatInt(q.Bound-1, 10)
		default: // NotIn, DoesNotExist
			if has && (q.Op == scheduler.DoesNotExist || slices.Contains(q.Values, value)) {
				of = append(of, Change{Kind: RemoveLabel, Name: q.Key})
			}
		}
		if set {
			of = append(of, Change{Kind: SetLabel, Name: q.Key, Value: to})
		}
	}
	return of, true
}
