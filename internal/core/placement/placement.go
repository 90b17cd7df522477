// Package placement is the scheduler's mind: which pod is next, which nodes can carry it, which of them is best, and
// why none can.
//
// # Model
//
// A Placer is told facts (a node or pod as the API shows it, the fate of a bind) and asked for decisions with Next. It
// holds three things. The queue keeps pending pods in pools: active (ready to be placed), back-off (waiting for a
// moment), unschedulable (waiting for an event that helps) and gated. The cluster keeps nodes as rows of columns
// and counts what bound and assumed pods take from each. The rules, one per file, judge one compiled pod against one
// row: filter_*.go say whether, score_*.go say how well.
//
// A pod placed by Next is assumed: it counts on its node from that instant, before the API has heard of it. The shell
// binds it and reports the outcome with Bound. A watch that shows the pod on a node is always the truth: it confirms the
// assumption, or corrects it.
//
// # Vocabulary
//
//	place     choose a node for a pod
//	assume    count a placed pod on its node before the API confirms it
//	forget    take an assumed pod off its node again
//	confirm   the API shows the pod bound: the assumption becomes a fact
//	class     what the rules need to know of a pod; pods of one Deployment share one
//	row       the index of a node in the columns; rows are reused, names are not indexes
//	rule      one filter; its bit in RuleSet says which rules rejected a pod
//
// # Invariants
//
//   - Every node is considered for every pod; nothing is sampled.
//   - The same history gives the same placements. Equal scores are decided by a hash of (seed, pod, node), the larger
//     wins, so that ties spread over nodes yet do not depend on the order in which nodes were seen.
//   - A pod in the unschedulable pool fits on no node. Whatever changes one row for the better tests the waiting
//     classes against exactly that row, so that a pod is woken by the event that helps it and by no other.
//   - The columns equal what a fresh count over nodes and pods would give (cluster_test.go holds it to that).
//
// # What it does not do yet
//
// Inter-pod affinity, topology spread, volumes bound by claims and resource claims are not rules yet: a pod that requires
// one is refused with a reason that names it, never placed as if it had not asked. Their preferred (soft) forms are
// ignored, as are BalancedAllocation and ImageLocality. There is no preemption.
//
// It is not safe for concurrent use: one goroutine owns a Placer.
package placement

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Options configure a Placer.
type Options struct {
	// Seed of the hash that decides between equal scores. Any value is good; a run that shall be repeated must use
	// the same.
	Seed uint64
}

// Placer decides where pods go. See the package documentation.
type Placer struct {
	cluster *cluster
	queue   *queue
	seed    uint64
}

// New returns a Placer that knows no nodes and no pods.
func New(o Options) *Placer {
	return &Placer{cluster: newCluster(), queue: newQueue(), seed: o.Seed}
}

// A Decision is what Next found out about one pod.
type Decision struct {
	Pod     Pod
	Attempt int // how often this pod has been tried, this time included

	// Node is where the pod goes; it is assumed there. Empty: it fits nowhere, and Failure says why.
	Node  string
	Score int64 // weighted sum of the scores of Node; 0 if it was the only feasible one
	// Feasible counts the nodes that passed all filters.
	Feasible int

	Failure *Failure
}

// NodeSeen folds in a node that is new or changed.
func (p *Placer) NodeSeen(now unit.Instant, n Node) {
	row, better := p.cluster.setNode(n)
	if better {
		p.wake(now, row)
	}
}

// NodeGone folds in that a node was deleted. Its pods stay counted until they are gone themselves, so that a node of the
// same name that comes back is not overfilled.
func (p *Placer) NodeGone(_ unit.Instant, name string) { p.cluster.removeNode(name) }

