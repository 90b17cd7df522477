package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// The bars are from the project's issue on the scheduler ("Numbers"): at least 3 times upstream's rate or the API
// server's limit, and less CPU.
const (
	barUpstream = 3.0
	barCPU      = 1.0 // of upstream's
	// barLimit is which share of the bare loop's writes per second counts as the API server's limit. It compares writes
	// and not pods, because a pod that preempts three others takes fourteen writes, one that waits first takes five,
	// and one that the bare loop binds takes two. It does not subtract what other processes used of the machine: when a
	// scheduler waits, others use the idle time, and subtracting it would hide the waiting.
	barLimit = 0.8
	// barPaced is for workloads in which pods wait for operations with a fixed rate: at least upstream's rate, with a
	// margin for noise.
	barPaced = 0.95
)

func lines(play []*workload) (out []record.Line) {
	for _, w := range play {
		of := func(name string) string { return name + "_" + w.title() }
		rate := record.Bar{RatioMin: barUpstream, Or: of("share"), OrMin: barLimit}
		if w.paced() {
			rate = record.Bar{RatioMin: barPaced}
		}
		group := w.title()
		out = append(out, record.Line{Name: of("rate"), Title: "pods scheduled per second", Unit: "1/s", Bar: rate,
			Group: group})
		if !w.paced() {
			out = append(out,
				record.Line{Name: of("bare"), Title: "the same by a bare loop that only binds", Unit: "1/s", Group: group},
				record.Line{Name: of("limit"), Title: "the API server's limit: writes a second under it", Unit: "1/s",
					Group: group},
				record.Line{Name: of("share"), Title: "share of the limit, in writes", Group: group})
		}
		out = append(out,
			record.Line{Name: of("writes"), Title: "writes that the API server took a second, of all clients", Unit: "1/s",
				Group: group},
			record.Line{Name: of("each"), Title: "writes per measured pod", Group: group},
			record.Line{Name: of("serving"), Title: "of the machine used by the control plane meanwhile", Unit: "cores",
				Group: group},
			record.Line{Name: of("deciding"), Title: "by the scheduler", Unit: "cores", Group: group},
			record.Line{Name: of("making"), Title: "by the driver", Unit: "cores", Group: group},
			record.Line{Name: of("strangers"), Title: "by others", Unit: "cores", Group: group},
			record.Line{Name: of("idle"), Title: "by nobody", Unit: "cores", Group: group})
		out = append(out,
			record.Line{Name: of("cpu"), Title: "CPU of the scheduler per pod, until all Events are written", Unit: "ms",
				Bar: record.Bar{RatioMax: barCPU}, Group: group},
			record.Line{Name: of("peak"), Title: "peak of its resident memory", Unit: "MiB", Group: group},
			record.Line{Name: of("control"), Title: "CPU of the control plane per pod", Unit: "ms", Group: group},
			record.Line{Name: of("events"), Title: "Events per pod", Group: group},
			record.Line{Name: of("drain"), Title: "from the last bind until all Events are written", Unit: "s", Group: group})
	}
	return out
}

func newReport(ctx context.Context, c config, play []*workload, out []left) *record.Report {
	facts := append(record.Machine(ctx),
		record.Fact{Name: "plimsoll", Value: record.Output(ctx, c.plimsoll, "version")},
		record.Fact{Name: "upstream", Value: record.Output(ctx, c.upstream, "--version")})
	notes := []string{
		"workloads of " + kubernetesModule + ", " + workloadsDir + ", labelled " + fmt.Sprint(c.labels),
		fmt.Sprintf("API server and etcd of `plimsoll up --gc-percent %d` on the same machine; no kube-controller-manager",
			c.gcPercent),
		"upstream: default configuration and feature gates, but for the client's limit: 5,000 requests/s in place of 50; " +
			"ours: default configuration",
	}
	if len(c.upstreamArgs) > 0 {
		notes = append(notes, fmt.Sprintf("upstream has these arguments more: %v", c.upstreamArgs))
	}
	if c.scale != 1 {
		notes = append(notes, fmt.Sprintf("**a look at %v of each workload's nodes and pods, not the workloads themselves**",
			c.scale))
	}
	for _, l := range out {
		notes = append(notes, "not played: "+l.title+": "+l.reason)
	}
	return &record.Report{
		Title: "Upstream's scheduler_perf workloads, process beside process", Program: "perf", Ours: ours, Theirs: upstream,
		Lines:  lines(play),
		Rounds: c.rounds, Args: os.Args[1:], Began: time.Now(), Machine: facts, Notes: notes,
	}
}

