// Package scheduler is the scheduler's mind: which pod is next, which nodes can carry it, which of them is best, and
// why none can.
//
// # Model
//
// A Placer is told facts (a node or pod as the API shows it, the fate of a bind) and asked for decisions with Next. It
// holds four things. The queue (package queue) keeps pending pods in pools: active (ready to be placed), back-off
// (waiting for a moment), unschedulable (waiting for an event that helps) and gated. The cluster keeps nodes as rows of
// columns, counts what bound and assumed pods take from each, and keeps live counters of who is where; that much is its
// state. The rules, one per file, judge one demand against one row of the state: filter_*.go say whether, score_*.go
// say how well. A survey asks them about all rows at once.
//
// What does not need a pod to be understood has a package of its own below: selector (what labels, taints and terms
// select), rows (columns, sets of rows, logs of changes), census (who is where, and means whom), volumes (claims, and
// what they come down to on a node) and queue (who is next). They do not know this package; cluster puts them together,
// a filter is a filterRule, a score a scorer, and what a node says of itself a fact (nodes.go). CONTRIBUTING.md has a
// checklist for each.
//
// What is kept follows the cluster: classes, identities, aims, counters and columns are counted by who holds them,
// demands go with the identities that used them (demands.go), strings that nobody uses are swept (intern.go), and what
// only saves work, atoms, fits, tables and topologies that nobody holds, is bounded in number.
//
// What the Placer is told is in nodefacts.go, podfacts.go and volumefacts.go, what it is asked besides Next in
// questions.go; makeroom.go says what Next does with a pod that fits nowhere.
//
// To read a rule, read its file: it is written for one row, in plain form, against counters that are always right, and
// then for many rows, against masks. choosePlain (choose.go) asks every rule about every row in its plain form.
// survey.go gives the same answers by what pods of all kinds share: masks of what nodes say of themselves (atom.go),
// rows that are about equally free (tiles.go), the few domains that have pods (counter.go). tables.go gives
// them for pods of which many alike come one after another, by remembering what the rules said and asking again only
// where something changed.
//
// A pod placed by Next is assumed: it counts on its node from that instant, before the API has heard of it. The shell
// binds it and reports the outcome with Bound. A watch that shows the pod on a node is always the truth: it confirms
// the assumption, or corrects it.
//
// # Volumes
//
// Claims, volumes, classes and what drivers say of nodes are facts as nodes are. A demand with claims holds an ask
// (volumes.Ask): what its claims come down to now, or why no node can take the pod. It is made anew when a fact that
// it rests on is another, and voids the demand's tables then; counts by row (volumes attached, disks in use) are kept
// as pods and facts come and go. A pod that is placed with unbound claims gets a VolumePlan. Rules see at once what it
// will write, as they see assumed pods; the next fact about the same object is the truth again, and a pod that is
// forgotten takes back what nobody has seen written. The shell writes the plan and says so, VolumesSettled answers when
// everything is bound or will not be, and only then is the pod bound.
//
// # Vocabulary
//
//	place     choose a node for a pod
//	assume    count a placed pod on its node before the API confirms it
//	forget    take an assumed pod off its node again
//	confirm   the API shows the pod bound: the assumption becomes a fact
//	class     what the rules need to know of a pod; pods of one Deployment share one
//	row       the index of a node in the columns; rows are reused, names are not indexes
//	aim       a set of pods that a constraint or term means
//	identity  who a pod is to others, namespace and labels; it knows the aims that mean it
//	topology  rows divided into domains by the value of a label
//	counter   how many pods of an aim, or terms with it, the domains of a topology hold
//	scope     the rows on which pods count for a spread constraint
//	ground    the domains of a topology that have rows in a scope
//	mask      a set of rows, one bit each
//	atom      a question about nodes that pods of many kinds ask, with the mask of its answers
//	fit       what resources say of every row to pods that ask for the same
//	tile      some rows that are about equally free
//	division  rows by their domains in some coarse topologies
//	demand    a class with the counters that its rules read
//	group     rows of which every rule that looks around says the same
//	nominate  make room for a pending pod on a row
//	waiter    a demand with which pods wait, and what it waits for
//	audience  waiters that require the same of the pods around a row
//	block     one reason for which a demand fits on no row
//	report    what a node's agent says that its NUMA nodes have, and who owns the rest
//	belief    a report with the pods on top that it does not have yet
//	berth     where on its node a placed pod is expected to lie (numa.Berth); it goes there with the bind
//	bid       what the eviction of pods from a row would cost
//	ask       what the volumes of a demand come down to, as things are
//	stock     the volumes of one class that claims may get
//	opinion   what others outside said about nodes for one pod
//	plan      what must be written, and come true, before a pod with unbound claims is bound
//	rule      one filter; its bit in RuleSet says which rules rejected a pod
//
// # Invariants
//
//   - Every node is considered for every pod; nothing is sampled, unless a profile asks for it (Sample).
//   - The same history gives the same placements. Nodes lie on a ring by a hash of their name and the seed; of equal
//     scores the first from the pod's own place on it wins, so that ties spread over nodes yet do not depend on the
//     order in which nodes were seen.
//   - A pod in the unschedulable pool fits on no node when Next looks into it. Waiting demands hear of what may undo
//     what keeps them off (wait.go), and are asked then; so a pod is woken by the event that lets it fit, and by no
//     other, but for the end of the making of room for it. The same holds of what makes an eviction help it; if that
//     has happened to many rows at once, the rows are looked at bit by bit, for pods of high priority first (see
//     seekHope).
//   - Columns and counters equal what a fresh count over nodes and pods would give, and surveys and tables what the
//     rules say without them (cluster_test.go, survey_test.go and tables_test.go hold them to that).
//
// # What it does not do yet
//
// Resource claims are not a rule yet: a pod that requires one is refused with a reason that names it, never placed as
// if it had not asked. Nodes are not scored by how much storage they have (an alpha of 1.36).
//
// It is not safe for concurrent use: one goroutine owns a Placer.
package scheduler

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Options configure a Placer.
type Options struct {
	// Seed of the hash that decides between equal scores. Any value is good; a run that shall be repeated must use
	// the same.
	Seed uint64
	// Profiles by which pods are placed, found by Pod.Profile; the first is also that of pods that name none of them.
	// None: DefaultProfile.
	Profiles []Profile
	// BackoffFirst and BackoffMax bound the pause after a failed attempt, which doubles. Zero: upstream's defaults.
	BackoffFirst, BackoffMax time.Duration
}

