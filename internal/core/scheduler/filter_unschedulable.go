package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/wellknown"
)

// cordonTaint is the taint that a pod must tolerate to go to a cordoned node.
var cordonTaint = Taint{Key: wellknown.TaintUnschedulable, Effect: NoSchedule}

type cordonFilter struct{}

func (cordonFilter) about() ruling {
	return ruling{
		rule:   RuleUnschedulable,
		plugin: "NodeUnschedulable",
		ends:   byNode,
		reads:  podFields{"Tolerations"},
		alike:  true,
	}
}

func (cordonFilter) applies(d *demand) bool { return !d.toleratesNode }

// judge rejects cordoned nodes. It reads spec.unschedulable, because the equivalent taint is added later by a
// controller.
func (cordonFilter) judge(c *state, d *demand, r row) bool {
	return !c.unschedulable[r] || d.toleratesNode
}

func (cordonFilter) explain(_ *state, _ *demand, _ row, reasons []string) []string {
	return append(reasons, "node(s) were unschedulable")
}

func (cordonFilter) final(*state, *demand, row) bool { return true }

func (cordonFilter) narrow(c *state, d *demand, m rows.Mask) {
	if !d.toleratesNode {
		m.Less(c.marks.cordoned)
	}
}
