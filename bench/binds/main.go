// Command binds measures schedulers end to end: pods wait on a real control plane (plimsoll up: etcd and
// kube-apiserver; with --controllers also kube-controller-manager) until all are bound. The sides are upstream's
// kube-scheduler, plimsoll scheduler, and a bare loop that only posts bindings without any decision, which shows the
// most that the API server allows. The sides run one after another, each on a new control plane with the same nodes,
// which are API objects only, and the same pods. The order of the sides is reversed after every round.
//
// Upstream's default configuration limits its client to 50 requests per second, which hides the cost of scheduling. The
// bars compare with upstream at a limit of 5,000 (as upstream's own scheduler_perf uses) and otherwise its defaults.
// With the default limit it runs once, for fewer pods, and that result is only printed.
//
// A bind counts when our watch, of metadata only, shows that the pod no longer waits. Rates are from the first to the
// last bind. The command compares with the project's bars (bars.go) and exits with 1 if one is missed or a round could
// not be measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/bench/bare"
	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// config has the values of the flags.
type config struct {
	rounds       int
	nodes, zones int
	pods         int // that wait
	limited      int // pods for upstream with its default limit of requests
	workers      int // bindings that the bare loop has in flight
	gcPercent    int // of the control plane

	plimsoll, upstream string // the programs
	scenarios          []string
	dir, out, only     string // of all state; the report's file; the side to measure
	port               int    // of the API server
	keep, controllers  bool   // keep the state directory; run kube-controller-manager
}

// The sides.
const (
	ours     = "plimsoll"
	upstream = "upstream"
	bareLoop = "bare loop"
)

// The scenarios.
const (
	basic  = "basic"
	spread = "spread"
)

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("binds", flag.ContinueOnError)
	f.IntVar(&c.rounds, "rounds", 3, "how often each side is measured")
	f.IntVar(&c.nodes, "nodes", 5000, "nodes")
	f.IntVar(&c.zones, "zones", 10, "zones they are spread over")
	f.IntVar(&c.pods, "pods", 5000, "pods that wait")
	f.IntVar(&c.limited, "limited", 500, "pods for upstream with its default limit of requests; 0: leave that out")
	f.IntVar(&c.workers, "workers", bare.Workers, "bindings that the bare loop has in flight")
	f.IntVar(&c.gcPercent, "gc-percent", 400, "the control plane's --gc-percent; 0: Go's default")
	f.BoolVar(&c.controllers, "controllers", false, "run kube-controller-manager too")
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
	if c.only != "" && c.only != ours && c.only != upstream && c.only != bareLoop {
		bad("only", c.only, "want upstream, plimsoll or \"bare loop\"")
	}
	if c.upstream == "" {
		c.upstream = filepath.Join(filepath.Dir(c.plimsoll), "upstream-scheduler")
	}
	return c, errors.Join(errs...)
}

func main() {
	if !bare.Main() {
		record.Main("binds", parseFlags, run)
	}
}

// run measures all rounds, and then upstream with its default limit.
func run(ctx context.Context, c config) (ok bool, err error) {
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "plimsoll-bench-"); err != nil {
			return false, err
		}
	}
	report := newReport(ctx, c)
	r := newRig(c)
	defer func() {
		// A separate context, because the control plane must be stopped also if ctx was canceled.
		keep := err != nil || len(report.Problems) > 0 || c.keep
		err = errors.Join(err, r.plane.Down(context.WithoutCancel(ctx), keep))
		if keep {
			record.Progress("state and logs are kept in %s", c.dir)
		}
	}()
	sides := slices.DeleteFunc([]string{upstream, bareLoop, ours}, func(side string) bool {
		return c.only != "" &&
			c.only != side
	})
	if err := report.Play(ctx, c.out, sides, func(ctx context.Context, m *record.Measurement) error {
		if err := r.renew(ctx); err != nil {
			return err
		}
		var errs []error
		for _, scenario := range c.scenarios {
			if err := r.measure(ctx, m, scenario, c.pods, false); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", scenario, err))
			}
		}
		return errors.Join(errs...)
	}); err != nil {
		return false, err
	}
	if first := slices.IndexFunc(report.Measurements,
		func(m *record.Measurement) bool { return m.Side == upstream }); c.limited > 0 && first >= 0 {
		if err := r.measure(ctx, report.Measurements[first], basic, c.limited, true); err != nil {
			report.Fail(err)
		}
	}
	compare(report.Measurements, c.scenarios)
	report.Warnings = noise(report.Measurements)
	return report.Finish(c.out)
}
