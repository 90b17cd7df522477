// Command binds measures schedulers end to end: pods that wait on a real control plane (plimsoll up: etcd, kube-apiserver,
// kube-controller-manager) until all are bound. The sides are upstream's kube-scheduler, plimsoll scheduler, and a bare loop
// that only posts bindings, with no look at anything: what the API gives at best. They run one after the other on the same
// nodes, which are objects only, and each finds the same pods; the order turns around every round.
//
// Upstream's default configuration lets its client send 50 requests a second, which says nothing about scheduling. It is
// judged with that limit raised to 5,000 (as upstream's own scheduler_perf does) and else its defaults; with the limit as it
// is, it runs once, for fewer pods, and is only told.
//
// A bind has happened when our watch, of metadata only, shows that the pod waits no more. Rates are from the first to the
// last. It judges against the bars of the project (bars.go) and exits 1 when one is missed or a round could not be measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// config is the command line.
type config struct {
	rounds, nodes, zones, pods, limited, workers int

	plimsoll, upstream string
	scenarios          []string
	dir, out, only     string
	port               int
	keep               bool
}

// The sides.
const (
	ours     = "plimsoll"
	upstream = "upstream"
	bare     = "bare loop"
)

// The scenarios.
const (
	basic  = "basic"
	spread = "spread"
)

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("binds", flag.ContinueOnError)
	f.IntVar(&c.rounds, "rounds", 2, "how often each side is measured")
	f.IntVar(&c.nodes, "nodes", 5000, "nodes")
	f.IntVar(&c.zones, "zones", 10, "zones they are spread over")
	f.IntVar(&c.pods, "pods", 5000, "pods that wait")
	f.IntVar(&c.limited, "limited", 500, "pods for upstream with its default limit of requests; 0: leave that out")
	f.IntVar(&c.workers, "workers", 64, "bindings that the bare loop has in flight")
	scenarios := f.String("scenarios", basic+","+spread, "what to measure: basic, spread or both")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll", "our program")
	f.StringVar(&c.upstream, "upstream", "", "upstream's kube-scheduler (default: upstream-scheduler beside ours)")
	f.StringVar(&c.dir, "dir", "", "directory for all state (default: a new one below the system's temporary directory)")
	f.StringVar(&c.out, "out", "results/binds.md", "report file; empty: standard output only")
	f.StringVar(&c.only, "only", "", "measure one side: upstream, plimsoll or \"bare loop\"")
	f.IntVar(&c.port, "port", 28760, "port of the API server")
	f.BoolVar(&c.keep, "keep", false, "keep the state directory (logs)")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	c.scenarios = strings.Split(*scenarios, ",")
	var errs []error
	bad := func(flag string, value any, want string) {
		errs = append(errs, fmt.Errorf("--%s %v: %s", flag, value, want))
	}
	if c.rounds < 1 {
		bad("rounds", c.rounds, "want at least 1")
	}
	if c.zones < 1 || c.nodes < c.zones {
		bad("zones", c.zones, "want at least 1, of at least 1 node each")
	}
	if c.pods < 2 || c.pods > 100*c.nodes {
		bad("pods", c.pods, fmt.Sprintf("want 2 to %d: 100 a node", 100*c.nodes))
	}
	if c.limited < 0 || c.limited == 1 || c.limited > c.pods {
		bad("limited", c.limited, "want 0, or 2 to as many as --pods")
	}
	if c.workers < 1 {
		bad("workers", c.workers, "want at least 1")
	}
	for _, s := range c.scenarios {
		if s != basic && s != spread {
			bad("scenarios", s, "want basic or spread")
		}
	}
	if c.only != "" && c.only != ours && c.only != upstream && c.only != bare {
		bad("only", c.only, "want upstream, plimsoll or \"bare loop\"")
	}
	if c.upstream == "" {
		c.upstream = filepath.Join(filepath.Dir(c.plimsoll), "upstream-scheduler")
	}
	return c, errors.Join(errs...)
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) > 1 && os.Args[1] == bareCommand {
		if err := runBare(ctx, os.Args[2:]); err != nil && ctx.Err() == nil {
			fmt.Fprintln(os.Stderr, "binds:", err)
			os.Exit(1)
		}
		return
	}
	c, err := parseFlags(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "binds:", err)
		os.Exit(2)
	}
	ok, err := run(ctx, c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "binds:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// run measures all rounds and writes the report after each, so that an interrupted run still has one.
func run(ctx context.Context, c config) (ok bool, err error) {
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "plimsoll-bench-"); err != nil {
			return false, err
		}
	}
	report := newReport(ctx, c)
	r := newRig(c)
	defer func() {
		// Its own context: the end must be clean above all when the beginning was interrupted.
		keep := err != nil || c.keep
		err = errors.Join(err, r.plane.Down(context.WithoutCancel(ctx), keep))
		if keep {
			progress("state and logs are kept in %s", c.dir)
		}
	}()
	if err := r.up(ctx); err != nil {
		return false, err
	}
	var problems []error
	measure := func(side string, round int) error {
		m := record.NewMeasurement(side, round)
		report.Measurements = append(report.Measurements, m)
		for _, scenario := range c.scenarios {
			if side == bare && scenario != c.scenarios[0] {
				continue // to the bare loop all pods are the same
			}
			if err := r.measure(ctx, m, scenario, c.pods, false); err != nil {
				err = fmt.Errorf("round %d: %s: %s: %w", round, side, scenario, err)
				report.Problems = append(report.Problems, err.Error())
				problems = append(problems, err)
				fmt.Fprintln(os.Stderr, "binds:", err)
			}
			if ctx.Err() != nil {
				return errors.Join(append(problems, context.Cause(ctx))...)
			}
		}
		return nil
	}
	for round := range c.rounds {
		sides := []string{upstream, bare, ours}
		if round%2 == 1 {
			slices.Reverse(sides)
		}
		for _, side := range sides {
			if c.only != "" && side != c.only {
				continue
			}
			if err := measure(side, round+1); err != nil {
				return false, err
			}
		}
		compare(report.Measurements, c.scenarios)
		if err := save(c, report); err != nil {
			return false, err
		}
	}
	if c.limited > 0 && (c.only == "" || c.only == upstream) {
		last := report.Measurements[slices.IndexFunc(report.Measurements, func(m *record.Measurement) bool { return m.Side == upstream })]
		if err := r.measure(ctx, last, basic, c.limited, true); err != nil {
			problems = append(problems, err)
			report.Problems = append(report.Problems, err.Error())
		}
	}
	report.Warnings = noise(report.Measurements)
	if err := save(c, report); err != nil {
		return false, err
	}
	text, ok := report.Render()
	fmt.Print(text)
	return ok && len(problems) == 0, errors.Join(problems...)
}

func save(c config, r *record.Report) error {
	if c.out == "" {
		return nil
	}
	return r.Save(c.out)
}

// progress tells the person who waits; the report is on standard output.
func progress(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format("15:04:05"), fmt.Sprintf(format, args...))
}
