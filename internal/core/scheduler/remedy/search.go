package remedy

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
)

// optionsMax bounds the changes of which the fewest are searched, one by one. Chosen: no pod of a sane author has more
// terms that one rule reads. Of more, all are proposed together.
const optionsMax = 32

// stepsMax bounds how many rejections one remedy may end. Chosen: twice the number of rules; each rule rejects once, or
// a second time because of nominated pods.
const stepsMax = 32

// remedies returns the smallest remedy of each side for a pod that fits nowhere, the smallest first.
func (w *World) remedies(
	pod *scheduler.Pod, all []scheduler.Verdict, rejections []scheduler.Rejection,
) (out []Remedy) {
	gates := gatesOf(pod)
	add := func(r *Remedy) {
		if r == nil {
			return
		}
		if len(gates) > 0 {
			r.Changes = append(slices.Clone(gates), r.Changes...)
			r.cost.rules++
		}
		out = append(out, *r)
	}
	if len(pod.Unsupported) > 0 {
		return nil // the core does not know all that the pod needs
	}
	for _, r := range w.preemptions(pod) {
		add(&r)
	}
	add(w.changedPod(pod, all, rejections))
	add(w.changedNode(pod, all, rejections))
	add(w.anotherNode(pod, all))
	slices.SortStableFunc(out, func(a, b Remedy) int { return a.cost.compare(b.cost) })
	return out
}

func gatesOf(pod *scheduler.Pod) (out []Change) {
	for _, g := range pod.Gates {
		out = append(out, Change{Kind: RemoveGate, Name: g})
	}
	return out
}

// An attempt makes changes for one node until that is feasible.
type attempt struct {
	// judge asks about the node with the changes made.
	judge func(changes []Change) scheduler.Verdict
	// options returns what may end the rejection v. exact says that all of it is needed; otherwise some of it may do.
	options func(v *scheduler.Verdict) (of []Change, exact bool)
	bound   bound
}

// run returns changes with which the node is feasible, if their cost is good enough. nil: there are none.
func (a *attempt) run(v scheduler.Verdict, enough func(cost) bool) (made []Change, sum cost) {
	for range stepsMax {
		if v.Plugin == "" {
			return made, sum
		}
		if least, may := a.bound(v.Rule, v.Short); may && !enough(sum.plus(least)) {
			return nil, cost{}
		}
		more, after := a.step(&v, made)
		if len(more) == 0 {
			return nil, cost{}
		}
		sum = sum.plus(costOf(more))
		if !enough(sum) {
			return nil, cost{}
		}
		made, v = append(made, more...), after
	}
	return nil, cost{}
}

// step returns the changes, besides those that were made, that end one rejection, and the verdict after them. nil: none
// do.
func (a *attempt) step(v *scheduler.Verdict, made []Change) (of []Change, after scheduler.Verdict) {
	of, exact := a.options(v)
	of = slices.DeleteFunc(of, func(c Change) bool { return slices.Contains(made, c) })
	if len(of) == 0 {
		return nil, after
	}
	ends := func(some []Change) bool {
		now := a.judge(append(slices.Clone(made), some...))
		if now.Rule == v.Rule {
			return false
		}
		after = now
		return true
	}
	if !exact && len(of) <= optionsMax {
		for i := range of {
			if ends(of[i : i+1]) {
				return of[i : i+1], after
			}
		}
	}
	if !ends(of) {
		return nil, after
	}
	if exact || len(of) > optionsMax {
		return of, after
	}
	for i := len(of) - 1; i >= 0; i-- {
		if fewer := slices.Delete(slices.Clone(of), i, i+1); ends(fewer) {
			of = fewer
		}
	}
	return of, after
}

// A bound returns the least that changes cost which end a rejection by a rule, and may be false if none does. short is
// the Verdict's.
type bound func(rule scheduler.RuleSet, short []scheduler.Shortage) (least cost, may bool)

// A try finds changes for the node of a verdict, if their cost is good enough. nil: there are none.
type try func(v *scheduler.Verdict, enough func(cost) bool) ([]Change, cost)

// candidate is a node with lower bounds of the cost of its remedy.
type candidate struct {
	at    int  // in the list of verdicts
	bound cost // of all rules that reject it
	first cost // of the first of them
	index int  // in the heap
}

// place orders nodes with equal costs.
func (c *candidate) place(other *candidate) int {
	if order := c.first.compare(other.first); order != 0 {
		return order
	}
	return cmp.Compare(c.at, other.at)
}

// compare orders nodes by their bounds, and then by their places.
func (c *candidate) compare(other *candidate) int {
	if order := c.bound.compare(other.bound); order != 0 {
		return order
	}
	return c.place(other)
}

// candidates returns the nodes that changes may help. least returns the bound of all rules that reject a node. The list
// is working space.
func (w *World) candidates(
	all []scheduler.Verdict, rejections []scheduler.Rejection, bound bound, least leastCost,
) []candidate {
	out := slices.Grow(w.room[:0], len(all))
	for i := range all {
		v := &all[i]
		first, may := bound(v.Rule, v.Short)
		whole := first
		if may && rejections[i].Rules != v.Rule { // others reject it, too
			whole, may = least(&rejections[i])
		}
		if may {
			out = append(out, candidate{at: i, bound: whole, first: first})
		}
	}
	w.room = out
	return out
}

