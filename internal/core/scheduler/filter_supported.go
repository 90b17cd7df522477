package scheduler

import (
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

type supportFilter struct{}

func (supportFilter) about() ruling {
	return ruling{
		rule:   RuleSupported,
		plugin: "Plimsoll",
		ends:   byNothing,
		reads:  podFields{"Unsupported"},
		alike:  true,
	}
}

func (supportFilter) applies(d *demand) bool { return len(d.unsupported) > 0 }

// judge rejects a pod with a requirement that no rule here checks, on every node. Placing it anyway would silently
// violate the requirement.
func (supportFilter) judge(_ *state, d *demand, _ row) bool { return len(d.unsupported) == 0 }

func (supportFilter) final(*state, *demand, row) bool { return true }

func (supportFilter) explain(_ *state, d *demand, _ row, reasons []string) []string {
	return append(reasons, unsupportedReason(d))
}

func unsupportedReason(d *demand) string {
	return "this scheduler does not support " + strings.Join(d.unsupported, ", ") + " yet"
}

func (supportFilter) narrow(_ *state, d *demand, m rows.Mask) { m.Unless(len(d.unsupported) > 0) }
