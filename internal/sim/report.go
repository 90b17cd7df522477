package sim

import (
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"
	"time"
)

func traceText(sum uint64) string { return fmt.Sprintf("%016x", sum) }

// Print writes a table with a column for each policy. The seed comes first: with it the run can be repeated.
func Print(out io.Writer, o Options, results []Result) error {
	mode := ""
	if o.Exact {
		mode = ", every heartbeat individually"
	}
	if _, err := fmt.Fprintf(out, "seed %d: %d nodes in %d zones, %d pods on each, %v, %d events%s\n\n", o.Seed, o.Nodes,
		o.Zones, o.PodsPerNode, o.For, len(o.Script), mode); err != nil {
		return err
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(title string, cell func(Result) string) {
		fmt.Fprint(t, title, "\t")
		for _, r := range results {
			fmt.Fprint(t, cell(r), "\t")
		}
		fmt.Fprintln(t)
	}
	number := func(of func(Result) int) func(Result) string {
		return func(r Result) string { return strconv.Itoa(of(r)) }
	}
	spread := func(title string, of func(Result) Spread) {
		row(title+": count", number(func(r Result) int { return of(r).Count }))
		for _, q := range []struct {
			name string
			of   func(Spread) float64
		}{{"first", func(s Spread) float64 { return s.First }}, {"p50", func(s Spread) float64 { return s.P50 }},
			{"p99", func(s Spread) float64 { return s.P99 }}, {"last", func(s Spread) float64 { return s.Last }}} {
			row(q.name, func(r Result) string {
				if of(r).Count == 0 {
					return "-"
				}
				return human(q.of(of(r)))
			})
		}
	}
	row("", func(r Result) string { return r.Policy })
	spread("marked silent, after grace period", func(r Result) Spread { return r.Unknown })
	row("marked silent while healthy", number(func(r Result) int { return r.Wronged }))
	row("nodes tainted NoExecute", number(func(r Result) int { return r.Emptied }))
	row("pods evicted", number(func(r Result) int { return r.Evicted }))
	row("of these, serving until then", number(func(r Result) int { return r.EvictedWell }))
	spread("pods out of service", func(r Result) Spread { return r.Outage })
	row("in total, hours", func(r Result) string { return fmt.Sprintf("%.1f", r.OutageHours) })
	row("out at the end", number(func(r Result) int { return r.Waiting }))
	row("requests", number(func(r Result) int { return r.Requests }))
	row("in the busiest second", number(func(r Result) int { return r.BusiestSec }))
	row("nodes Ready at the end", number(func(r Result) int { return r.ReadyAtEnd }))
	row("trace", func(r Result) string { return r.TraceHash })
	return t.Flush()
}

// human prints seconds with three digits after the point, and longer durations as minutes and hours.
func human(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d < time.Minute {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