// cheapest tries the nodes in their order, until no other can be cheaper. Of nodes with equal costs, the first by place
// is found, in whatever order they are tried.
func cheapest(nodes []candidate, all []scheduler.Verdict, try try) (best *Remedy) {
	if len(nodes) == 0 {
		return nil
	}
	var from, n *candidate // of best, and the one that is tried
	enough := func(sum cost) bool {
		if best == nil {
			return true
		}
		order := sum.compare(best.cost)
		return order < 0 || order == 0 && n.place(from) < 0
	}
	attempt := func() {
		v := &all[n.at]
		if made, sum := try(v, enough); len(made) > 0 {
			best, from = &Remedy{Node: v.Node, Changes: made, cost: sum}, n
		}
	}
	n = &nodes[0]
	for i := range nodes {
		if nodes[i].compare(n) < 0 {
			n = &nodes[i]
		}
	}
	attempt()
	first := n
	// Mostly, few of thousands are left that can be cheaper than the first. Only those need an order.
	left := heap.New((*candidate).compare, func(c *candidate) *int { return &c.index })
	for i := range nodes {
		if n = &nodes[i]; n != first && enough(n.bound) {
			left.Set(n)
		}
	}
	for left.Len() > 0 {
		n = left.First()
		if !enough(n.bound) {
			break // nor are the others: they come later by bound, or by place
		}
		left.Remove(n)
		attempt()
	}
	return best
}

// tryPod returns a try of changes of the pod.
func (w *World) tryPod(pod *scheduler.Pod) try {
	return func(v *scheduler.Verdict, enough func(cost) bool) ([]Change, cost) {
		a := attempt{
			judge: func(changes []Change) scheduler.Verdict {
				now, _ := w.placer.VerdictOn(ChangePod(*pod, changes), v.Node)
				return now
			},
			options: func(v *scheduler.Verdict) ([]Change, bool) { return podOptions(pod, w.nodes[v.Node], v) },
			bound:   podBound,
		}
		return a.run(*v, enough)
	}
}

// tryNode returns a try of changes of the node. It leaves the node as it was.
func (w *World) tryNode(pod *scheduler.Pod) try {
	return func(v *scheduler.Verdict, enough func(cost) bool) ([]Change, cost) {
		original := *w.nodes[v.Node]
		defer w.placer.NodeSeen(w.now, original)
		a := attempt{
			judge: func(changes []Change) scheduler.Verdict {
				w.placer.NodeSeen(w.now, ChangeNode(original, changes))
				now, _ := w.placer.VerdictOn(*pod, v.Node)
				return now
			},
			options: func(v *scheduler.Verdict) ([]Change, bool) { return nodeOptions(pod, &original, v) },
			bound:   nodeBound,
		}
		return a.run(*v, enough)
	}
}

// changedPod returns the smallest change of the pod that lets it onto some node.
func (w *World) changedPod(pod *scheduler.Pod, all []scheduler.Verdict, alone []scheduler.Rejection) *Remedy {
	best := cheapest(w.candidates(all, alone, podBound, leastPod), all, w.tryPod(pod))
	if best == nil {
		return nil
	}
	best.Of = OfPod
	best.Fits = w.placer.Fits(ChangePod(*pod, best.Changes))
	return best
}

// changedNode returns the smallest change of one node that lets the pod onto it.
func (w *World) changedNode(pod *scheduler.Pod, all []scheduler.Verdict, alone []scheduler.Rejection) *Remedy {
	best := cheapest(w.candidates(all, alone, nodeBound, leastNode(pod)), all, w.tryNode(pod))
	if best != nil {
		best.Of = OfNode
	}
	return best
}

// anotherNode returns a node of which one more would take the pod. Volumes and reports of NUMA nodes of a new node are
// not known, so nothing is said about pods that need any.
func (w *World) anotherNode(pod *scheduler.Pod, all []scheduler.Verdict) *Remedy {
	if len(pod.Mounts) > 0 || pod.NUMA != nil && w.reports {
		return nil
	}
	tried := map[string]bool{} // nodes that differ in nothing but their names
	for i := range all {
		v := &all[i]
		if v.Final && v.Rule != scheduler.RuleUnschedulable && v.Rule != scheduler.RuleTaints {
			continue // a node like this one would reject the pod, too
		}
		like := Another(*w.nodes[v.Node], "")
		like.Images = nil // they do not decide whether a pod fits
		key := fmt.Sprint(like)
		if tried[key] {
			continue
		}
		tried[key] = true
		name := v.Node + "-new"
		for w.nodes[name] != nil {
			name += "-new"
		}
		w.placer.NodeSeen(w.now, Another(*w.nodes[v.Node], name))
		now, _ := w.placer.VerdictOn(*pod, name)
		w.placer.NodeGone(w.now, name)
		if now.Plugin == "" {
			return &Remedy{
				Of:      OfNewNode,
				Node:    name,
				Changes: []Change{{Kind: AddNode, Name: v.Node}},
				cost:    cost{rules: 1, weight: weights[AddNode]},
			}
		}
	}
	return nil
}
