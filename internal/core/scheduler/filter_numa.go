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

func (numaFilter) applies(d *demand) bool { return d.numa != nil }

// judge requires that the node's agent will find CPUs, memory and devices for the pod that satisfy the agent's
// policies. It asks numa.State.Offer, as the agent does, for the state that the node will have when all pods before
// this one have arrived. A node without a report is not judged, as in upstream.
func (numaFilter) judge(c *state, d *demand, r row) bool { return c.judgeNUMA(d, r).reason == "" }

func (numaFilter) explain(c *state, d *demand, r row, reasons []string) []string {
	return append(reasons, c.judgeNUMA(d, r).reason)
}

// final: if the node without any pod would reject the pod, no eviction helps.
func (numaFilter) final(c *state, d *demand, r row) bool { return c.judgeNUMA(d, r).final }

func (f numaFilter) narrow(c *state, d *demand, m rows.Mask) {
	if d.numa != nil {
		c.narrowAmong(f.judge, d, m, c.marks.reporting)
	}
}
