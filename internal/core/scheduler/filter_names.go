package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

type nameFilter struct{}

func (nameFilter) about() ruling {
	return ruling{
		rule:   RuleNames,
		plugin: PluginNodeAffinity,
		ends:   byNode,
		reads:  podFields{"NodeAffinity"},
		alike:  true,
	}
}

func (nameFilter) applies(d *demand) bool { return d.onlyNames != nil }

// judge rejects nodes other than those that the pod's affinity names, as that of DaemonSet pods does. It comes before
// most filters and has its own reason, like upstream's PreFilter result.
func (nameFilter) judge(c *state, d *demand, r row) bool {
	if d.onlyNames == nil {
		return true
	}
	_, found := slices.BinarySearch(d.onlyNames, c.name[r])
	return found
}

func (nameFilter) final(*state, *demand, row) bool { return true }

func (nameFilter) explain(_ *state, d *demand, _ row, reasons []string) []string {
	if d.conflict {
		return append(reasons, "pod affinity terms conflict")
	}
	return append(reasons, "node(s) didn't satisfy plugin(s) [NodeAffinity]")
}

func (nameFilter) narrow(c *state, d *demand, m rows.Mask) {
	if d.onlyNames == nil {
		return
	}
	named := c.emptyMask(len(m))
	for _, name := range d.onlyNames {
		if r, known := c.rows[name]; known && m.Has(r) {
			named.Set(r)
		}
	}
	m.Only(named)
}