// Placer decides where pods go. See the package documentation.
type Placer struct {
	cluster *cluster
	queue   *pending
	// wishesChecked is where the change log ended when pods that wait for room were last looked at.
	wishesChecked int
	// plansChecked is the version of storage, and one, at which plans for volumes were last looked at; plansDue when
	// the first of them fails.
	plansChecked uint64
	plansDue     unit.Instant
	// heardAt is when a fact was last folded in or Next called; searchDue when the search for evictions may go on.
	heardAt, searchDue unit.Instant
}

// New returns a Placer that knows no nodes and no pods.
func New(o Options) *Placer {
	c := newCluster(o.Seed, o.Profiles...)
	c.demands.waits = func(d *demand) bool { return c.waits.of[d] != nil }
	return &Placer{cluster: c, queue: newPending(c, &o)}
}

// A Decision is what Next found out about one pod.
type Decision struct {
	Pod     Pod
	Attempt int          // how often this pod has been tried, this time included
	Came    unit.Instant // when it was first seen pending

	// Asked, if there are any, are the nodes about which others are to be asked before the pod is placed; the shell
	// says what they said with Heard or HeardNothing. Nothing else is decided then.
	Asked []string
	// Offers, if there are any, are evictions about which others are to be asked before one is decided on; likewise,
	// with HeardEvictions or HeardNothing. Failure says then why the pod fits nowhere.
	Offers []Preemption

	// Node is where the pod goes; it is assumed there. Empty: it fits nowhere, and Failure says why.
	Node  string
	Score int64 // weighted sum of the scores of Node; 0 if it was the only feasible one, or room had been made there
	// Feasible counts the nodes that passed all filters.
	Feasible int

	// Berth is where the pod is expected to lie on Node; its agent has to be told with the bind. Nil: it owns nothing
	// there.
	Berth numa.Berth
	// Volumes is what must be written, and come true, before the pod is bound; nil: nothing.
	Volumes *VolumePlan

	Failure *Failure
	// Preemption, with a Failure, is what would make room. The pod is nominated on its node; the shell evicts.
	Preemption *Preemption
	// Flushed: the pod would have waited on, had not a look after whoever waits long found it. It should never be; see
	// flushAfter.
	Flushed bool
	// Nominated is, with a Failure, the node on which room is being made for the pod: what its status should say.
	Nominated string
}

