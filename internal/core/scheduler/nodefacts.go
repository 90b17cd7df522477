package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// What the Placer is told of nodes, and of what selects pods: namespaces, groups and budgets.

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
