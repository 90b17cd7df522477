package journal

import (
	"fmt"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Decision is the Detail of an Eviction record: eviction.Resume(Config, Before).Step(Now, Facts) returns Decided again.
type Decision struct {
	Notifications []string // the notifications that led to the check; none: it was due
	Config        eviction.Config
	Before        eviction.State
	Now           unit.Instant
	Facts         eviction.Facts
	Decided       eviction.Decision
	Kills         []Kill
}

// Kill is the outcome of one victim's eviction.
type Kill struct {
	UID string
	// how the kernel was asked; empty: its termination grace period runs, or the agent made no cgroup for it
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
	return text + fmt.Sprintf("conditions %v; evicts %d of %d pods", d.Decided.Conditions, len(d.Decided.Victims), len(d.Facts.Pods))
}
