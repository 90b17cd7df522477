// Command numa compares decisions on CPUs and NUMA nodes with the kubelet's: the merge of hints, the choice of CPUs,
// and the admission of a pod from hints to CPUs and memory. Both sides run in one process, alternately, with the same
// machines and the same free CPUs.
//
// Upstream's side is its own policies, unmodified, called through their exported interfaces, with logging off. Its
// merge gets hints that are already written out; ours derives them from amounts within the measurement. Both make the
// same decisions (oracle checks that); each case checks it once more before it is measured.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// sampleMin is how long one sample takes at least: long compared with the clock's resolution and a garbage collection.
// Raising it makes the numbers steadier and the run longer.
const sampleMin = 100 * time.Millisecond

// pair is one thing that is measured on both sides; upstream is nil where it would never end.
type pair struct {
	name           string
	bar            string // what the issue requires, in words
	met            func(ours, upstream sample) bool
	ours, upstream func()
	without        string // why upstream is nil
}

// sample is the cost of doing something once.
type sample struct {
	time          time.Duration
	bytes, allocs float64
}

func main() {
	rounds := flag.Int("rounds", 5, "samples of each side, taken in turn")
	long := flag.Bool("long", true,
		"measure upstream's merge of 8 nodes and 3 resources, too: some seconds and 3 GB of garbage each time")
	out := flag.String("out", "", "write the report to this file, too")
	flag.Parse()
	klog.SetLogger(logr.Discard())
	var report strings.Builder
	fmt.Fprintf(&report,
		"# CPUs and NUMA nodes, decided\n\nWritten by `bench/numa`. %s, %s. %d rounds, sides in turn; medians; "+
			"times is upstream / ours.\n\n", time.Now().UTC().Format("2006-01-02"), runtime.Version(), *rounds)
	for _, f := range record.Machine(context.Background()) {
		fmt.Fprintf(&report, "- %s: %s\n", f.Name, f.Value)
	}
	report.WriteString("\n")
	report.WriteString("| what | ours: time, bytes, allocations | upstream | times | spread of ours | bar | met |\n" +
		"|---|---|---|---|---|---|---|\n")
	ok := true
	for _, p := range pairs(*long) {
		row, met := measure(p, *rounds)
		ok = ok && met
		report.WriteString(row)
		fmt.Print(row)
	}
	if *out != "" {
		if err := os.WriteFile(*out, []byte(report.String()), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "write report:", err)
			os.Exit(1)
		}
	}
	if !ok {
		fmt.Fprintln(os.Stderr, "a bar was missed")
		os.Exit(1)
	}
}

func measure(p pair, rounds int) (string, bool) {
	var ours, upstream []sample
	for round := range rounds {
		sides := []func(){p.ours, p.upstream}
		if round%2 == 1 {
			sides[0], sides[1] = sides[1], sides[0]
		}
		for i, side := range sides {
			switch {
			case side == nil:
			case (i == 0) == (round%2 == 0):
				ours = append(ours, take(side))
			default:
				upstream = append(upstream, take(side))
			}
		}
	}
	a, b := median(ours), median(upstream)
	theirs, times := p.without, "-"
	if upstream != nil {
		theirs, times = b.String(), fmt.Sprintf("%.0f", float64(b.time)/float64(a.time))
	}
	met := p.met == nil || p.met(a, b)
	spread := "-"
	if rounds > 1 {
		spread = fmt.Sprintf("%.0f%%", 100*stats.Spread(each(ours, func(s sample) float64 { return float64(s.time) })))
	}
	return fmt.Sprintf("| %s | %v | %s | %s | %s | %s | %v |\n", p.name, a, theirs, times, spread, p.bar, met), met
}

// take runs do as often as sampleMin requires, and returns the cost of one run.
func take(do func()) sample {
	for n := 1; ; n *= 4 {
		runtime.GC()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		start := time.Now()
		for range n {
			do()
		}
		took := time.Since(start)
		runtime.ReadMemStats(&after)
		if took >= sampleMin {
			return sample{took / time.Duration(n), float64(after.TotalAlloc-before.TotalAlloc) / float64(n),
				float64(after.Mallocs-before.Mallocs) / float64(n)}
		}
	}
}

func median(samples []sample) sample {
	return sample{
		time.Duration(stats.Median(each(samples, func(s sample) float64 { return float64(s.time) }))),
		stats.Median(each(samples, func(s sample) float64 { return s.bytes })),
		stats.Median(each(samples, func(s sample) float64 { return s.allocs })),
	}
}

func each(samples []sample, get func(sample) float64) []float64 {
	out := make([]float64, len(samples))
	for i, s := range samples {
		out[i] = get(s)
	}
	return out
}

func (s sample) String() string {
	digits := time.Microsecond
	if s.time < 100*time.Microsecond {
		digits = 100 * time.Nanosecond
	}
	return fmt.Sprintf("%v, %s, %.0f", s.time.Round(digits), size(s.bytes), s.allocs)
}

func size(bytes float64) string {
	switch {
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", bytes/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.1f MiB", bytes/(1<<20))
	case bytes >= 1<<10:
		return fmt.Sprintf("%.1f KiB", bytes/(1<<10))
	}
	return fmt.Sprintf("%.0f B", bytes)
}
