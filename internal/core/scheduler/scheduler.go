// Package scheduler decides where pods go: which pod is next, on which nodes it fits, which of them is best, and if it
// fits on none, why, and which pods to preempt.
//
// # Model
//
// A Placer receives facts (a node or pod as the API shows it, the outcome of a bind), and Next returns its decisions.
// It has four parts:
//   - The queue (package queue) keeps pending pods in pools: active (ready to be placed), back-off (waiting for a
//     time), unschedulable (waiting for an event that helps) and gated.
//   - The state has nodes as rows of columns, what bound and assumed pods take from each node, and counters of pods by
//     topology domain. It is a part of cluster, which also has what follows from decisions.
//   - The rules, one per file, evaluate one demand for one row of the state: filter_*.go decide whether a pod fits,
//     score_*.go how well.
//   - Masks evaluate the rules for all rows at once (masks.go).
//
// Parts that can be understood on their own are packages below this one: selector (label selectors, taints, node
// affinity terms), rows (columns, sets of rows, logs of changes), census (counts of pods by topology domain), volumes
// (claims, and what they need on a node) and queue (which pod is next). They do not import this package; cluster
// combines them.
// A filter implements filterRule, a score implements scorer, and a fact about nodes implements fact (nodes.go).
// CONTRIBUTING.md has a checklist for each.
//
// Memory stays in proportion to the cluster. Classes, identities, pod sets, counters and columns have reference counts.
// Demands are deleted with the identities that used them (demands.go). Strings that are not in use are swept
// (intern.go). Caches (predicates, fits, tables, topologies without references) are limited in number.
//
// The Placer's methods for facts are in nodefacts.go, podfacts.go and volumefacts.go, those for questions other than
// Next in questions.go. preemptor.go has what Next does with a pod that fits nowhere.
//
// The file of a rule states it twice: in plain form for one row, reading counters that are always up to date, and as
// masks for many rows at once. choosePlain (choose.go) evaluates every rule for every row in plain form. masks.go gets
// the same answers from what pods of different classes have in common: masks for facts about nodes (predicate.go), rows
// with about equal free resources (tiles.go), and the few domains that have pods (census/counter.go). tables.go gets
// them for many pods of one class that come one after another: it keeps the results of the rules, and evaluates them
// again only where something changed.
//
// A pod that Next places is assumed: it counts on its node at once, before the API has the bind. The shell binds the
// pod and reports the outcome with Bound. When the watch shows the pod on a node, that confirms the assumption or
// corrects it; the watch always takes precedence.
//
// # Volumes
//
// Claims, volumes, storage classes and CSI drivers are facts, as nodes are. A demand with claims has
// volumes.Needs: what its claims need at present, or why no node can take the pod. It is recomputed when a fact changes
// on which it depends, and the demand's tables are dropped then. Counts by row (attached volumes, disks in use) follow
// pods and facts. A pod that is placed with unbound claims gets a VolumePlan. Rules see at once what the plan will
// write, as they see assumed pods. The next fact about the same object replaces that. When a pod is forgotten, what was
// assumed for its volumes and not yet seen is reverted. The shell writes the plan and reports that. VolumeOutcomes
// returns when everything is bound, or why it will not be, and only then is the pod bound.
//
// # Vocabulary
//
//	place       choose a node for a pod
//	assume      count a placed pod on its node before the API confirms it
//	forget      remove an assumed pod from its node again
//	confirm     the API shows the pod bound: it is no longer assumed
//	nominate    reserve room on a row for a pending pod, while its victims terminate
//	class       an equivalence class of pods, compiled: the pods of one Deployment share one
//	demand      a class with the counters that its rules read
//	row         the index of a node in the columns; rows are reused, so a row does not identify a node
//	pod set     the pods that constraints or terms select
//	identity    what selectors see of a pod: namespace and labels, with the pod sets that have it
//	topology    rows divided into domains by the value of a label
//	counter     how many pods of a pod set, or terms about it, each domain of a topology has
//	scope       the rows on which pods count for a spread constraint
//	coverage    the part of a topology that is in a scope
//	mask        a set of rows, one bit each
//	predicate   a question about nodes that many kinds of pods have in common, with the mask of its answers
//	fit         the result of the resource rules for every row, for pods with equal requests
//	tile        rows with about equal free resources
//	division    rows grouped by their domains in some coarse topologies
//	group       rows for which every rule that depends on other rows gives the same answer
//	waiter      a demand with waiting pods, and what they wait for
//	audience    waiters with the same requirements about the pods near a row
//	block       one reason why a demand fits on no row
//	report      what a node's agent says is free on its NUMA nodes, and what is assigned to which pod
//	berth       the CPUs and NUMA nodes that a placed pod is expected to get (numa.Berth); the bind carries it
//	cost        what preemption on a row would cost; a bound is a lower limit of it
//	needs       what the volumes of a demand need at present (volumes.Needs); also, what resource rules read of a pod
//	stock       the volumes of one class that claims may get
//	plan        what must be written, and be bound, before a pod with unbound claims is bound
//	rule        one filter; its bit in RuleSet says which rules rejected a pod
//
// # Invariants
//
//   - Every node is considered for every pod. There is no sampling, unless a profile requests it (Sample).
//   - The same history gives the same placements. Ties between nodes are broken by a circular order of nodes, by a hash
//     of their name and the seed. Each pod starts at its own position in it, so ties spread over nodes, and the order
//     in which nodes were seen does not matter.
//   - A pod in the unschedulable pool fits on no node when Next examines it. Waiting demands are notified of changes
//     that may end their rejections (wait.go), and evaluated again then. So a pod is made active only by an event that
//     lets it fit, or when its preemption ends. The same holds for events that let preemption help. If many rows
//     changed at once, they are examined in steps, for pods of high priority first (see continueSearches).
//   - Columns and counters equal a fresh count over nodes and pods. Masks and tables give the same answers as the
//     rules alone (cluster_test.go, masks_test.go and tables_test.go check that).
//
// # What it does not do yet
//
// Resource claims are not supported: a pod that requires one is rejected with a reason that says so, never placed as if
// it did not. Nodes are not scored by their storage capacity (an alpha feature in 1.36).
//
// A Placer is not safe for concurrent use: one goroutine owns it.
package scheduler

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Options configure a Placer.
type Options struct {
	// Seed of the hash that breaks ties. Any value is good. A run can only be repeated with the same seed.
	Seed uint64
	// Profiles are found by Pod.Profile. Pods that name none of them get the first. None: DefaultProfile.
	Profiles []Profile
	// BackoffFirst and BackoffMax are the limits of the back-off, which doubles. Zero: upstream's defaults.
	BackoffFirst, BackoffMax time.Duration
}