// PodSeen folds in a pod that is new or changed: bound pods are counted on their node, pending ones queued. The shell
// leaves out pods that have ended and pending pods of other schedulers.
func (p *Placer) PodSeen(now unit.Instant, pod Pod) {
	if pod.Node != "" {
		p.queue.remove(pod.ID)
		p.seenBound(now, pod)
		return
	}
	if p.cluster.isAssumed(pod.ID) && p.queue.stateOf(pod.ID) != unsettled {
		return // an update from before the bind was heard; the bind's fate is on its way
	}
	if pod.Deleting {
		p.PodGone(now, pod.ID)
		return
	}
	p.queue.put(now, pod, p.cluster.compile(pod))
}

func (p *Placer) seenBound(now unit.Instant, pod Pod) {
	class := p.cluster.compile(pod)
	freed, changed := p.cluster.setPod(pod.ID, pod.Node, class, true)
	if changed {
		p.wake(now, freed)
	}
}

// PodGone folds in that a pod was deleted or has ended.
func (p *Placer) PodGone(now unit.Instant, id PodID) {
	p.queue.remove(id)
	if row, ok := p.cluster.removePod(id); ok {
		p.wake(now, row)
	}
}

// An Outcome is the fate of one bind.
type Outcome int

const (
	// BindDone: the API accepted the bind. The watch will confirm it.
	BindDone Outcome = iota
	// BindRefused: the API answered and said no. The pod is forgotten and tried again after its back-off.
	BindRefused
	// BindLost: no answer came, so the bind may have happened. The pod stays assumed until the watch settles it or
	// its back-off ends; only then is it forgotten and tried again. A bind that did happen makes the second one
	// fail with a conflict: the API binds a pod once.
	BindLost
)

// Bound folds in the fate of the bind of pod id to node. Reports about pods that have moved on are ignored.
func (p *Placer) Bound(now unit.Instant, pod Pod, o Outcome) {
	if !p.cluster.isAssumed(pod.ID) {
		return // confirmed, corrected or deleted meanwhile: the watch was faster
	}
	switch o {
	case BindDone:
		p.queue.settle(pod.ID)
	case BindRefused:
		row, _ := p.cluster.removePod(pod.ID)
		p.queue.bindFailed(now, pod, p.cluster.compile(pod), false)
		p.wake(now, row)
	case BindLost:
		p.queue.bindFailed(now, pod, p.cluster.compile(pod), true)
	}
}

// Next places the pod that is next in line. ok is false when none is ready; call again at Wake or after a fact.
func (p *Placer) Next(now unit.Instant) (d Decision, ok bool) {
	e := p.queue.pop(now)
	if e == nil {
		return Decision{}, false
	}
	if row, wasAssumed := p.cluster.removePod(e.pod.ID); wasAssumed {
		p.wake(now, row) // the lost bind never showed up
	}
	e.attempts++
	d = Decision{Pod: e.pod, Attempt: e.attempts}
	d.Node, d.Score, d.Feasible, d.Failure = p.choose(e.pod, e.class)
	if d.Failure != nil {
		p.queue.parkUnschedulable(now, e)
		return d, true
	}
	p.queue.parkBinding(e)
	p.cluster.setPod(e.pod.ID, d.Node, e.class, false)
	return d, true
}

// Wake is the latest instant at which Next wants to be called again if no fact arrives. Zero: none.
func (p *Placer) Wake() unit.Instant { return p.queue.wakeAt() }

// wake moves every waiting class that now fits on row out of the unschedulable pool.
func (p *Placer) wake(now unit.Instant, row row) {
	if !p.cluster.present(row) {
		return
	}
	p.queue.wakeClasses(now, func(c *class) bool {
		rule, _ := p.cluster.firstRejection(c, row, nil)
		return rule == 0
	})
}

// Pending counts the pods in each pool, under upstream's names for them.
func (p *Placer) Pending() map[string]int { return p.queue.counts() }

// Verdicts judges pod against every node, in the order of names: what `why` and `whatif` print.
func (p *Placer) Verdicts(pod Pod) []Verdict { return p.cluster.verdicts(p.cluster.compile(pod)) }
