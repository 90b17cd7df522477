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
	p.setKubeletNode(n.Name, n.OtherAgent)
	p.factAt = now
}

// setKubeletNode records whether a kubelet runs the node. While it does, the report of the agent that ran the node
// before is not used, because nobody keeps it up to date. It is used again when an agent of ours returns.
func (p *Placer) setKubeletNode(node string, byKubelet bool) {
	if p.kubeletNodes[node] == byKubelet {
		return
	}
	if byKubelet {
		p.kubeletNodes[node] = true
		p.cluster.setReport(node, nil)
		return
	}
	delete(p.kubeletNodes, node)
	p.cluster.setReport(node, p.reports[node])
}

// NodeGone records that a node was deleted. Its pods still count until they are deleted, so a new node with the same
// name is not overfilled. Pods nominated on it are tried again.
func (p *Placer) NodeGone(now unit.Instant, name string) {
	p.setKubeletNode(name, false)
	r, known := p.cluster.removeNode(name)
	if !known {
		return
	}
	for _, w := range slices.Clone(p.cluster.nominated[r]) {
		p.cluster.clearNomination(w.id)
		p.Retry(now, w.id)
	}
}

// ReportSeen records the report of a node's agent about its NUMA nodes. The Placer keeps report, and does not use it
// while a kubelet runs the node (Node.OtherAgent).
func (p *Placer) ReportSeen(now unit.Instant, node string, report *numa.State) {
	if p.reports[node] = report; report == nil {
		delete(p.reports, node)
	}
	if !p.kubeletNodes[node] {
		p.cluster.setReport(node, report)
	}
	p.factAt = now
}

// ReportGone records that there is no report of a node's agent any more. From then on, NUMA rules reject no pod there.
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
