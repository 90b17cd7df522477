package journal

import (
	"fmt"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/eviction"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Decision is the detail of an Eviction: eviction.Resume(Config, Before).Step(Now, Facts) gives Decided again.
type Decision struct {
	Rings   []string // what led to the look; none: it was time
	Config  eviction.Config
	Before  eviction.State
	Now     unit.Instant
	Facts   eviction.Facts
	Decided eviction.Decision
	Kills   []Kill
}

// Kill is what became of a victim.
type Kill struct {
	UID       string
	How       string        // the kernel's way; empty: its grace runs, or it has no group of ours
	Processes int           // as far as they were seen
	After     time.Duration // from the beginning of the look until SIGKILL was on its way
	Error     string        `json:",omitempty"`
}

// Text is the decision in one line.
func (d Decision) Text() string {
	text := ""
	for _, m := range d.Decided.Met {
		state := "waits for its grace"
		if m.Acts {
			state = "acts"
		}
		text += fmt.Sprintf("%s: %d available, line %d, %s; ", m.Signal, m.Available, m.Line, state)
	}
	if text == "" {
		text = "no threshold is met; "
	}
	for _, r := range d.Decided.Reclaim {
		text += fmt.Sprintf("reclaims %s; ", r.Step)
	}
	return text + fmt.Sprintf("conditions %v; evicts %d of %d pods", d.Decided.Conditions, len(d.Decided.Victims), len(d.Facts.Pods))
}
