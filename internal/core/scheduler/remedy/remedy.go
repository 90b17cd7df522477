// Package remedy finds the smallest change that would let a waiting pod onto a node.
//
// # Model
//
// A World is a scheduler.Placer with those facts that a change changes: nodes, disruption budgets, and which pods are
// where. Ask judges one waiting pod: how many nodes gave each reason, which node is the nearest miss, and a Remedy of
// each side. Groups does so for many pods, and puts those with the same answer together.
//
// A Remedy is a list of Changes: of the pod (a smaller request, a toleration, a term that is dropped), of one node (a
// taint that is removed, more room, a label), one more node, or a preemption (of its own, with a higher priority, or
// with more disruptions that a budget allows). It is found node by node: the Placer says which rule rejects the node,
// the changes that concern this rule are tried, and the Placer is asked again, until the node is feasible or no change
// helps. Costs decide which node's remedy is the smallest: first by how many rules it concerns, then by the weights of
// its kinds of changes, then by the share of the requests that it concerns (cost.go). Nodes are tried in the order of a
// lower bound of that cost (bounds.go), until no other can be cheaper.
//
// # Invariants
//
//   - Every Remedy was proven: the Placer was asked with the changes made, and found the node of the Remedy feasible,
//     or the preemption possible. Nothing is proposed that was not asked.
//   - No change of a Remedy can be left out (unless a pod has more than optionsMax terms that one rule reads).
//   - After each question the World is as it was before.
//   - The same facts give the same answers: equal costs are decided by the order of node names.
//
// # What it does not do
//
// It judges each pod alone: a remedy for one pod of a group may not have room for all of them. It proposes no change
// for volumes, NUMA nodes, and what a node's agent lacks; the reasons say what is missing. It weighs no value: that a
// change is small does not mean that it is wise. It reads nothing and writes nothing; package explain is its shell.
package remedy

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// World is a cluster to ask about. It is not safe for concurrent use.
type World struct {
	placer  *scheduler.Placer
	now     unit.Instant // when the last fact was recorded; a change is undone at that time
	nodes   map[string]*scheduler.Node
	budgets map[string]*scheduler.Budget // by namespace and name
	placed  map[scheduler.PodID]placedPod
	reports bool        // some node's agent reports about its NUMA nodes
	room    []candidate // working space of candidates
}

// placedPod is what is kept of a pod on a node: who it is for budgets.
type placedPod struct {
	node, namespace, name string
	labels                []scheduler.Label
}

// NewWorld returns an empty cluster.
func NewWorld(o scheduler.Options) *World {
	return &World{
		placer:  scheduler.New(o),
		nodes:   map[string]*scheduler.Node{},
		budgets: map[string]*scheduler.Budget{},
		placed:  map[scheduler.PodID]placedPod{},
	}
}

// Placer is for facts that no change concerns: volumes, namespaces, groups. Facts about nodes, budgets, pods and
// reports of NUMA nodes must be recorded with the methods of the World.
func (w *World) Placer() *scheduler.Placer { return w.placer }

// NodeSeen records a node.
func (w *World) NodeSeen(now unit.Instant, n scheduler.Node) {
	w.now = now
	w.nodes[n.Name] = &n
	w.placer.NodeSeen(now, n)
}

// PodSeen records a pod: one that is bound, or one that waits. Of waiting pods only those with a nomination matter.
func (w *World) PodSeen(now unit.Instant, pod scheduler.Pod) {
	w.now = now
	if pod.Node != "" {
		w.placed[pod.ID] = placedPod{node: pod.Node, namespace: pod.Namespace, name: pod.Name, labels: pod.Labels}
	}
	w.placer.PodSeen(now, pod)
}

// BudgetSeen records a disruption budget.
func (w *World) BudgetSeen(now unit.Instant, b scheduler.Budget) {
	w.now = now
	w.budgets[b.Namespace+"/"+b.Name] = &b
	w.placer.BudgetSeen(now, b)
}

// ReportSeen records the report of a node's agent about its NUMA nodes.
func (w *World) ReportSeen(now unit.Instant, node string, report *numa.State) {
	w.now, w.reports = now, true
	w.placer.ReportSeen(now, node, report)
}

// Nodes returns how many nodes there are.
func (w *World) Nodes() int { return len(w.nodes) }

// An Answer is what the core says about one waiting pod.
type Answer struct {
	// Gates are its scheduling gates: it is not scheduled before they are removed. Everything else in the Answer holds
	// for the time after that.
	Gates []string
	// Feasible has the nodes that would take the pod as it is. If there are any, there is no Failure.
	Feasible []string
	Failure  *scheduler.Failure
	Reasons  []Reason // the most frequent first
	// Nearest is the verdict for the nearest miss: the node of the smallest change, or else the one that most rules
	// allow. Nil: the pod fits, or there is no node.
	Nearest  *scheduler.Verdict
	Remedies []Remedy // of each side at most one, the smallest first
}

// A Reason says why some nodes reject the pod.
type Reason struct {
	Plugin string // upstream's name
	Text   string // in upstream's words
	Nodes  []string
}

// Side says what a Remedy changes.
type Side string

// The sides. They are a part of the output for programs.
const (
	OfPod        Side = "pod"
	OfNode       Side = "node"
	OfNewNode    Side = "new node"   // one more node
	OfPreemption Side = "preemption" // nothing changes: the pod may preempt others already
	OfPriority   Side = "priority"   // the pod may preempt others if it is changed
	OfBudget     Side = "budget"     // the pod may preempt others without violating a budget
)

// A Remedy is changes that together let the pod onto a node.
type Remedy struct {
	Of   Side
	Node string // which node takes the pod then
	// Changes are in the order in which the rules are evaluated. There are none if Of is OfPreemption.
	Changes []Change
	// Fits is how many nodes would take the pod then. It is counted if Of is OfPod.
	Fits int
	// Victims are the pods that are preempted, Violations how many of them a disruption budget protects.
	Victims    []scheduler.Victim
	Violations int

	cost cost
}

// Ask judges a waiting pod.
func (w *World) Ask(pod scheduler.Pod) Answer {
	defer w.placer.Hold(pod)()
	all, rejections, failure := w.placer.Judge(pod, bounded)
	a := Answer{Gates: pod.Gates, Failure: failure, Reasons: reasonsOf(all)}
	for i := range all {
		if all[i].Plugin == "" {
			a.Feasible = append(a.Feasible, all[i].Node)
		}
	}
	if len(a.Feasible) > 0 {
		if len(pod.Gates) > 0 {
			a.Remedies = []Remedy{{Of: OfPod, Node: a.Feasible[0], Changes: gatesOf(&pod), Fits: len(a.Feasible)}}
		}
		return a
	}
	if len(all) == 0 {
		return a
	}
	a.Remedies = w.remedies(&pod, all, rejections)
	a.Nearest = nearest(all, a.Remedies)
	return a
}

// nearest returns the verdict for the node of the smallest remedy. If there is none, the node that the last rule
// rejects is the nearest.
func nearest(all []scheduler.Verdict, found []Remedy) *scheduler.Verdict {
	best := &all[0]
	for i := range all {
		v := &all[i]
		for _, r := range found {
			if r.Of == OfPod || r.Of == OfNode {
				if v.Node == r.Node {
					return v
				}
				break
			}
		}
		if v.Rule > best.Rule {
			best = v
		}
	}
	return best
}
