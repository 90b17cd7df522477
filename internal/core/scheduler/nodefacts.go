package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// This file has the Placer's methods for facts about nodes, and about namespaces, groups and budgets.

// NodeSeen records a new or changed node.
func (p *Placer) NodeSeen(now unit.Instant, n Node) {
	p.cluster.setNode(n)
	p.setOthersNode(n.Name, n.OtherAgent)
	p.factAt = now
}

// setOthersNode records whether a kubelet runs the node. It withdraws the report of the agent before, which nobody
// keeps up to date, and brings it back with the agent.
func (p *Placer) setOthersNode(node string, others bool) {
	if p.othersNodes[node] == others {
		return
	}
	if others {
		p.othersNodes[node] = true
		p.cluster.setReport(node, nil)
		return
	}
	delete(p.othersNodes, node)
	p.cluster.setReport(node, p.reports[node])
}

// NodeGone records that a node was deleted. Its pods still count until they are deleted, so a new node with the same
// name is not overfilled. Pods nominated on it are tried again.
func (p *Placer) NodeGone(now unit.Instant, name string) {
	p.setOthersNode(name, false)
	r, known := p.cluster.removeNode(name)
	if !known {
		return
	}
	for _, w := range slices.Clone(p.cluster.nominated[r]) {
		p.cluster.clearNomination(w.id)
		p.Retry(now, w.id)
	}
}

// ReportSeen records the report of a node's agent about its NUMA nodes. The Placer keeps report. It counts for nothing
// while a kubelet runs the node (Node.OtherAgent).
func (p *Placer) ReportSeen(now unit.Instant, node string, report *numa.State) {
	if p.reports[node] = report; report == nil {
		delete(p.reports, node)
	}
	if !p.othersNodes[node] {
		p.cluster.setReport(node, report)
	}
	p.factAt = now
}

// ReportGone records that a node's agent no longer has a report. From then on, the node is not judged by NUMA.
func (p *Placer) ReportGone(now unit.Instant, node string) { p.ReportSeen(now, node, nil) }

// NamespaceSeen records the labels of a namespace, sorted by key.
func (p *Placer) NamespaceSeen(now unit.Instant, name string, labels []Label) {
	if p.cluster.SetNamespace(name, labels) {
		p.queue.renewAll(now, name, func(*entry) bool { return true })
	}
}

// NamespaceGone records that a namespace was deleted.
func (p *Placer) NamespaceGone(now unit.Instant, name string) { p.NamespaceSeen(now, name, nil) }

// GroupSeen records an object that selects pods. It affects scores and, in profiles with hard default spread
// constraints, where pods may go.
func (p *Placer) GroupSeen(now unit.Instant, g Group) {
	if p.cluster.groups.set(g) {
		p.regroup(now, g.Namespace)
	}
}

// GroupGone records that such an object was deleted.
func (p *Placer) GroupGone(now unit.Instant, g Group) {
	p.cluster.groups.remove(g)
	p.regroup(now, g.Namespace)
}

func (p *Placer) regroup(now unit.Instant, namespace string) {
	if p.cluster.hardDefaults {
		p.queue.renewAll(now, namespace, func(e *entry) bool { return e.class.hardDefaults() })
	}
}

// BudgetSeen records a PodDisruptionBudget.
func (p *Placer) BudgetSeen(_ unit.Instant, b Budget) { p.cluster.setBudget(b) }

// BudgetGone records that a budget was deleted.
func (p *Placer) BudgetGone(_ unit.Instant, namespace, name string) {
	p.cluster.removeBudget(namespace, name)
}
