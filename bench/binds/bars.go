package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// The bars are from the project's issue on the scheduler ("Numbers").
const (
	barUpstream = 3.0 // times upstream's binds per second
	barBare     = 0.8 // of the bare loop's binds per second, in the same round
)

func lines(c config) (out []record.Line) {
	for _, s := range c.scenarios {
		group := "Pods without constraints"
		if s == spread {
			group = "Pods spread over zones (hard, maxSkew 5)"
		}
		out = append(out,
			record.Line{Name: "rate_" + s, Title: "binds per second", Unit: "1/s", Bar: record.Bar{RatioMin: barUpstream},
				Group: group},
			record.Line{Name: "share_" + s, Title: "share of the bare loop's rate", Bar: record.Bar{Min: barBare}, Group: group},
			record.Line{Name: "bare_" + s, Title: "the bare loop's rate (under ours)", Unit: "1/s", Group: group},
			record.Line{Name: "idle_" + s, Title: "of the machine idle meanwhile", Unit: "cores", Group: group},
			record.Line{Name: "stolen_" + s, Title: "of the machine given to others by its hypervisor", Unit: "cores",
				Group: group},
			record.Line{Name: "all_" + s, Title: "from the start of the program to the last bind", Unit: "s", Group: group},
			record.Line{Name: "cpu_" + s, Title: "scheduler, CPU per pod, until all Events are written", Unit: "ms",
				Group: group},
			record.Line{Name: "cpu_bound_" + s, Title: "of it until the last bind", Unit: "ms", Group: group},
			record.Line{Name: "events_" + s, Title: "Events per pod", Group: group},
			record.Line{Name: "drain_" + s, Title: "from the last bind until all Events are written", Unit: "s", Group: group},
			record.Line{Name: "control_" + s, Title: "control plane, CPU per pod", Unit: "ms", Group: group},
			record.Line{Name: "of_" + apiServer + "_" + s, Title: "of it kube-apiserver", Unit: "ms", Group: group},
			record.Line{Name: "of_etcd_" + s, Title: "of it etcd", Unit: "ms", Group: group})
		if c.controllers {
			out = append(out, record.Line{Name: "of_kube-controller-manager_" + s, Title: "of it kube-controller-manager",
				Unit: "ms", Group: group})
		}
		out = append(out,
			record.Line{Name: "rss_" + s, Title: "scheduler, resident memory at the end", Unit: "MiB", Group: group},
			record.Line{Name: "server_rss_" + s, Title: "kube-apiserver, resident memory at the end", Unit: "MiB", Group: group},
		)
	}
	if c.limited > 0 {
		out = append(out, record.Line{Name: "rate_limited", Title: "upstream with its default limit of 50 requests/s",
			Unit: "1/s", Group: "To compare"})
	}
	return out
}

func newReport(ctx context.Context, c config) *record.Report {
	facts := record.Machine(ctx)
	facts = append(facts,
		record.Fact{Name: "plimsoll", Value: record.Output(ctx, c.plimsoll, "version")},
		record.Fact{Name: "upstream", Value: record.Output(ctx, c.upstream, "--version")})
	control := "API server and etcd on the same machine; no kube-controller-manager"
	if c.controllers {
		control = "API server, etcd and kube-controller-manager on the same machine"
	}
	if c.gcPercent != 0 {
		control += fmt.Sprintf("; all of `plimsoll up --gc-percent %d`", c.gcPercent)
	}
	return &record.Report{
		Title: "Schedulers side by side, end to end", Program: "binds", Ours: ours, Theirs: upstream, Lines: lines(c),
		Rounds: c.rounds,
		Args:   os.Args[1:], Began: time.Now(), Machine: facts,
		Notes: []string{
			fmt.Sprintf("%d pods wait on %d nodes in %d zones", c.pods, c.nodes, c.zones),
			control,
			"upstream: default configuration, but for the client's limit: 5,000 requests/s in place of 50; ours: " +
				"default configuration",
			fmt.Sprintf("bare loop: POST of bindings, %d in flight, nodes in turn", c.workers),
		},
	}
}

// compare adds, to the measurements of the other sides, their share of the bare loop's rate with the same pods in the
// same round.
func compare(measurements []*record.Measurement, scenarios []string) {
	for _, b := range measurements {
		for _, m := range measurements {
			if b.Side != bareLoop || m.Side == bareLoop || m.Round != b.Round {
				continue
			}
			for _, s := range scenarios {
				most, reached := b.Values["rate_"+s], m.Values["rate_"+s]
				if most == 0 || reached == 0 {
					continue // a side failed
				}
				m.Put("share_"+s, reached/most, m.Samples["rate_"+s])
				if m.Side == ours {
					m.Put("bare_"+s, most, b.Samples["rate_"+s])
				}
			}
		}
	}
}

// othersMax is how many cores other processes or virtual machines may use during the binds before the report warns.
const othersMax = 0.2

// noise returns reasons to doubt the measurements.
func noise(measurements []*record.Measurement) (warnings []string) {
	for _, m := range measurements {
		for _, s := range []string{basic, spread} {
			if cores := m.Values["others_"+s]; cores > othersMax {
				warnings = append(warnings, fmt.Sprintf("%s, round %d, %s: others used %.2f cores of this machine", m.Side, m.Round,
					s, cores))
			}
			if cores := m.Values["stolen_"+s]; cores > othersMax {
				warnings = append(warnings, fmt.Sprintf("%s, round %d, %s: the hypervisor gave %.2f cores to others", m.Side,
					m.Round, s, cores))
			}
		}
	}
	return warnings
}