// compare adds, to the measurements of the other sides, the bare loop's result and their share of it.
func compare(of map[string]*record.Measurement, w *workload) {
	b := of[bareLoop]
	if b == nil {
		return
	}
	most, ok := b.Values["writes_"+w.title()]
	if !ok {
		return
	}
	for side, m := range of {
		reached, ok := m.Values["writes_"+w.title()]
		if side == bareLoop || !ok {
			continue
		}
		m.Put("share_"+w.title(), reached/most, m.Samples["rate_"+w.title()])
		if side == ours {
			m.Put("bare_"+w.title(), b.Values["rate_"+w.title()], b.Samples["rate_"+w.title()])
			m.Put("limit_"+w.title(), most, b.Samples["rate_"+w.title()])
		}
	}
}

// inShort returns, for some values, how ours compares with upstream's: in the worst workload, the median one, and the
// best.
func inShort(measurements []*record.Measurement, play []*workload) (notes []string) {
	for _, of := range []struct {
		name, title            string
		moreIsBetter, pacedToo bool
	}{
		{name: "rate", title: "pods a second", moreIsBetter: true},
		{name: "cpu", title: "CPU of the scheduler per pod", pacedToo: true},
		{name: "peak", title: "peak of its memory", pacedToo: true},
	} {
		ratios, titles := []float64{}, map[float64]string{}
		for _, w := range play {
			values := func(side string) (all []float64) {
				for _, m := range measurements {
					if v, ok := m.Values[of.name+"_"+w.title()]; ok && m.Side == side {
						all = append(all, v)
					}
				}
				return all
			}
			ratio := stats.Ratio(stats.Median(values(ours)), stats.Median(values(upstream)))
			if !math.IsNaN(ratio) && (of.pacedToo || !w.paced()) {
				ratios, titles[ratio] = append(ratios, ratio), w.title()
			}
		}
		if len(ratios) == 0 {
			continue
		}
		worst, best := slices.Max(ratios), slices.Min(ratios)
		if of.moreIsBetter {
			worst, best = best, worst
		}
		notes = append(notes, fmt.Sprintf(
			"**%s, ours / upstream's: worst %.2f (%s), median of %d workloads %.2f, best %.2f (%s)**",
			of.title, worst, titles[worst], len(ratios), stats.Median(ratios), best, titles[best]))
	}
	return notes
}

// othersMax is how many cores other processes may use before the report warns. eventsMin is the least number of Events
// per pod without a warning.
const (
	othersMax = 0.2
	eventsMin = 0.999
)

// spanMin is for how many seconds pods must have been bound for a rate to be meaningful. Chosen: some hundred binds.
const spanMin = 1

// doubts returns reasons to doubt the measurements, and what a scheduler failed to write.
func doubts(measurements []*record.Measurement, play []*workload) (warnings []string) {
	for _, m := range measurements {
		for _, w := range play {
			say := func(format string, args ...any) {
				warnings = append(warnings, fmt.Sprintf("%s, round %d, %s: ", m.Side, m.Round, w.title())+fmt.Sprintf(format,
					args...))
			}
			if cores := m.Values["others_"+w.title()]; cores > othersMax {
				say("others used %.2f cores of this machine", cores)
			}
			if cores := m.Values["stolen_"+w.title()]; cores > othersMax {
				say("the hypervisor gave %.2f cores to others", cores)
			}
			if took, ok := m.Values["span_"+w.title()]; ok && took < spanMin {
				say("all pods were bound within %.2f s: too short for a rate", took)
			}
			if n, ok := m.Values["events_"+w.title()]; ok && m.Side != bareLoop && n < eventsMin {
				say("%.3f Events per pod: some were lost", n)
			}
		}
	}
	return warnings
}
