package scheduler

import (
	"cmp"
	"maps"
	"slices"
)

// This file has the Placer's methods that answer questions other than Next.

// Pending returns the number of pods in each pool, by upstream's names.
func (p *Placer) Pending() map[string]int {
	p.evaluateWaiters(p.factAt)
	return p.queue.Counts()
}

// Sizes returns the number of nodes, of pods on them, and of assumed pods among these.
func (p *Placer) Sizes() (nodes, pods, assumed int) {
	return p.cluster.seenCount, len(p.cluster.pods), p.cluster.assumed
}

// Verdicts judges pod for every node, in the order of names. The commands `why` and `whatif` print it.
func (p *Placer) Verdicts(pod Pod) (out []Verdict) {
	p.cluster.ask(&pod, func(d *demand) { out, _ = p.cluster.judgements(d, pod.ID, 0) })
	return out
}

// Scores returns the scores of the feasible nodes for pod, in the order of names. If fewer than two are feasible,
// nothing is scored.
func (p *Placer) Scores(pod Pod) (out []NodeScore) {
	p.cluster.ask(&pod, func(d *demand) { out = p.cluster.scores(d, pod.ID) })
	return out
}

// NodeTotal is a feasible node and the weighted sum of its scores.
type NodeTotal struct {
	Node  string
	Total int64
}

// Totals returns the totals of Scores for the feasible nodes, in no particular order, without what each plugin gives,
// which costs most. If one node is feasible, its total is 0. If none is, failure says why.
func (p *Placer) Totals(pod Pod) (out []NodeTotal, failure *Failure) {
	p.cluster.ask(&pod, func(d *demand) { out, failure = p.cluster.totals(d, pod.ID) })
	return out, failure
}

// Evictions returns, for a pod that fits nowhere, every node on which preemption would make room, with its victims: as
// few as possible on each node.
func (p *Placer) Evictions(pod Pod) (out []Preemption) {
	p.cluster.ask(&pod, func(d *demand) { out = p.cluster.evictions(d, pod.ID) })
	return out
}

// A Rejection says which of some rules reject a node: the one that the Verdict names, and those after it.
type Rejection struct {
	Rules RuleSet
	Final RuleSet    // those of Rules whose rejection no eviction ends
	Short []Shortage // as in Verdict, if RuleResources is one of Rules
}

// Judge is Verdicts, with what each of rules says about the same node, and with the Failure that follows from all.
// failure is nil if some node is feasible.
func (p *Placer) Judge(pod Pod, rules RuleSet) (all []Verdict, rejections []Rejection, failure *Failure) {
	p.cluster.ask(&pod, func(d *demand) {
		all, rejections = p.cluster.judgements(d, pod.ID, rules)
		failure = failureOf(newFailure(len(all), d), all)
	})
	return all, rejections, failure
}

// failureOf adds the reasons of all to f. It returns nil if some node is feasible.
func failureOf(f *Failure, all []Verdict) *Failure {
	for len(all) > 0 {
		v := &all[0]
		if v.Plugin == "" {
			return nil
		}
		same := 1 // many nodes in a row have the same reasons
		for same < len(all) && all[same].Rule == v.Rule && slices.Equal(all[same].Reasons, v.Reasons) {
			same++
		}
		f.Rejected |= v.Rule
		for _, reason := range v.Reasons {
			f.Reasons[reason] += same
		}
		all = all[same:]
	}
	return f
}

// Fits returns how many nodes are feasible for pod.
func (p *Placer) Fits(pod Pod) (n int) {
	c := p.cluster
	c.ask(&pod, func(d *demand) { n = c.feasibleRows(d, pod.ID).Count() })
	return n
}

// VerdictOn judges pod for one node. known is false if there is no such node.
func (p *Placer) VerdictOn(pod Pod, node string) (v Verdict, known bool) {
	r, known := p.cluster.rows[node]
	if !known || !p.cluster.seen[r] {
		return Verdict{}, false
	}
	p.cluster.ask(&pod, func(d *demand) { v = p.cluster.verdict(d, pod.ID, r) })
	return v, true
}

// Preempt returns the preemption that would be chosen for a pod that fits nowhere. nil: there is none.
func (p *Placer) Preempt(pod Pod) (made *Preemption) {
	c := p.cluster
	c.ask(&pod, func(d *demand) {
		if may, _ := c.eligible(d, pod.ID); may {
			made = c.cheapestPreemption(d, pod.ID)
		}
	})
	return made
}

// Likeness returns a text that is the same for pods that no rule can tell apart as long as no fact changes. A pod with
// a nomination of its own is like no other.
func (p *Placer) Likeness(pod Pod) (text string) {
	p.cluster.ask(&pod, func(d *demand) { text = d.class.key + d.key })
	if p.cluster.nominations[pod.ID] != nil {
		text += string(pod.ID)
	}
	return text
}

// Hold keeps what is computed for pod until release is called: several questions about it, and about pods that differ
// from it in little, do not count the pods that its terms select again.
func (p *Placer) Hold(pod Pod) (release func()) {
	c := p.cluster
	k, who := c.compile(&pod), c.identify(&pod)
	c.demandOf(k, who, pod.Owner)
	return func() {
		c.dropClass(k)
		c.dropIdentity(who)
	}
}

// Room is what a node has for pods, and what its pods request.
type Room struct {
	Resources     []ResourceRoom // sorted by name
	Pods, PodsMax int64
}

// ResourceRoom is one resource of a node, in its base unit.
type ResourceRoom struct {
	Resource               string
	Allocatable, Requested int64
}

// RoomOn returns what a node has. known is false if there is no such node.
func (p *Placer) RoomOn(node string) (room Room, known bool) {
	c := p.cluster
	r, known := c.rows[node]
	if !known || !c.seen[r] {
		return Room{}, false
	}
	room = Room{Pods: c.podCount[r], PodsMax: c.podsMax[r]}
	for name, i := range c.columns.byName {
		of := ResourceRoom{Resource: name, Allocatable: c.columns.has(i, r), Requested: c.columns.takes(i, r)}
		if of.Allocatable != 0 || of.Requested != 0 {
			room.Resources = append(room.Resources, of)
		}
	}
	slices.SortFunc(room.Resources, func(a, b ResourceRoom) int { return cmp.Compare(a.Resource, b.Resource) })
	return room, true
}

// RoomFor appends to out what a node has of what pod requests, in the order of the requests, and then of places for
// pods. It is for a pod that was just placed there, and reads a few numbers only. If there is no such node, it appends
// nothing.
func (p *Placer) RoomFor(pod *Pod, node string, out []ResourceRoom) []ResourceRoom {
	c := p.cluster
	r, known := c.rows[node]
	if !known {
		return out
	}
	for _, q := range pod.Requests {
		of := ResourceRoom{Resource: q.Resource}
		if i, known := c.columns.byName[q.Resource]; known {
			of.Allocatable, of.Requested = c.columns.has(i, r), c.columns.takes(i, r)
		}
		out = append(out, of)
	}
	return append(out, ResourceRoom{Resource: Pods, Allocatable: c.podsMax[r], Requested: c.podCount[r]})
}

// ask calls question with the demand of pod.
func (c *cluster) ask(pod *Pod, question func(*demand)) {
	k, who := c.compile(pod), c.identify(pod)
	question(c.demandOf(k, who, pod.Owner))
	c.dropClass(k)
	c.dropIdentity(who)
}

// Priorities returns the priorities that pods on nodes have, sorted.
func (p *Placer) Priorities() []int32 { return slices.Sorted(maps.Keys(p.cluster.atPriority)) }
