package scheduler

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"

type numaFilter struct{}

func (numaFilter) about() ruling {
	return ruling{
		rule:   RuleNUMA,
		plugin: "NodeResourceTopologyMatch",
		ends:   byRoom,
		reads:  podFields{"NUMA"},
	}
}

func (numaFilter) asks(d *demand) bool { return d.numa != nil }

// judge demands that the node's agent will find CPUs, memory and devices for the pod as its policies want them:
// the agent's own offer, on what the node will have when all pods before this one have arrived. A node without a report
// is not asked, as upstream asks none.
func (numaFilter) judge(c *state, d *demand, r row) bool { return c.judgeNUMA(d, r).reason == "" }

func (numaFilter) explain(c *state, d *demand, r row, reasons []string) []string {
	return append(reasons, c.judgeNUMA(d, r).reason)
}

// final: what the empty machine would refuse, no eviction makes possible.
func (numaFilter) final(c *state, d *demand, r row) bool { return c.judgeNUMA(d, r).final }

func (f numaFilter) narrow(c *state, d *demand, m rows.Mask) {
	if d.numa != nil {
		c.narrowAmong(f.judge, d, m, c.marks.reporting)
	}
}
