// Command explain measures how long `plimsoll explain` takes, as a process, in a large cluster: the wall time from its
// start to its end, its CPU time, and its peak memory. The control plane is real (plimsoll up: etcd and
// kube-apiserver); nodes and pods are API objects only, of which most are copied within etcd (store.go).
//
// Each question is asked in two ways: of the API server, whose objects are read for it, and of plimsoll scheduler
// --explain, which watches the cluster. Each is asked before any pod waits and while pods wait that fit nowhere. A
// question is asked several times in a round. The command exits with 1 if a bar is missed or a question fails.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// config has the values of the flags.
type config struct {
	rounds, repeat int // rounds; how often a question is asked in each
	nodes, pods    int
	waiting        int  // pods that fit nowhere
	templates      int  // how many different requests these have
	gcPercent      int  // of the control plane
	asks           bool // leave out reading

	plimsoll, dir, out string // the program; the directory of all state; the report's file
	port               int    // of the API server; the scheduler has the next one
	keep               bool   // keep the state directory
}

// The sides.
const (
	asking  = "asks the scheduler"
	reading = "reads the API"
)

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("explain", flag.ContinueOnError)
	f.IntVar(&c.rounds, "rounds", 3, "how often each side is measured")
	f.IntVar(&c.repeat, "repeat", 5, "how often a question is asked in a round")
	f.IntVar(&c.nodes, "nodes", 5000, "nodes")
	f.IntVar(&c.pods, "pods", 150000, "pods on them")
	f.IntVar(&c.waiting, "waiting", 1000, "pods that fit nowhere")
	f.IntVar(&c.templates, "templates", 10, "how many different requests these have; pods that are alike are judged once")
	f.IntVar(&c.gcPercent, "gc-percent", 100, "the control plane's --gc-percent")
	f.BoolVar(&c.asks, "only-asks", false, "only ask the scheduler, which takes a tenth of the time")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll", "our program")
	f.StringVar(&c.dir, "dir", "", "directory for all state (default: a new one below the system's temporary directory)")
	f.StringVar(&c.out, "out", "results/explain.md", "report file; empty: standard output only")
	f.IntVar(&c.port, "port", 28790, "port of the API server; the scheduler has the next one")
	f.BoolVar(&c.keep, "keep", false, "keep the state directory (logs)")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	var errs []error
	for name, value := range map[string]int{"rounds": c.rounds, "repeat": c.repeat, "nodes": c.nodes, "pods": c.pods,
		"waiting": c.waiting, "templates": c.templates} {
		if value < 1 {
			errs = append(errs, fmt.Errorf("--%s %d: want at least 1", name, value))
		}
	}
	if c.pods > podsPerNode*c.nodes {
		errs = append(errs, fmt.Errorf("--pods %d: want at most %d: %d a node", c.pods, podsPerNode*c.nodes, podsPerNode))
	}
	return c, errors.Join(errs...)
}

func main() { record.Main("explain", parseFlags, run) }

func run(ctx context.Context, c config) (ok bool, err error) {
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "plimsoll-bench-"); err != nil {
			return false, err
		}
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return false, err
	}
	report := newReport(ctx, c)
	r := newRig(c)
	defer func() {
		// A separate context, because the control plane must be stopped also if ctx was canceled.
		keep := err != nil || len(report.Problems) > 0 || c.keep
		err = errors.Join(err, r.down(context.WithoutCancel(ctx), keep))
		if keep {
			record.Progress("state and logs are kept in %s", c.dir)
		}
	}()
	if err := r.up(ctx); err != nil {
		return false, err
	}
	if err := r.startScheduler(ctx, filepath.Join(c.dir, "scheduler.log")); err != nil {
		return false, err
	}
	sides := []string{reading, asking}
	if c.asks {
		sides = []string{asking}
	}
	for _, waits := range []bool{false, true} {
		if waits {
			if err := r.makeWaiting(ctx); err != nil {
				return false, err
			}
		}
		if err := r.note(ctx, report, waits); err != nil {
			return false, err
		}
		if err := report.Play(ctx, "", sides, func(ctx context.Context, m *record.Measurement) error {
			return r.measure(ctx, m, waits)
		}); err != nil {
			return false, err
		}
	}
	return report.Finish(c.out)
}
