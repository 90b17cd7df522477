package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// Bars, from the project's issue on heartbeats and node health ("Numbers").
const (
	barUnknown = 0.250  // s, p99
	barCPU     = 1. / 4 // of upstream's
	barZone    = 1. / 5 // of upstream's: five times sooner
	barFleet   = 0.5    // cores, with 5,000 nodes
	barSim     = 60.    // s
)

func lines(c config) []record.Line {
	steady := fmt.Sprintf("Steady, %d nodes alive", c.nodes)
	some := fmt.Sprintf("%d nodes fall silent", c.silent)
	zone := fmt.Sprintf("a zone of %d nodes falls silent at once", c.nodes/c.zones)
	out := []record.Line{
		{Name: "cores_controller", Title: "controller, CPU", Unit: "cores", Bar: record.Bar{RatioMax: barCPU}, Group: steady},
		{Name: "rss_controller", Title: "controller, resident memory", Unit: "MiB", Group: steady},
		{Name: "cores_fleet", Title: "fleet, CPU", Unit: "cores", Bar: record.Bar{Max: barFleet}, Group: steady},
		{Name: "rss_fleet", Title: "fleet, resident memory", Unit: "MiB", Group: steady},
		{Name: "renewals", Title: "leases renewed", Unit: "1/s", Group: steady},
		{Name: "p99_renewal", Title: "renewal, p99", Unit: "s", Group: steady},
		{Name: "cores_control", Title: "control plane, CPU", Unit: "cores", Group: steady},
		{Name: "cores_others", Title: "others on this machine, CPU", Unit: "cores", Group: steady},
		{Name: "p50_unknown", Title: "Unknown after the grace period, p50", Unit: "s", Group: some},
		{Name: "p99_unknown", Title: "Unknown after the grace period, p99", Unit: "s", Bar: record.Bar{Max: barUnknown},
			Group: some},
		{Name: "first_unknown", Title: "Unknown after the grace period, soonest", Unit: "s", Group: some},
		{Name: "p99_taint", Title: "NoSchedule after the grace period, p99", Unit: "s", Group: some},
		{Name: "zone_unknown", Title: "all Unknown, after the last grace period", Unit: "s", Group: zone},
		{Name: "zone_all", Title: "all Unknown and NoSchedule, after the last grace period", Unit: "s",
			Bar: record.Bar{RatioMax: barZone}, Group: zone},
		{Name: "zone_since_death", Title: "the same, since they died", Unit: "s", Group: zone},
		{Name: "heal", Title: "all Ready and untainted, after their return", Unit: "s", Group: "All return"},
		{Name: "peak", Title: "controller, highest resident memory of the round", Unit: "MiB", Group: "All return"},
	}
	if c.sim {
		out = append(out, record.Line{Name: "sim", Title: "50,000 nodes, one day, zones fail: `plimsoll sim --day`",
			Unit: "s", Bar: record.Bar{Max: barSim}, Group: "Virtual time"})
	}
	return out
}

func newReport(ctx context.Context, c config) *record.Report {
	facts := record.Machine(ctx)
	facts = append(facts,
		record.Fact{Name: "plimsoll", Value: record.Output(ctx, c.plimsoll, "version")},
		record.Fact{Name: "upstream", Value: record.Output(ctx, c.controlplane, "kube-controller-manager", "--version")})
	if c.load {
		return &record.Report{
			Title: "The effect of node lifecycle controllers on another client", Program: "lifecycle", Ours: ours,
			Theirs: upstream, Lines: loadLines(c), Rounds: c.rounds,
			Args: os.Args[1:], Began: time.Now(), Machine: facts,
			Notes: []string{
				fmt.Sprintf("%d nodes in %d zones, all of which die; grace %s for all", c.nodes, c.zones, c.grace),
				fmt.Sprintf("another client: %d requests a second, of four two GETs, a LIST of %d objects and a PATCH, "+
					"counted from when each was due", c.rate, otherObjects),
				fmt.Sprintf("at rest for %s; a controller that has not marked all %s after their grace is cut off", c.steady,
					c.markLimit),
			},
		}
	}
	return &record.Report{
		Title: "Node lifecycle controllers side by side", Program: "lifecycle", Ours: ours, Theirs: upstream, Lines: lines(c),
		Rounds: c.rounds,
		Args:   os.Args[1:], Began: time.Now(), Machine: facts,
		Notes: []string{fmt.Sprintf("%d nodes in %d zones; grace %s for both; steady window %s in %d of the rounds", c.nodes,
			c.zones, c.grace, c.steady, min(c.steadyRounds, c.rounds))},
	}
}

// othersMax is how many cores other processes may use in a steady window before the report warns.
const othersMax = 0.1

// noise returns warnings about doubtful results.
func noise(measurements []*record.Measurement) (warnings []string) {
	for _, m := range measurements {
		warn := func(format string, args ...any) {
			warnings = append(warnings, fmt.Sprintf("%s, round %d: ", m.Side, m.Round)+fmt.Sprintf(format, args...))
		}
		if cores := m.Values["cores_others"]; cores > othersMax {
			warn("steady window: others used %.2f cores of this machine", cores)
		}
		for _, name := range []string{"wronged", "wronged_some", "wronged_zone"} {
			if n := m.Values[name]; n > 0 {
				warn("%v nodes that were beating were not Ready: the machine was too slow for their leases, "+
					"or the controller was wrong", n)
			}
		}
	}
	return warnings
}
