// Package placement is the scheduler's mind: which pod is next, which nodes can carry it, which of them is best, and
// why none can.
//
// # Model
//
// A Placer is told facts (a node or pod as the API shows it, the fate of a bind) and asked for decisions with Next. It
// holds four things. The queue keeps pending pods in pools: active (ready to be placed), back-off (waiting for a
// moment), unschedulable (waiting for an event that helps) and gated. The cluster keeps nodes as rows of columns,
// counts what bound and assumed pods take from each, and keeps live counters of who is where. The rules, one per file,
// judge one demand against one row: filter_*.go say whether, score_*.go say how well. A survey asks them about all rows
// at once.
//
// What does not need a pod to be understood has a package of its own below: selector (what labels, taints and terms
// select), rows (columns, sets of rows, logs of changes), census (who is where, and means whom) and volumes (claims, and
// what they come down to on a node). They do not know this package; cluster puts them together, a filter is a
// filterRule, a score a scorer, and what a node says of itself a fact (nodes.go).
//
// What is kept follows the cluster: classes, identities, aims, counters and columns are counted by who holds them,
// demands go with the identities that used them (demands.go), strings that nobody uses are swept (intern.go), and what
// only saves work, atoms, fits, tables and topologies that nobody holds, is bounded in number.
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
// (storage_ask.go): what its claims come down to now, or why no node can take the pod. It is made anew when a fact that
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
package placement

import (
	"cmp"
	"slices"
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
	queue   *queue
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
	q := newQueue(c, cmp.Or(o.BackoffFirst, backoffMin), cmp.Or(o.BackoffMax, backoffMax))
	c.demands.waits = func(d *demand) bool { return c.waits.of[d] != nil }
	return &Placer{cluster: c, queue: q}
}

