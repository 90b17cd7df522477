package journal

import (
	"fmt"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Decision is the Detail of an Eviction record: eviction.Resume(Config, Before).Step(Now, Facts) returns Decided again.
type Decision struct {
	Notifications []string // the notifications that caused the check; none: a periodic check was due
	Config        eviction.Config
	Before        eviction.State // the state before the check
	Now           unit.Instant
	Facts         eviction.Facts    // what the check saw
	Decided       eviction.Decision // what it decided
	Kills         []Kill            // outcomes of the evictions
}

// Kill is the outcome of one victim's eviction.
type Kill struct {
	UID string
	// How is how the pod's processes were killed (cgroup.Killing.How). Empty: they were not killed: the termination grace
	// period runs, or the agent made no cgroup for the pod.
	How       string
	Processes int           // how many processes were seen
	After     time.Duration // from the beginning of the check until SIGKILL was sent
	Error     string        `json:",omitempty"`
}

// Text returns the decision in one line.
func (d Decision) Text() string {
	text := ""
	for _, m := range d.Decided.Met {
		state := "waits for its grace period"
		if m.Acts {
			state = "acts"
		}
		text += fmt.Sprintf("%s: %d available, threshold %d, %s; ", m.Signal, m.Available, m.Amount, state)
	}
	if text == "" {
		text = "no threshold is met; "
	}
	for _, r := range d.Decided.Reclaim {
		text += fmt.Sprintf("reclaims %s; ", r.Step)
	}
	return text + fmt.Sprintf("conditions %v; evicts %d of %d pods", d.Decided.Conditions, len(d.Decided.Victims),
		len(d.Facts.Pods))
}
