// Command scheduler measures our scheduler's mind beside kube-scheduler's: the same clusters, the same pods, in turn, in
// one process.
//
// Upstream's side is its own ScheduleOne, unmodified, with the default configuration: its queue, cache, snapshot, plugins
// and binding cycle. Left out on both sides is the API: binding is a no-op, evictions are not sent, failures are not
// written down. Ours is placement.Placer behind the same translation of API objects. Upstream scores a tenth of
// the nodes of a cluster of 5,000, as its default says; ours all of them.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"

	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// side is one scheduler with a cluster in its memory.
type side interface {
	// add queues pods.
	add(s *scenario, first, n int)
	// place handles one pod that is queued and reports whether it got a node.
	place(ctx context.Context) bool
	// wait returns when nothing started by place is still running.
	wait()
	close()
}

// sample is what one side needed for the pods of one round.
type sample struct {
	Wall, CPU  time.Duration // per pod
	P50, P99   time.Duration
	Allocs, KB float64 // per pod
	Placed     int
}

func main() {
	rounds := flag.Int("rounds", 3, "how often each scenario is measured, both sides in turn")
	only := flag.String("only", "", "measure what has this in its name: scenarios, and \"memory\"")
	pods := flag.Int("pods", 0, "pods per round on both sides; 0: each scenario's own numbers")
	out := flag.String("out", "", "write the report to this file, too")
	flag.Parse()
	klog.SetLogger(klog.Logger{}) // upstream logs some events in full: not what is measured here
	var report strings.Builder
	fmt.Fprintf(&report, "# Scheduler: pods through the mind, in memory\n\n%s, %d CPUs, %s, load %s. Rounds: %d. Median of rounds; times upstream is CPU time per pod.\n\n", runtime.Version(), runtime.NumCPU(), time.Now().UTC().Format("2006-01-02"), load(), *rounds)
	fmt.Fprintf(&report, "| scenario | nodes (pods) | upstream pods/s | CPU/pod | p50, p99 | allocs, KiB/pod | ours pods/s | CPU/pod | p50, p99 | allocs, KiB/pod | times upstream | bar | |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
	met := true
	for _, s := range scenarios() {
		if !strings.Contains(s.name, *only) {
			continue
		}
		fmt.Fprintln(os.Stderr, "measuring", s.name)
		line, ok := compare(s, *rounds, *pods)
		met = met && ok
		report.WriteString(line)
		fmt.Fprint(os.Stderr, line)
	}
	if strings.Contains(memoryName, *only) {
		fmt.Fprintln(os.Stderr, "measuring", memoryName)
		text, ok := measureMemory()
		met = met && ok
		report.WriteString("\n" + text)
	}
	fmt.Print(report.String())
	if *out != "" {
		if err := os.MkdirAll(filepath.Dir(*out), 0o755); err == nil {
			err = os.WriteFile(*out, []byte(report.String()), 0o644)
			if err != nil {
				fmt.Fprintln(os.Stderr, "write report:", err)
				os.Exit(1)
			}
		}
	}
	if !met {
		os.Exit(1)
	}
}

// compare measures both sides in turn, the order changing every round, and returns a line of the report.
func compare(s scenario, rounds, pods int) (line string, met bool) {
	var theirs, ours []sample
	for round := range rounds {
		sides := []func(){
			func() {
				if s.upstreamPods > 0 {
					theirs = append(theirs, run(newUpstream(&s), &s, choose(pods, s.upstreamPods)))
				}
			},
			func() { ours = append(ours, run(newOurs(&s), &s, choose(pods, s.ourPods))) },
		}
		if round%2 == 1 {
			slices.Reverse(sides)
		}
		for _, measure := range sides {
			measure()
			debug.FreeOSMemory()
		}
	}
	if s.upstreamPods == 0 {
		return s.alone(medianOf(ours))
	}
	u, o := medianOf(theirs), medianOf(ours)
	times := stats.Ratio(float64(u.CPU), float64(o.CPU))
	met = times >= s.bar
	return fmt.Sprintf("| %s | %d (%d) | %.0f | %s | %s, %s | %.0f, %.0f | %.0f | %s | %s, %s | %.0f, %.1f | %.0fx | %.0fx | %s |\n",
		s.name, s.nodes, s.nodes*s.perNode, perSecond(u.Wall), short(u.CPU), short(u.P50), short(u.P99), u.Allocs, u.KB,
		perSecond(o.Wall), short(o.CPU), short(o.P50), short(o.P99), o.Allocs, o.KB, times, s.bar, verdict(met)), met
}

// alone is a line for what upstream does not have.
func (s *scenario) alone(o sample) (line string, met bool) {
	met = perSecond(o.Wall) >= s.bar
	return fmt.Sprintf("| %s | %d (%d) | (has none) | | | | %.0f | %s | %s, %s | %.0f, %.1f | | %.0f pods/s | %s |\n",
		s.name, s.nodes, s.nodes*s.perNode, perSecond(o.Wall), short(o.CPU), short(o.P50), short(o.P99), o.Allocs, o.KB, s.bar, verdict(met)), met
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "**missed**"
}

func choose(asked, own int) int {
	if asked > 0 {
		return asked
	}
	return own
}

// run warms a side up and measures it on n pods.
func run(x side, s *scenario, n int) sample {
	defer x.close()
	ctx := context.Background()
	warm := max(20, n/20)
	x.add(s, 0, warm)
	for range warm {
		x.place(ctx)
	}
	x.wait()
	x.add(s, warm, n)
	runtime.GC()
	latencies := make([]float64, 0, n)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	cpu, start := cpuTime(), time.Now()
	placed := 0
	for range n {
		began := time.Now()
		if x.place(ctx) {
			placed++
		}
		latencies = append(latencies, float64(time.Since(began)))
	}
	x.wait()
	wall, used := time.Since(start), cpuTime()-cpu
	runtime.ReadMemStats(&after)
	return sample{
		Wall: wall / time.Duration(n), CPU: used / time.Duration(n),
		P50: time.Duration(stats.Quantile(latencies, 0.5)), P99: time.Duration(stats.Quantile(latencies, 0.99)),
		Allocs: float64(after.Mallocs-before.Mallocs) / float64(n), KB: float64(after.TotalAlloc-before.TotalAlloc) / 1024 / float64(n),
		Placed: placed,
	}
}

func medianOf(samples []sample) (m sample) {
	pick := func(of func(sample) float64) float64 {
		var list []float64
		for _, s := range samples {
			list = append(list, of(s))
		}
		return stats.Median(list)
	}
	m.Wall = time.Duration(pick(func(s sample) float64 { return float64(s.Wall) }))
	m.CPU = time.Duration(pick(func(s sample) float64 { return float64(s.CPU) }))
	m.P50 = time.Duration(pick(func(s sample) float64 { return float64(s.P50) }))
	m.P99 = time.Duration(pick(func(s sample) float64 { return float64(s.P99) }))
	m.Allocs = pick(func(s sample) float64 { return s.Allocs })
	m.KB = pick(func(s sample) float64 { return s.KB })
	return m
}

func perSecond(each time.Duration) float64 { return stats.Ratio(float64(time.Second), float64(each)) }

// short prints a duration to three digits.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d >= 100*time.Microsecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(100 * time.Nanosecond).String()
}

// cpuTime is what the process has used so far, all threads, kernel included.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Join(strings.Fields(string(text))[:3], " ")
}
