// Command lifecycle compares the controllers that monitor nodes: plimsoll lifecycle, and upstream's node-lifecycle and
// taint-eviction controllers, which run in upstream's kube-controller-manager without other controllers and with its
// default limits. Both watch the same hollow nodes (plimsoll fleet) on the same control plane (plimsoll up), one after
// the other.
//
// Our controller removes the first taints while the nodes register, for both: upstream's 20 requests per second would
// need four minutes for 5,000. A round measures both controllers once; the order is reversed every round. For each
// controller a round has these steps: a wait until the controller has announced the nodes that it found (upstream's
// does this in Events, at the same 20 requests per second); a steady window; some nodes fall silent, spread over a
// period of their leases; a whole zone falls silent at once; all return. The controller must have removed all taints
// before the next one is measured. The fleet and the control plane are measured in the same windows. At the end the
// simulator runs its day, which needs no control plane.
//
// With --load it measures instead how another client of the API server is affected: a separate process that sends
// requests at a steady rate, at rest, while every node is dead and marked, and while they return.
//
// Clocks are this program's own and the hollow nodes': one machine. An event happens when our watch shows it. The
// program compares the results with the bars of the project (bars.go) and exits with 1 when one is missed or a round
// could not be measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// config is the command line.
type config struct {
	rounds, steadyRounds   int
	nodes, zones, silent   int
	grace, steady, settle  time.Duration
	plimsoll, controlplane string
	dir, out, only         string
	port                   int
	sim                    bool
	keep                   bool

	load      bool // measure only how another client is affected
	before    string
	rate      int
	markLimit time.Duration
}

// The sides.
const (
	ours     = "plimsoll"
	upstream = "upstream"
	earlier  = "before" // an earlier version of ours: --before
)

// The reports.
const (
	defaultOut = "results/lifecycle.md"
	loadOut    = "results/lifecycle-load.md"
)

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("lifecycle", flag.ContinueOnError)
	f.IntVar(&c.rounds, "rounds", 1, "how often each controller is measured")
	f.IntVar(&c.steadyRounds, "steady-rounds", 1, "how many of the rounds have a steady window")
	f.IntVar(&c.nodes, "nodes", 5000, "hollow nodes")
	f.IntVar(&c.zones, "zones", 10, "zones they are spread over; one of them dies")
	f.IntVar(&c.silent, "silent", 200, "nodes of the other zones that fall silent")
	f.DurationVar(&c.grace, "grace", 30*time.Second, "node-monitor-grace-period of both controllers (upstream's default, "+
		"50s, gives the same numbers, later)")
	f.DurationVar(&c.steady, "steady", 45*time.Second, "length of the window in which all nodes send heartbeats")
	f.DurationVar(&c.settle, "settle", 15*time.Second,
		"wait after the start of a controller, and after its last Event about "+
			"a registered node")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll", "our program")
	f.StringVar(&c.controlplane, "controlplane", "", "upstream's programs (default: plimsoll-controlplane beside ours)")
	f.StringVar(&c.dir, "dir", "", "directory for all state (default: a new one below the system's temporary directory)")
	f.StringVar(&c.out, "out", defaultOut, "report file; empty: standard output only")
	f.StringVar(&c.only, "only", "", "measure one controller: plimsoll or upstream")
	f.IntVar(&c.port, "port", 28660, "port of the API server")
	f.BoolVar(&c.sim, "sim", true, "play the simulator's day too")
	f.BoolVar(&c.load, "load", false,
		"measure only the latency of another client of the API server while all nodes die and "+
			"return")
	f.StringVar(&c.before, "before", "", "with --load: an earlier build of our program, to compare with; empty: none")
	f.IntVar(&c.rate, "rate", 50, "with --load: requests a second of the other client")
	f.DurationVar(&c.markLimit, "mark-limit", 2*time.Minute,
		"with --load: stop a controller that has not marked all nodes "+
			"this long after their grace period")
	f.BoolVar(&c.keep, "keep", false, "keep the state directory (logs)")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	var errs []error
	bad := func(flag string, value any, want string) {
		errs = append(errs, fmt.Errorf("--%s %v: %s", flag, value, want))
	}
	if c.rounds < 1 {
		bad("rounds", c.rounds, "want at least 1")
	}
	if c.load {
		if c.out == defaultOut {
			c.out = loadOut
		}
		if c.rate < 1 || c.rate > otherRateMax {
			bad("rate", c.rate, fmt.Sprintf("want 1 to %d", otherRateMax))
		}
		c.sim = false
	} else if c.before != "" {
		bad("before", c.before, "want --load with it")
	}
	if !c.load && (c.zones < 2 || c.nodes < 2*c.zones) {
		bad("zones", c.zones, "want at least 2, of at least 2 nodes each")
	}
	if others := c.nodes - c.nodes/max(c.zones, 1); !c.load && (c.silent < 1 || c.silent > others/2) {
		bad("silent", c.silent, fmt.Sprintf("want 1 to %d: at most half of the nodes of the other zones", others/2))
	}
	if c.grace < 15*time.Second {
		bad("grace", c.grace, "want at least 15s: leases are renewed every 10s")
	}
	if c.only != "" && c.only != ours && c.only != upstream {
		bad("only", c.only, "want plimsoll or upstream")
	}
	if c.controlplane == "" {
		c.controlplane = filepath.Join(filepath.Dir(c.plimsoll), "plimsoll-controlplane")
	}
	return c, errors.Join(errs...)
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == otherCommand {
		os.Args = os.Args[1:]
		record.Main(otherCommand, parseOther, runOther)
		return
	}
	record.Main("lifecycle", parseFlags, run)
}

// run measures all rounds, then runs the simulator's day.
func run(ctx context.Context, c config) (ok bool, err error) {
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "plimsoll-bench-"); err != nil {
			return false, err
		}
	}
	report := newReport(ctx, c)
	p := newRig(c)
	defer func() {
		// The context is not cancelled with ctx: the clean-up matters most when the run was interrupted.
		err = errors.Join(err, p.down(context.WithoutCancel(ctx), err != nil || len(report.Problems) > 0))
	}()
	if err := p.up(ctx); err != nil {
		return false, err
	}
	all := []string{upstream, ours}
	if c.load { // a controller that may be cut off, and leaves the nodes as they are, is measured last
		all = []string{ours, earlier, upstream}
	}
	sides := slices.DeleteFunc(all, func(side string) bool {
		if side == earlier {
			return c.before == "" // only with --before
		}
		return c.only != "" && c.only != side
	})
	if err := report.Play(ctx, c.out, sides, func(ctx context.Context, m *record.Measurement) error {
		if c.load {
			return p.measureLoad(ctx, m)
		}
		return p.measure(ctx, m, m.Round <= c.steadyRounds)
	}); err != nil {
		return false, err
	}
	if c.sim {
		if err := p.stopFleet(); err != nil { // it would use part of the machine
			return false, err
		}
		m := record.NewMeasurement(ours, c.rounds)
		report.Measurements = append(report.Measurements, m)
		if err := simulate(ctx, c, m); err != nil {
			report.Fail(err)
		}
	}
	report.Warnings = noise(report.Measurements)
	return report.Finish(c.out)
}
