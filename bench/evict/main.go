// Command evict measures the node agents side by side when memory runs out: plimsoll agent and upstream's kubelet, each under
// the same `plimsoll up` with the same KubeletConfiguration, which leaves all pods 1 GiB together and evicts below 100 MiB.
//
// A pod grows at a steady rate beside pods that do not. *Crossed* is when this program first sees the group of all pods use
// more than the limit less the threshold; *killed* when the grower's process has SIGKILL pending or is gone, both looked for
// every millisecond. A run is clean when the grower was evicted, the kernel killed nobody for memory, and everybody else goes
// on. Rates and agents take turns, the order of agents turns around every round.
//
// It judges against the bars of the issue and exits 1 when one is missed. It is no test: on a busy machine numbers are worse
// for both.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/bench/record"
	"github.com/plimsoll-dev/plimsoll/bench/stats"
)

// config is the command line.
type config struct {
	runs, kubeletRuns      int // for each rate
	rates                  []string
	plimsoll, kubelet, out string
	dir                    string
	portBase               int
	sides                  []string
}

const (
	kubelet  = "kubelet"
	plimsoll = "plimsoll"
)

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("evict", flag.ContinueOnError)
	f.IntVar(&c.runs, "runs", 20, "how often each rate is measured under plimsoll agent")
	f.IntVar(&c.kubeletRuns, "kubelet-runs", 3, "and under the kubelet, which takes longer")
	rates := f.String("rates", "5Mi,20Mi,100Mi,500Mi,1Gi", "growth per second")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll", "our program")
	f.StringVar(&c.kubelet, "kubelet", "../bin/upstream-kubelet", "upstream's kubelet")
	f.StringVar(&c.out, "out", "results/evict.md", "report file; empty: standard output only")
	f.StringVar(&c.dir, "dir", "", "directory for all state (default: a new one below the system's temporary directory)")
	f.IntVar(&c.portBase, "port-base", 28740, "first of four ports to use")
	only := f.String("only", "", "measure one agent: kubelet or plimsoll")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	c.rates = strings.Split(*rates, ",")
	for _, rate := range c.rates {
		if q, err := resource.ParseQuantity(rate); err != nil || q.Sign() <= 0 {
			return c, fmt.Errorf("--rates %q: %q: want quantities of memory, like 5Mi,1Gi", *rates, rate)
		}
	}
	if c.sides = []string{plimsoll, kubelet}; *only != "" {
		c.sides = slices.DeleteFunc(c.sides, func(s string) bool { return s != *only })
	}
	if len(c.sides) == 0 || c.runs < 1 {
		return c, fmt.Errorf("--only %q, --runs %d: want kubelet or plimsoll, and at least 1", *only, c.runs)
	}
	return c, nil
}

func main() {
	c, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "evict:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := run(ctx, c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "evict:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// Bars of the issue. All runs at every rate, natively; times count for those only where the agent, and not the kernel, killed.
const (
	barP50 = 0.020 // s
	barP99 = 0.100 // s
	barAll = 1.0   // share of runs that were clean
)

func lines(rates []string) []record.Line {
	out := []record.Line{
		{Name: "p50_kill", Title: "threshold crossed to killed, p50", Unit: "s", Bar: record.Bar{Max: barP50}, Group: "All rates"},
		{Name: "p99_kill", Title: "threshold crossed to killed, p99", Unit: "s", Bar: record.Bar{Max: barP99}, Group: "All rates"},
		{Name: "others", Title: "others that were evicted or killed, all runs", Unit: "pods", Group: "All rates"},
		{Name: "cores", Title: "agent's CPU while nothing grows, 10 s", Unit: "cores", Group: "All rates"},
	}
	for _, rate := range rates {
		group := rate + "/s"
		out = append(out,
			record.Line{Name: "clean_" + rate, Title: "share of runs that were clean", Bar: record.Bar{Min: barAll}, Group: group},
			record.Line{Name: "p50_" + rate, Title: "crossed to killed, p50", Unit: "s", Group: group},
			record.Line{Name: "max_" + rate, Title: "crossed to killed, longest", Unit: "s", Group: group},
		)
	}
	return out
}

func run(ctx context.Context, c config) (bool, error) {
	if os.Geteuid() != 0 {
		return false, errors.New("run containers: not root")
	}
	if c.dir == "" {
		dir, err := os.MkdirTemp("", "plimsoll-bench-")
		if err != nil {
			return false, err
		}
		defer os.RemoveAll(dir)
		c.dir = dir
	}
	r := &record.Report{
		Title: "Evictions side by side", Program: "evict", Ours: plimsoll, Theirs: kubelet, Lines: lines(c.rates), Rounds: 1, Args: os.Args[1:], Began: time.Now(),
		Machine: append(record.Machine(ctx), record.Fact{Name: "plimsoll", Value: record.Output(ctx, c.plimsoll, "version")}),
		Notes:   []string{fmt.Sprintf("%d runs a rate under plimsoll agent, %d under the kubelet; 1 GiB for all pods, threshold 100Mi", c.runs, c.kubeletRuns)},
	}
	var problems []error
	for _, side := range c.sides {
		m, err := measure(ctx, c, side)
		r.Measurements = append(r.Measurements, m)
		if err != nil {
			r.Problems = append(r.Problems, side+": "+err.Error())
			problems = append(problems, fmt.Errorf("%s: %w", side, err))
		}
	}
	if c.out != "" {
		if err := r.Save(c.out); err != nil {
			return false, err
		}
	}
	text, ok := r.Render()
	fmt.Print(text)
	return ok && len(problems) == 0, errors.Join(problems...)
}

// measure is one agent, from nothing to nothing.
func measure(ctx context.Context, c config, side string) (m *record.Measurement, err error) {
	m = record.NewMeasurement(side, 1)
	r := &rig{config: c, side: side}
	defer func() { err = errors.Join(err, r.down(context.WithoutCancel(ctx))) }()
	if err := r.up(ctx); err != nil {
		return m, err
	}
	runs := c.runs
	if side == kubelet {
		runs = c.kubeletRuns
	}
	if err := r.idle(ctx, m); err != nil {
		return m, err
	}
	var all []float64
	others := 0
	for _, rate := range c.rates {
		clean, late := 0, []float64{}
		for n := range runs {
			o, err := r.grow(ctx, fmt.Sprintf("grower-%s-%d", strings.ToLower(rate), n), rate)
			if err != nil {
				return m, fmt.Errorf("grow at %s/s: %w", rate, err)
			}
			progress("%s: %s/s: %s", side, rate, o)
			if o.clean() {
				clean++
				late = append(late, o.killed.Seconds())
			}
			others += o.others
		}
		all = append(all, late...)
		m.Put("clean_"+rate, float64(clean)/float64(runs), runs)
		if len(late) > 0 {
			m.Put("p50_"+rate, stats.Quantile(late, 0.5), len(late))
			m.Put("max_"+rate, stats.Quantile(late, 1), len(late))
		}
	}
	m.Put("others", float64(others), len(c.rates)*runs)
	if len(all) > 0 {
		m.Put("p50_kill", stats.Quantile(all, 0.5), len(all))
		m.Put("p99_kill", stats.Quantile(all, 0.99), len(all))
	}
	return m, nil
}

func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
