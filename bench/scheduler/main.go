// Command scheduler measures our scheduler's decisions and kube-scheduler's: the same clusters and the same pods,
// alternately, in one process.
//
// Upstream's side is its own Scheduler with its own informers, unmodified, with the default configuration: event
// handlers, queue, cache, snapshot, plugins and binding cycle; we feed the watches. The API server is left out on both
// sides: a bind only shows the pod as bound, evictions are not sent, failures are not written. Our side is
// scheduler.Placer. The translation of API objects, which the shell does in other goroutines than the scheduling loop,
// is not measured. Upstream scores a tenth of the nodes of a cluster of 5,000, as is its default; ours scores all of
// them.
//
// There are four tables: pods of one kind (published), the cases of real clusters (cases, mix), memory, and a sweep
// that shows how the cost grows with nodes, kinds, waiting pods and churn.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"
)

// options has the values of the flags.
type options struct {
	rounds, pods, nodesMax int
	budget                 time.Duration
	only                   *regexp.Regexp
	out                    string
	tables                 []string
}

// The tables, by their names in -tables.
const (
	tablePublished = "published"
	tableCases     = "cases"
	tableMemory    = "memory"
	tableSweep     = "sweep"
)

func main() {
	o := options{}
	flag.IntVar(&o.rounds, "rounds", 3, "how often each scenario is measured, both sides in turn")
	only := flag.String("only", "", "measure the scenarios whose name matches this `regexp`")
	flag.IntVar(&o.pods, "pods", 0, "pods per round on both sides; 0: each scenario's own numbers")
	flag.IntVar(&o.nodesMax, "nodes-max", 100000, "leave out larger clusters")
	flag.DurationVar(&o.budget, "budget", 5*time.Second,
		"place no more pods of a scenario, per side and round, when they have taken so long")
	all := []string{tablePublished, tableCases, tableMemory, tableSweep}
	tables := flag.String("tables", strings.Join(all, ","), "what to measure")
	flag.StringVar(&o.out, "out", "", "write the report to this file, too")
	flag.Parse()
	o.tables = strings.Split(*tables, ",")
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		fmt.Fprintln(os.Stderr, "-only:", err)
		os.Exit(2)
	}
	for _, t := range o.tables {
		if !slices.Contains(all, t) {
			fmt.Fprintf(os.Stderr, "-tables %s: want some of %v\n", t, all)
			os.Exit(2)
		}
	}
	klog.SetLogger(klog.Logger{}) // upstream logs some whole objects, which must not be measured
	text, met := o.report()
	fmt.Print(text)
	if o.out != "" {
		err := os.MkdirAll(filepath.Dir(o.out), 0o755)
		if err == nil {
			err = os.WriteFile(o.out, []byte(text), 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "write report:", err)
			os.Exit(1)
		}
	}
	if !met {
		os.Exit(1)
	}
}

// report measures everything that was requested.
func (o *options) report() (text string, met bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "# Scheduler: decisions in memory\n\n%s, %d CPUs, %s, load %s before",
		runtime.Version(), runtime.NumCPU(), time.Now().UTC().Format(time.DateTime), load())
	fmt.Fprintf(&b, ". Rounds: %d. Median of rounds; times upstream is CPU time per pod.\n", o.rounds)
	met = true
	add := func(name string, table func() (string, bool)) {
		if slices.Contains(o.tables, name) {
			text, ok := table()
			b.WriteString("\n" + text)
			met = met && ok
		}
	}
	add(tablePublished, func() (string, bool) { return o.table("Pods that are alike", published()) })
	add(tableCases, func() (string, bool) { return o.table("Real clusters", cases()) })
	add(tableMemory, o.memory)
	add(tableSweep, o.sweep)
	fmt.Fprintf(&b, "\nLoad after: %s.\n", load())
	return b.String(), met
}

// wants reports whether a scenario with this name and size was requested.
func (o *options) wants(name string, nodes int) bool {
	return o.only.MatchString(name) && nodes <= o.nodesMax
}

// result is the result of one scenario.
type result struct {
	scenario
	theirs, ours sample
}

// timesUpstream returns upstream's CPU time divided by ours; 0: not known.
func (r *result) timesUpstream() float64 {
	if r.theirs.CPU == 0 || r.ours.CPU == 0 {
		return 0
	}
	return float64(r.theirs.CPU) / float64(r.ours.CPU)
}