// Placer decides where pods go. See the package documentation.
type Placer struct {
	cluster *cluster
	queue   *pending
	// nominationsChecked is the position in the change log at which nominated pods were last examined.
	nominationsChecked int
	// plansChecked is the version of storage for which volume plans were last checked, plus one. Zero: check them at
	// the next call. plansDue is when the first plan times out. Zero: none does.
	plansChecked uint64
	plansDue     unit.Instant
	// factAt is when a fact was last recorded or Next called. searchDue is when searches may continue; see
	// continueSearches.
	factAt, searchDue unit.Instant
	// reports are the agents' last reports about NUMA nodes, by node name. kubeletNodes are the nodes that a kubelet
	// runs now; their reports are kept, but not used.
	reports      map[string]*numa.State
	kubeletNodes map[string]bool
}

// New returns a Placer without nodes and pods.
func New(o Options) *Placer {
	c := newCluster(o.Seed, o.Profiles...)
	c.demands.waits = func(d *demand) bool { return c.waits.of[d] != nil }
	return &Placer{
		cluster:      c,
		queue:        newPending(c, &o),
		reports:      map[string]*numa.State{},
		kubeletNodes: map[string]bool{},
	}
}

// A Decision is the result of Next for one pod.
type Decision struct {
	Pod     Pod
	Attempt int          // how often the pod was tried, including this time
	Came    unit.Instant // when it was first seen as pending

	// ExtenderNodes, if not empty, are the nodes about which extenders must be asked before the pod is placed. The
	// shell reports the answer with ExtendersAnswered or ExtendersFailed. The decision has nothing else then.
	ExtenderNodes []string
	// ExtenderCandidates, if not empty, are preemptions about which extenders must be asked before one is chosen. The
	// shell reports the answer with PreemptionAnswered or ExtendersFailed. Failure says why the pod fits nowhere.
	ExtenderCandidates []Preemption

	// Node is where the pod is placed; it is assumed there. Empty: it fits nowhere, and Failure says why.
	Node  string
	Score int64 // weighted sum of the scores of Node; 0 if it was the only feasible node, or the nominated one
	// Feasible is how many nodes passed all filters.
	Feasible int

	// Berth is the CPUs and NUMA nodes that the pod is expected to get on Node. The bind must carry it to the node's
	// agent. Nil: none are assigned to it.
	Berth numa.Berth
	// Volumes is what must be written, and be bound, before the pod is bound; nil: nothing.
	Volumes *VolumePlan

	Failure *Failure
	// Preemption, with a Failure, makes room. The pod is nominated on its node; the shell evicts the victims.
	Preemption *Preemption
	// Flushed says that only the check of long-waiting pods found that the pod fits. That indicates an error; see
	// flushAfter.
	Flushed bool
	// Nominated is, with a Failure, the node on which the pod is nominated, for its status.
	Nominated string
}

