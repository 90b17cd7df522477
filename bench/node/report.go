package main

import (
	"context"
	"fmt"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// newReport describes a run before it begins.
func newReport(ctx context.Context, c config, args []string) *record.Report {
	facts := record.Machine(ctx)
	for _, f := range []record.Fact{
		{Name: "containerd", Value: record.Output(ctx, "containerd", "--version")},
		{Name: "runc", Value: record.Output(ctx, "runc", "--version")},
		{Name: "plimsoll", Value: record.Output(ctx, c.plimsoll, "version")},
	} {
		facts = append(facts, f)
	}
	for _, s := range c.sides {
		if s.binary != "" {
			facts = append(facts, record.Fact{Name: "upstream kubelet", Value: record.Output(ctx, s.binary, "--version")})
		}
	}
	if c.churn > 0 {
		return &record.Report{
			Title: "Node agents while pods come and go", Program: "node", Ours: plimsoll, Theirs: kubelet,
			Lines: churnLines(c), Rounds: c.rounds,
			Args: args, Began: time.Now(), Machine: facts, Notes: []string{churnConditions(c)},
		}
	}
	return &record.Report{
		Title: "Node agents side by side", Program: "node", Ours: plimsoll, Theirs: kubelet, Lines: lines(c),
		Rounds: c.rounds,
		Args:   args, Began: time.Now(), Machine: facts, Notes: []string{conditions(c)},
	}
}

// conditions is the line of the report that says how it was measured.
func conditions(c config) string {
	text := fmt.Sprintf("windows: idle %s, steady %s, each after %s of rest, in %d of the rounds; "+
		"%d pods one by one a round",
		c.idle, c.steady, c.settle, min(c.steadyRounds, c.rounds), c.singles)
	if c.probes {
		text += "; each pod has an HTTP readiness probe each second"
	}
	if c.claims > 0 {
		text += fmt.Sprintf("; claims of each pod: %d, of volumes that were made before (an ext4 on a loop device each); "+
			"the driver is counted to the control plane", c.claims)
	}
	if c.scrape > 0 {
		text += fmt.Sprintf("; all metrics are read each %s of a window", c.scrape)
	}
	if c.guaranteed > 0 {
		text += fmt.Sprintf("; %d pods of a larger batch are Guaranteed", c.guaranteed)
	}
	return text
}

// How much other processes may use of the machine before the report warns: of a core in a window, where everything that
// is measured is a few hundredths; of all CPU time while a batch starts, where the kernel's own threads use up to a
// fifth (network and mount namespaces).
const (
	othersCoresMax = 0.1
	othersShareMax = 0.3
)

// noise returns warnings about windows in which other processes used the machine.
func noise(measurements []*record.Measurement, batches []int) (warnings []string) {
	warn := func(m *record.Measurement, format string, args ...any) {
		warnings = append(warnings, fmt.Sprintf("%s, round %d: ", m.Side, m.Round)+fmt.Sprintf(format, args...))
	}
	most := batches[len(batches)-1]
	windows := []string{"idle"}
	for _, n := range batches {
		windows = append(windows, sized("steady", n))
	}
	for _, m := range measurements {
		for _, window := range windows {
			if cores := m.Values["cores_others_"+window]; cores > othersCoresMax {
				warn(m, "%s window: others used %.2f cores of this machine", window, cores)
			}
		}
		others := m.Values[fmt.Sprintf("startcpu_%s_%d", roleOthers, most)]
		all := m.Values[fmt.Sprintf("startcpu_%s_%d", roleMachine, most)]
		if n := m.Values["resumed"]; n > 0 {
			warn(m, "the API server ended our watch %v times: some times are too long", n)
		}
		if others > othersShareMax*all {
			warn(m, "start of %d pods: others used %.0f%% of the CPU time: times are too long", most, 100*others/all)
		}
	}
	return warnings
}