// A Decision is what Next found out about one pod.
type Decision struct {
	Pod     Pod
	Attempt int          // how often this pod has been tried, this time included
	Came    unit.Instant // when it was first seen pending

	// Asked, if there are any, are the nodes about which others are to be asked before the pod is placed; the shell
	// says what they said with Heard or HeardNothing. Nothing else is decided then.
	Asked []string
	// Offers, if there are any, are evictions about which others are to be asked before one is decided on; likewise, with
	// HeardEvictions or HeardNothing. Failure says then why the pod fits nowhere.
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

// NodeSeen folds in a node that is new or changed.
func (p *Placer) NodeSeen(now unit.Instant, n Node) {
	p.cluster.setNode(n)
	p.heardAt = now
}

// NodeGone folds in that a node was deleted. Its pods stay counted until they are gone themselves, so that a node of
// the same name that comes back is not overfilled. Pods for which room was being made there must look elsewhere.
func (p *Placer) NodeGone(now unit.Instant, name string) {
	r, known := p.cluster.removeNode(name)
	if !known {
		return
	}
	for _, w := range slices.Clone(p.cluster.nominated[r]) {
		p.cluster.dismiss(w.id)
		p.Retry(now, w.id)
	}
}

// ReportSeen folds in what the agent of a node says of its NUMA nodes. The Placer keeps report.
func (p *Placer) ReportSeen(now unit.Instant, node string, report *numa.State) {
	p.cluster.setReport(node, report)
	p.heardAt = now
}

// ReportGone folds in that the agent of a node says nothing any more: pods go there as to any node.
func (p *Placer) ReportGone(now unit.Instant, node string) { p.ReportSeen(now, node, nil) }

// NamespaceSeen folds in the labels of a namespace, sorted by key.
func (p *Placer) NamespaceSeen(now unit.Instant, name string, labels []Label) {
	if p.cluster.SetNamespace(name, labels) {
		p.queue.renewAll(now, name, func(*entry) bool { return true })
	}
}

// NamespaceGone folds in that a namespace was deleted.
func (p *Placer) NamespaceGone(now unit.Instant, name string) { p.NamespaceSeen(now, name, nil) }

// GroupSeen folds in an object that selects pods. It matters to scores, and to where pods may go whose profile gives
// them hard spread constraints.
func (p *Placer) GroupSeen(now unit.Instant, g Group) {
	if p.cluster.groups.set(g) {
		p.regroup(now, g.Namespace)
	}
}

// GroupGone folds in that such an object was deleted.
func (p *Placer) GroupGone(now unit.Instant, g Group) {
	p.cluster.groups.remove(g)
	p.regroup(now, g.Namespace)
}

func (p *Placer) regroup(now unit.Instant, namespace string) {
	if p.cluster.hardDefaults {
		p.queue.renewAll(now, namespace, func(e *entry) bool { return e.class.hardDefaults() })
	}
}

// BudgetSeen folds in a PodDisruptionBudget.
func (p *Placer) BudgetSeen(_ unit.Instant, b Budget) { p.cluster.setBudget(b) }

// BudgetGone folds in that one was deleted.
func (p *Placer) BudgetGone(_ unit.Instant, namespace, name string) {
	p.cluster.removeBudget(namespace, name)
}

// PodSeen folds in a pod that is new or changed: bound pods are counted on their node, pending ones queued. The shell
// leaves out pods that have ended and pending pods of other schedulers.
func (p *Placer) PodSeen(now unit.Instant, pod Pod) {
	if pod.Node != "" {
		onItsWay := p.bindOnItsWay(pod.ID)
		p.queue.remove(pod.ID)
		p.cluster.setPod(&pod, pod.Node, true)
		if pod.Deleting {
			p.cluster.chargeEnds(now, pod.ID)
		}
		p.forgetVolumes(pod.ID)
		p.cluster.dismiss(pod.ID) // only now: what was kept for it is taken, not free
		if onItsWay {
			p.boundAllTheSame(now, pod.ID)
		}
		return
	}
	if pod.Deleting { // also while it is assumed: the API refuses to bind what is being deleted
		p.PodGone(now, pod.ID)
		return
	}
	if p.cluster.isAssumed(pod.ID) && p.queue.stateOf(pod.ID) != unsettled {
		return // an update from before the bind was heard; the bind's fate is on its way
	}
	p.heedNomination(&pod)
	p.queue.put(now, pod)
}

// PodGone folds in that a pod was deleted or has ended.
func (p *Placer) PodGone(now unit.Instant, id PodID) {
	p.queue.remove(id)
	p.cluster.dismiss(id)
	p.cluster.chargeEnds(now, id)
	p.forget(id)
	p.heardAt = now
}

// forget takes a pod off its row, and what was assumed for its volumes back.
func (p *Placer) forget(id PodID) {
	p.cluster.removePod(id)
	p.forgetVolumes(id)
}

// forgetVolumes ends what was planned for the volumes of a pod. Others may have them again.
func (p *Placer) forgetVolumes(id PodID) {
	reverted, claims := p.cluster.revertVolumes(id)
	for _, v := range reverted {
		p.cluster.volumeTurned(v)
	}
	for _, key := range claims {
		p.cluster.waits.claimTurned(key)
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
	// BindWithdrawn: the bind of a Victim that was Assumed was not sent. As BindRefused.
	BindWithdrawn
)

// Bound folds in the fate of the bind of pod id to node. Reports about pods that have moved on are ignored.
func (p *Placer) Bound(now unit.Instant, pod Pod, o Outcome) {
	if !p.cluster.isAssumed(pod.ID) {
		return // confirmed, corrected or deleted meanwhile: the watch was faster
	}
	switch o {
	case BindDone:
		p.queue.settle(pod.ID)
		p.boundAllTheSame(now, pod.ID)
	case BindRefused, BindWithdrawn:
		p.queue.bindFailed(now, pod, false)
		p.forget(pod.ID)
	case BindLost:
		p.queue.bindFailed(now, pod, true)
	}
}

// Next places the pod that is next in line. ok is false when none is ready; call again at Wake or after a fact.
func (p *Placer) Next(now unit.Instant) (d Decision, ok bool) {
	p.cluster.expireCharges(now)
	p.hear(now)
	p.seekHope(now)
	e := p.queue.pop(now)
	for e != nil && e.opinion == nil && e.evictions == nil && p.misses(e) {
		p.queue.wait(now, e)
		e = p.queue.pop(now)
	}
	if e == nil {
		return Decision{}, false
	}
	p.forget(e.pod.ID) // if it is assumed: the lost bind never showed up
	opinion, left := e.opinion, e.evictions
	e.opinion, e.evictions = nil, nil
	if e.pod.Asks && opinion == nil {
		if asked := p.ask(e); len(asked) > 0 {
			p.queue.parkBinding(e)
			return Decision{Pod: e.pod, Attempt: e.attempts + 1, Came: e.came, Asked: asked}, true
		}
	}
	e.attempts++
	d = Decision{Pod: e.pod, Attempt: e.attempts, Came: e.came}
	e.demand = p.cluster.demandOf(e.class, e.who, e.pod.Owner)
	if opinion != nil {
		chosen := p.cluster.chooseHeard(e.demand, e.pod.ID, opinion)
		if chosen.failure == nil {
			return p.assume(now, e, d, chosen), true
		}
		d.Failure = chosen.failure
		p.queue.bindFailed(now, e.pod, false) // they say nothing when they change their mind
		return d, true
	}
	chosen := p.cluster.choose(e.demand, e.pod.ID)
	if chosen.failure != nil {
		if left == nil {
			if d.Offers = p.offers(e, chosen.failure); len(d.Offers) > 0 {
				e.attempts-- // it goes on when they have answered
				p.queue.move(e, binding)
				d.Failure = chosen.failure
				return d, true
			}
		}
		d.Failure = chosen.failure
		d.Preemption = p.makeRoom(now, e, chosen.failure, left)
		if left != nil && d.Preemption == nil && chosen.failure.Preemption == reasonNoOffer {
			p.queue.bindFailed(now, e.pod, false) // they say nothing when they change their mind
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
	p.queue.parkBinding(e)
	p.cluster.dismiss(e.pod.ID)
	return d
}

// await lets a pod wait that was just tried in vain, for what may undo what was found to keep it off.
func (p *Placer) await(now unit.Instant, e *entry, f *Failure) {
	c := p.cluster
	p.queue.parkUnschedulable(now, e)
	w := c.waits.of[e.demand]
	if w.rules |= f.Rejected | e.demand.useless; e.pod.Asks {
		w.rules = ^RuleSet(0) // others have rejected what the rules allow: whatever happens there may help
	}
	w.block = c.blockOf(e.demand)
	w.setFloor()
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
	return e.misses > 0 && w != nil && w.known && !w.concerned && c.wishes[e.pod.ID] == nil && c.demandOf(e.class, e.who, e.pod.Owner) == e.demand
}

// makeRoom chooses whom to evict for a pod that fits nowhere, and nominates it there. Pods of lower priority for which
// room was being made on that node must look elsewhere. left is what others have left to choose from; nil: they were
// not asked.
func (p *Placer) makeRoom(now unit.Instant, e *entry, f *Failure, left *[]Preemption) *Preemption {
	if len(e.demand.unsupported) > 0 || f.Nodes == 0 {
		return nil
	}
	c := p.cluster
	made, why := c.preempt(e.demand, e.pod.ID)
	if made != nil && left != nil {
		if made = c.leastHarm(e.demand, e.pod.ID, *left); made == nil {
			why = reasonNoOffer
		}
	}
	f.Preemption = why
	if made == nil {
		if !e.demand.neverPreempts && !c.awaitsVictims(e.demand, e.pod.ID) && !c.awaitsNode(e.pod.ID) {
			p.cluster.dismiss(e.pod.ID) // it will not come to anything
		}
		return nil
	}
	p.cluster.dismiss(e.pod.ID)
	c.nominate(&e.pod, made.Node)
	w := c.wishes[e.pod.ID]
	for i := range made.Victims {
		v := &made.Victims[i]
		w.victims = append(w.victims, v.ID)
		if v.Assumed = p.bindOnItsWay(v.ID); v.Assumed {
			w.back = append(w.back, v.ID)
			p.takeBack(now, v.ID)
		} else {
			c.charge(e.pod.ID, v.ID)
		}
	}
	for _, w := range slices.Clone(c.nominated[c.rows[made.Node]]) {
		if w.class.priority < e.demand.priority {
			c.dismiss(w.id)
			p.Retry(now, w.id)
		}
	}
	return made
}

// bindOnItsWay reports whether a pod was placed, and the fate of its bind is not known yet.
func (p *Placer) bindOnItsWay(id PodID) bool {
	state := p.queue.stateOf(id)
	return p.cluster.isAssumed(id) && (state == binding || state == unsettled)
}

// takeBack takes a victim off its row that waits for its volumes: nothing is on its way that could bind it. Of others
// the shell says what became of their binds.
func (p *Placer) takeBack(now unit.Instant, id PodID) {
	if plan := p.cluster.plans[id]; plan != nil && plan.written {
		p.queue.bindFailed(now, p.queue.entries[id].pod, false)
		p.forget(id)
	}
}

// boundAllTheSame lets those try again for whom the bind of a pod was to be withdrawn, and that was bound.
func (p *Placer) boundAllTheSame(now unit.Instant, id PodID) {
	c := p.cluster
	h := c.pods[id]
	if h == nil {
		return
	}
	for _, w := range slices.Clone(c.nominated[h.Row]) {
		if slices.Contains(w.back, id) {
			p.Retry(now, w.id)
		}
	}
}

// Retry lets a pod that waits for room try again: making it has failed.
func (p *Placer) Retry(now unit.Instant, id PodID) {
	if w := p.cluster.wishes[id]; w != nil {
		p.cluster.spare(w)
	}
	if e := p.queue.entries[id]; e != nil && e.pool == unschedulable {
		p.queue.ready(now, e)
	}
}

// EvictionFailed lets a pod that waits for room try again after its back-off: making room was refused, and at once it
// would be again.
func (p *Placer) EvictionFailed(now unit.Instant, id PodID) {
	if w := p.cluster.wishes[id]; w != nil {
		p.cluster.spare(w)
	}
	if e := p.queue.entries[id]; e != nil && e.pool == unschedulable {
		p.queue.bindFailed(now, e.pod, false)
	}
}

// Wake is the latest instant at which Next wants to be called again if no fact arrives. Zero: none.
func (p *Placer) Wake() unit.Instant {
	wake := p.queue.wakeAt()
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

// Pending counts the pods in each pool, under upstream's names for them.
func (p *Placer) Pending() map[string]int {
	p.hear(p.heardAt)
	return p.queue.counts()
}

// Sizes counts what is kept: nodes, pods on them, and of these the assumed ones.
func (p *Placer) Sizes() (nodes, pods, assumed int) {
	return p.cluster.seenCount, len(p.cluster.pods), p.cluster.assumed
}

// Verdicts judges pod against every node, in the order of names: what `why` and `whatif` print.
func (p *Placer) Verdicts(pod Pod) (out []Verdict) {
	p.cluster.ask(&pod, func(d *demand) { out = p.cluster.verdicts(d, pod.ID) })
	return out
}

// Scores rates the feasible nodes for pod, in the order of names. With fewer than two there is nothing to compare, and
// no scores.
func (p *Placer) Scores(pod Pod) (out []NodeScore) {
	p.cluster.ask(&pod, func(d *demand) { out = p.cluster.scores(d, pod.ID) })
	return out
}

// Evictions lists, for a pod that fits nowhere, every node on which evictions would make room, and whose: the fewest
// there.
func (p *Placer) Evictions(pod Pod) (out []Preemption) {
	p.cluster.ask(&pod, func(d *demand) { out = p.cluster.evictions(d, pod.ID) })
	return out
}

// ask compiles pod for a question and lets it go again.
func (c *cluster) ask(pod *Pod, question func(*demand)) {
	k, who := c.compile(pod), c.identify(pod)
	question(c.demandOf(k, who, pod.Owner))
	c.releaseClass(k)
	c.releaseIdentity(who)
}
