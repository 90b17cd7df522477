package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// PluginTaintToleration is upstream's name of the rule about taints, ReasonTaintToleration what it says of a node.
const (
	PluginTaintToleration = "TaintToleration"
	ReasonTaintToleration = "node(s) had untolerated taint(s)"
)

type taintFilter struct{}

func (taintFilter) about() ruling {
	return ruling{
		rule:   RuleTaints,
		plugin: PluginTaintToleration,
		ends:   byNode,
		reads:  podFields{"Tolerations"},
		alike:  true,
	}
}

func (taintFilter) applies(*demand) bool { return true }

// judge requires that the pod tolerates every NoSchedule and NoExecute taint of the node.
func (taintFilter) judge(c *state, d *demand, r row) bool {
	return selector.TolerateAll(d.tolerations, c.taints[r])
}

func (taintFilter) explain(_ *state, _ *demand, _ row, reasons []string) []string {
	return append(reasons, ReasonTaintToleration)
}

func (taintFilter) final(*state, *demand, row) bool { return true }

func (taintFilter) narrow(c *state, d *demand, m rows.Mask) {
	if len(d.tolerations) == 0 {
		m.Less(c.marks.tainted)
		return
	}
	if m.Meets(c.marks.tainted) {
		k := d.class
		c.scratch = selector.AppendTolerations(append(c.scratch[:0], keyTaints), k.tolerations)
		c.narrowBy(m, c.scratch, func(r row) bool { return selector.TolerateAll(k.tolerations, c.taints[r]) })
	}
}
