package remedy

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// This file has the World's methods for facts that end. A World that is asked once does not need them; one that
// follows a cluster does.

// NodeGone records that a node was deleted.
func (w *World) NodeGone(now unit.Instant, name string) {
	w.now = now
	delete(w.nodes, name)
	w.placer.NodeGone(now, name)
}

// PodGone records that a pod was deleted, or has ended.
func (w *World) PodGone(now unit.Instant, id scheduler.PodID) {
	w.now = now
	delete(w.placed, id)
	w.placer.PodGone(now, id)
}

// BudgetGone records that a disruption budget was deleted.
func (w *World) BudgetGone(now unit.Instant, namespace, name string) {
	w.now = now
	delete(w.budgets, namespace+"/"+name)
	w.placer.BudgetGone(now, namespace, name)
}

// ReportGone records that the report of a node's agent was deleted.
func (w *World) ReportGone(now unit.Instant, node string) {
	w.now = now
	w.placer.ReportGone(now, node)
}
