package scheduler

import (
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

type agentFilter struct{}

func (agentFilter) about() ruling {
	return ruling{
		rule:   RuleAgent,
		plugin: "Plimsoll",
		ends:   byNode | byVolumes,
		reads:  podFields{"NeedsOfAgent", "Mounts"},
	}
}

func (agentFilter) applies(d *demand) bool {
	return len(d.ofAgent) > 0 || d.volumes != nil && len(d.volumes.OfAgent) > 0
}

// judge rejects nodes whose agent reports that it lacks something that the pod needs, or a volume to which one of its
// claims is bound: the agent would hold the pod. An agent that reports nothing, such as upstream's kubelet, counts as
// having everything. Volumes that are yet to be chosen or provisioned are checked by volumeBindingFilter.judge.
func (agentFilter) judge(c *state, d *demand, r row) bool {
	return !c.agentLacksAny(r, d.ofAgent) && (d.volumes == nil || !c.agentLacksAny(r, d.volumes.OfAgent))
}

func (agentFilter) final(*state, *demand, row) bool { return true }

func (c *state) agentLacksAny(r row, needs []string) bool {
	at := c.place(r)
	return at.LacksAny(needs)
}

func (agentFilter) explain(c *state, d *demand, r row, reasons []string) []string {
	needs := slices.Clone(d.ofAgent)
	if d.volumes != nil {
		needs = append(needs, d.volumes.OfAgent...)
	}
	needs = slices.DeleteFunc(needs, func(need string) bool { return !c.agentLacksAny(r, []string{need}) })
	slices.Sort(needs)
	return append(reasons, volumes.AgentWouldHold+"it has no "+strings.Join(slices.Compact(needs), ", "))
}

func (f agentFilter) narrow(c *state, d *demand, m rows.Mask) {
	if len(d.ofAgent) > 0 || d.volumes != nil && len(d.volumes.OfAgent) > 0 {
		c.narrowAmong(f.judge, d, m, c.marks.lacking)
	}
}
