package scheduler

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

type volumeLimitFilter struct{}

func (volumeLimitFilter) about() ruling {
	return ruling{
		rule:   RuleVolumeLimits,
		plugin: "NodeVolumeLimits",
		ends:   byRoom,
		reads:  podFields{"Namespace", "Mounts"},
		alike:  true,
	}
}

func (volumeLimitFilter) applies(d *demand) bool {
	return d.volumes != nil && len(d.volumes.Attached) > 0
}

// judge requires that no driver must attach more volumes to the node than its limit.
//
// As upstream, a volume that is still attached and that the pod will use counts twice, unless another pod on the node
// uses it.
func (volumeLimitFilter) judge(c *state, d *demand, r row) bool {
	return d.volumes == nil || len(d.volumes.Attached) == 0 || !c.storage.TooMany(r, d.volumes.Attached)
}

func (volumeLimitFilter) explain(_ *state, _ *demand, _ row, reasons []string) []string {
	return append(reasons, "node(s) exceed max volume count")
}

func (volumeLimitFilter) final(*state, *demand, row) bool { return false }

func (f volumeLimitFilter) key(c *state, d *demand, r row, key []int32) []int32 {
	if d.volumes == nil || len(d.volumes.Attached) == 0 {
		return key
	}
	return append(key, verdictKey(f.judge(c, d, r)))
}

// verdictKey returns a key that distinguishes rows by a rule's answer.
func verdictKey(passes bool) int32 {
	if passes {
		return 1
	}
	return 0
}

// narrow checks only rows where this many more volumes might exceed a limit.
func (f volumeLimitFilter) narrow(c *state, d *demand, m rows.Mask) {
	if d.volumes == nil || len(d.volumes.Attached) == 0 || !m.Meets(c.marks.limited) {
		return
	}
	near := c.emptyMask(len(m))
	volumes.EachDriver(d.volumes.Attached, func(driver string, more int64) {
		c.scratch = encode.Number(encode.String(append(c.scratch[:0], keyLimits), driver), more)
		full := c.predicateOf(&c.changes, m, c.scratch, func(r row) bool { return c.storage.Exceeds(r, driver, more) })
		if full == nil {
			near.Add(c.marks.limited)
			return
		}
		near.Add(full.rows)
	})
	c.narrowAmong(f.judge, d, m, near)
}