// Next tries the next pod. ok is false if none is ready; call it again at Wake, or after a fact.
func (p *Placer) Next(now unit.Instant) (d Decision, ok bool) {
	p.cluster.expireCharges(now)
	p.evaluateWaiters(now)
	p.continueSearches(now)
	e, ok := p.queue.Pop(now)
	for ok && e.answer == nil && e.evictions == nil && p.cannotFit(e) {
		p.queue.wait(now, e)
		e, ok = p.queue.Pop(now)
	}
	if !ok {
		return Decision{}, false
	}
	p.forget(e.pod.ID) // if it is assumed, the bind whose answer was lost never appeared in the watch
	answer, left := e.answer, e.evictions
	e.answer, e.evictions = nil, nil
	if e.pod.AsksExtenders && answer == nil {
		if asked := p.extenderNodes(e); len(asked) > 0 {
			p.queue.Placed(e)
			return Decision{Pod: e.pod, Attempt: e.Attempts + 1, Came: e.Came, ExtenderNodes: asked}, true
		}
	}
	e.Attempts++
	d = Decision{Pod: e.pod, Attempt: e.Attempts, Came: e.Came}
	e.demand = p.cluster.demandOf(e.class, e.who, e.pod.Owner)
	if answer != nil {
		chosen := p.cluster.chooseAnswered(e.demand, e.pod.ID, answer)
		if chosen.failure == nil {
			return p.assume(now, e, d, chosen), true
		}
		d.Failure = chosen.failure
		p.queue.BindFailed(now, e, false) // extenders do not notify us when their answer would change
		return d, true
	}
	chosen := p.cluster.choose(e.demand, e.pod.ID)
	if chosen.failure != nil {
		if left == nil {
			if d.ExtenderCandidates = p.candidatesFor(e, chosen.failure); len(d.ExtenderCandidates) > 0 {
				e.Attempts-- // this attempt continues when they have answered
				p.queue.Await(e)
				d.Failure = chosen.failure
				return d, true
			}
		}
		d.Failure = chosen.failure
		d.Preemption = p.preemptFor(now, e, chosen.failure, left)
		if left != nil && d.Preemption == nil && chosen.failure.Preemption == reasonNoCandidate {
			p.queue.BindFailed(now, e, false) // extenders do not notify us when their answer would change
			return d, true
		}
		if w := p.cluster.nominations[e.pod.ID]; w != nil {
			d.Nominated = p.cluster.name[w.Row]
		}
		p.waitAfter(now, e, chosen.failure)
		return d, true
	}
	return p.assume(now, e, d, chosen), true
}

// assume puts a pod on the node chosen for it, and completes the decision.
func (p *Placer) assume(now unit.Instant, e *entry, d Decision, chosen choice) Decision {
	d.Node = p.cluster.name[chosen.row]
	d.Score = chosen.score
	d.Feasible = chosen.feasible
	d.Volumes = p.cluster.planVolumes(e.demand, chosen.row)
	d.Flushed = e.flushed
	p.cluster.setPod(&e.pod, d.Node, false)
	d.Berth = p.cluster.berth(d.Pod.ID)
	if d.Volumes != nil {
		d.Volumes.decision, d.Volumes.since = d, now
		p.cluster.assumeVolumes(d.Pod.ID, d.Volumes)
	}
	p.queue.Placed(e)
	p.cluster.clearNomination(e.pod.ID)
	return d
}

// waitAfter makes a pod that fits nowhere wait for changes that may end its rejections.
func (p *Placer) waitAfter(now unit.Instant, e *entry, f *Failure) {
	c := p.cluster
	p.queue.waitFailed(now, e)
	w := c.waits.of[e.demand]
	if w.rules |= f.Rejected | e.demand.finalRules; e.pod.AsksExtenders {
		w.rules = ^RuleSet(0) // extenders have rejected nodes that the rules allow, so any change may help
	}
	w.block = c.blockOf(e.demand)
	c.register(w)
	if c.nominations[e.pod.ID] == nil && !w.search.on {
		w.known = true
	}
}

// cannotFit reports whether it is known from another pod that an attempt would fail. The event that made the pod active
// made all pods of its demand active, and one of them has found since that there is no room any more. Without this,
// each place that becomes free would cause a thousand attempts if a thousand pods wait for room.
func (p *Placer) cannotFit(e *entry) bool {
	c := p.cluster
	w := c.waits.of[e.demand]
	return e.HasFailed() && w != nil && w.known && !w.marked && c.nominations[e.pod.ID] == nil &&
		c.demandOf(e.class, e.who, e.pod.Owner) == e.demand
}

// Wake returns when Next must be called again at the latest if no fact arrives. Zero: never.
func (p *Placer) Wake() unit.Instant {
	wake := p.queue.NextDue()
	sooner := func(due unit.Instant) {
		if !due.IsZero() && (wake.IsZero() || due < wake) {
			wake = due
		}
	}
	if len(p.cluster.waits.searching) > 0 {
		sooner(p.searchDue)
	}
	if checking := &p.cluster.waits.checking; checking.Len() > 0 {
		sooner(checking.First().checks)
	}
	if len(p.cluster.plans) > 0 {
		sooner(p.plansDue)
	}
	return wake
}