// Next places the pod that is next in line. ok is false when none is ready; call again at Wake or after a fact.
func (p *Placer) Next(now unit.Instant) (d Decision, ok bool) {
	p.cluster.expireCharges(now)
	p.hear(now)
	p.seekHope(now)
	e, ok := p.queue.Pop(now)
	for ok && e.opinion == nil && e.evictions == nil && p.misses(e) {
		p.queue.wait(now, e)
		e, ok = p.queue.Pop(now)
	}
	if !ok {
		return Decision{}, false
	}
	p.forget(e.pod.ID) // if it is assumed: the lost bind never showed up
	opinion, left := e.opinion, e.evictions
	e.opinion, e.evictions = nil, nil
	if e.pod.Asks && opinion == nil {
		if asked := p.ask(e); len(asked) > 0 {
			p.queue.Placed(e)
			return Decision{Pod: e.pod, Attempt: e.Attempts + 1, Came: e.Came, Asked: asked}, true
		}
	}
	e.Attempts++
	d = Decision{Pod: e.pod, Attempt: e.Attempts, Came: e.Came}
	e.demand = p.cluster.demandOf(e.class, e.who, e.pod.Owner)
	if opinion != nil {
		chosen := p.cluster.chooseHeard(e.demand, e.pod.ID, opinion)
		if chosen.failure == nil {
			return p.assume(now, e, d, chosen), true
		}
		d.Failure = chosen.failure
		p.queue.BindFailed(now, e, false) // they say nothing when they change their mind
		return d, true
	}
	chosen := p.cluster.choose(e.demand, e.pod.ID)
	if chosen.failure != nil {
		if left == nil {
			if d.Offers = p.offers(e, chosen.failure); len(d.Offers) > 0 {
				e.Attempts-- // it goes on when they have answered
				p.queue.Hold(e)
				d.Failure = chosen.failure
				return d, true
			}
		}
		d.Failure = chosen.failure
		d.Preemption = p.makeRoom(now, e, chosen.failure, left)
		if left != nil && d.Preemption == nil && chosen.failure.Preemption == reasonNoOffer {
			p.queue.BindFailed(now, e, false) // they say nothing when they change their mind
			return d, true
		}
		if w := p.cluster.wishes[e.pod.ID]; w != nil {
			d.Nominated = p.cluster.name[w.Row]
		}
		p.await(now, e, chosen.failure)
		return d, true
	}
	return p.assume(now, e, d, chosen), true
}

// assume counts a pod where it was placed, and completes the decision.
func (p *Placer) assume(now unit.Instant, e *entry, d Decision, chosen choice) Decision {
	d.Node, d.Score, d.Feasible = p.cluster.name[chosen.row], chosen.score, chosen.feasible
	d.Volumes = p.cluster.planVolumes(e.demand, chosen.row)
	d.Flushed = e.flushed
	p.cluster.setPod(&e.pod, d.Node, false)
	d.Berth = p.cluster.berth(d.Pod.ID)
	if d.Volumes != nil {
		d.Volumes.decision, d.Volumes.since = d, now
		p.cluster.assumeVolumes(d.Pod.ID, d.Volumes)
	}
	p.queue.Placed(e)
	p.cluster.dismiss(e.pod.ID)
	return d
}

// await lets a pod wait that was just tried in vain, for what may undo what was found to keep it off.
func (p *Placer) await(now unit.Instant, e *entry, f *Failure) {
	c := p.cluster
	p.queue.miss(now, e)
	w := c.waits.of[e.demand]
	if w.rules |= f.Rejected | e.demand.useless; e.pod.Asks {
		w.rules = ^RuleSet(0) // others have rejected what the rules allow: whatever happens there may help
	}
	w.block = c.blockOf(e.demand)
	c.register(w)
	if c.wishes[e.pod.ID] == nil && !w.search.on {
		w.known = true
	}
}

// misses reports whether a pod that was tried before would only hear again that it fits nowhere: what woke it woke all
// pods of its demand, and one of them has just found that there is no room any more. A thousand pods that wait for the
// next of a few places would else be tried a thousand times for each.
func (p *Placer) misses(e *entry) bool {
	c := p.cluster
	w := c.waits.of[e.demand]
	return e.Missed() && w != nil && w.known && !w.concerned && c.wishes[e.pod.ID] == nil && c.demandOf(e.class, e.who, e.pod.Owner) == e.demand
}

// Wake is the latest instant at which Next wants to be called again if no fact arrives. Zero: none.
func (p *Placer) Wake() unit.Instant {
	wake := p.queue.Wake()
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