func (r *result) title() string { return fmt.Sprintf("%s, %d nodes", r.name, r.nodes) }

// judge returns the bars, and whether they are met. base is the result of the scenario to which this one refers; 0: not
// measured.
func (r *result) judge(base time.Duration) (bar string, met bool) {
	var bars []string
	met = true
	if r.times > 0 && r.upstreamPods > 0 {
		bars, met = append(bars, fmt.Sprintf("%.0fx", r.times)), r.timesUpstream() >= r.times
	} else if r.times > 0 {
		bars, met = append(bars, fmt.Sprintf("%.0f pods/s", r.times)), perSecond(r.ours.Wall) >= r.times
	}
	if most := max(r.most, 2*base); most > 0 {
		what := "at most " + short(most)
		if most > r.most {
			what += ", twice " + short(base)
		}
		bars, met = append(bars, what), met && r.ours.CPU <= most
	}
	return strings.Join(bars, ", "), met
}

const head = `| scenario | nodes | waiting | upstream CPU/pod | p50, p99 | allocs, KiB/pod | ours CPU/pod | p50, p99 | allocs, KiB/pod | pods tried, placed | times upstream | bar | |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
`

// table measures scenarios and returns a table of the results, with the best and the worst.
func (o *options) table(title string, scenarios []scenario) (text string, met bool) {
	var b strings.Builder
	fmt.Fprintf(&b, "## %s\n\n%s", title, head)
	met = true
	var results []result
	for _, s := range scenarios {
		if !o.wants(s.name, s.nodes) {
			continue
		}
		fmt.Fprintf(os.Stderr, "%s measuring %s, %d nodes\n", time.Now().Format(time.TimeOnly), s.name, s.nodes)
		r := result{scenario: s}
		r.theirs, r.ours = measure(s, o.rounds, o.pods, o.budget)
		bar, ok := r.judge(baseOf(results, &s))
		met = met && ok
		line := r.line(bar, ok)
		b.WriteString(line)
		fmt.Fprint(os.Stderr, line)
		results = append(results, r)
	}
	b.WriteString(bestAndWorst(results))
	return b.String(), met
}

// baseOf returns the result of the scenario to which s refers.
func baseOf(results []result, s *scenario) time.Duration {
	for i := range results {
		if r := &results[i]; s.base != "" && r.name == s.base && r.nodes == s.nodes {
			return r.ours.CPU
		}
	}
	return 0
}

func (r *result) line(bar string, met bool) string {
	verdict := ""
	if bar != "" {
		verdict = verdictOf(met)
	}
	theirs, times := "(has none) | |", ""
	if r.upstreamPods > 0 {
		theirs = fmt.Sprintf("%s | %s, %s | %.0f, %.0f", short(r.theirs.CPU), short(r.theirs.P50), short(r.theirs.P99),
			r.theirs.Allocs, r.theirs.KB)
		times = fmt.Sprintf("%.0fx", r.timesUpstream())
	}
	return fmt.Sprintf("| %s | %d | %d | %s | %s | %s, %s | %.0f, %.1f | %d, %d | %s | %s | %s |\n", r.name, r.nodes,
		r.waiting, theirs,
		short(r.ours.CPU), short(r.ours.P50), short(r.ours.P99), r.ours.Allocs, r.ours.KB, r.ours.Pods, r.ours.Placed, times,
		bar, verdict)
}

// bestAndWorst names the scenarios in which the advantage over upstream is largest and smallest.
func bestAndWorst(results []result) string {
	with := slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.timesUpstream() == 0 })
	if len(with) == 0 {
		return ""
	}
	by := func(a, b result) int { return int(a.timesUpstream()*1000) - int(b.timesUpstream()*1000) }
	best, worst := slices.MaxFunc(with, by), slices.MinFunc(with, by)
	return fmt.Sprintf("\n- best: %s: %.1f times cheaper than upstream\n- worst: %s: %.1f times\n",
		best.title(), best.timesUpstream(), worst.title(), worst.timesUpstream())
}

func verdictOf(met bool) string {
	if met {
		return "met"
	}
	return "**missed**"
}

func perSecond(each time.Duration) float64 {
	if each == 0 {
		return 0
	}
	return float64(time.Second) / float64(each)
}

// short formats a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d >= 100*time.Microsecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(100 * time.Nanosecond).String()
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
