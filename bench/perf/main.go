// Command perf runs upstream's own scheduler_perf workloads with schedulers in separate processes.
//
// The workloads are read from the published module k8s.io/kubernetes (test/integration/scheduler_perf); there is no
// copy of them here. Upstream's program links kube-scheduler and an API server into one test. This program runs the
// same operations on etcd and kube-apiserver of plimsoll up, with one side's scheduler running from the start:
// upstream's kube-scheduler, plimsoll scheduler, or a loop that binds pods as they arrive without any decision, which
// shows the most that the API server allows. For each workload, each side gets a new control plane; the order of the
// sides is reversed after every workload.
//
// It measures the binds per second, by a watch, of the pods that the workload measures; the CPU time of the whole
// scheduler process per bound pod, from its start until its Events are written; and its peak resident memory. It
// compares with the project's bars (bars.go) and exits with 1 if one is missed or something could not be measured.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/bare"
	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// config has the values of the flags.
type config struct {
	choice
	rounds, gcPercent  int
	scale              float64
	limit              time.Duration
	list, keep         bool
	plimsoll, upstream string
	upstreamArgs       []string
	sides              []string
	dir, out           string
	profiles           string
	port               int
}

// The sides.
const (
	ours     = "plimsoll"
	upstream = "upstream"
	bareLoop = "bare loop"
)

// labelsDefault selects the workloads that upstream recommends to compare two builds on one machine.
const labelsDefault = "performance,short"

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("perf", flag.ContinueOnError)
	f.IntVar(&c.rounds, "rounds", 1, "how often each side is measured with each workload")
	labels := f.String("labels", labelsDefault,
		"labels that a workload must have, or with a leading - must not; empty: all workloads")
	only := f.String("only", "",
		"play the workloads whose case/name matches this `regexp`, of those that --labels chooses")
	f.Float64Var(&c.scale, "scale", 1,
		"multiply the numbers of nodes and pods of each workload by this: 0.1 makes a tenth")
	f.DurationVar(&c.limit, "limit", 10*time.Minute, "give up a workload when pods wait for longer")
	f.BoolVar(&c.list, "list", false, "print which workloads would be played, and which not and why, and end")
	f.IntVar(&c.gcPercent, "gc-percent", 400, "the control plane's --gc-percent; 0: Go's default")
	sides := f.String("sides", strings.Join([]string{upstream, bareLoop, ours}, ","), "what to measure")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll", "our program")
	f.StringVar(&c.upstream, "upstream", "", "upstream's kube-scheduler (default: upstream-scheduler beside ours)")
	upstreamArgs := f.String("upstream-args", "", "further arguments of upstream's scheduler, separated by blanks: "+
		"--feature-gates=SchedulerAsyncAPICalls=true")
	f.StringVar(&c.dir, "dir", "", "directory for all state (default: a new one below the system's temporary directory)")
	f.StringVar(&c.out, "out", "results/perf.md", "report file; empty: standard output only")
	f.StringVar(&c.profiles, "profile", "",
		"keep CPU profiles of our scheduler, and metrics of it and of the API server, in "+
			"this `directory`; such a run is not for the record")
	f.IntVar(&c.port, "port", 28770, "port of the API server")
	f.BoolVar(&c.keep, "keep", false, "keep the state directory (logs)")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	c.labels = commas(*labels)
	c.sides = commas(*sides)
	c.upstreamArgs = strings.Fields(*upstreamArgs)
	var errs []error
	bad := func(flag string, value any, want string) {
		errs = append(errs, fmt.Errorf("--%s %v: %s", flag, value, want))
	}
	if *only != "" {
		var err error
		if c.only, err = regexp.Compile(*only); err != nil {
			bad("only", *only, err.Error())
		}
	}
	if c.rounds < 1 {
		bad("rounds", c.rounds, "want at least 1")
	}
	if !(c.scale > 0 && c.scale <= 10) {
		bad("scale", c.scale, "want more than 0, at most 10")
	}
	for _, side := range c.sides {
		if side != ours && side != upstream && side != bareLoop {
			bad("sides", side, "want upstream, \"bare loop\" or plimsoll")
		}
	}
	if c.upstream == "" {
		c.upstream = filepath.Join(filepath.Dir(c.plimsoll), "upstream-scheduler")
	}
	return c, errors.Join(errs...)
}

// commas splits text at commas; an empty text has no parts.
func commas(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

func main() {
	if !bare.Main() {
		record.Main("perf", parseFlags, run)
	}
}

func run(ctx context.Context, c config) (ok bool, err error) {
	dir, err := findWorkloads()
	if err != nil {
		return false, err
	}
	cases, err := load(dir)
	if err != nil {
		return false, err
	}
	play, out, err := choose(cases, c.choice)
	if err != nil {
		return false, err
	}
	if c.list {
		for _, w := range play {
			fmt.Println(w.title())
		}
		for _, l := range out {
			fmt.Printf("not %s: %s\n", l.title, l.reason)
		}
		return true, nil
	}
	if len(play) == 0 {
		return false, fmt.Errorf("no workload is chosen; --list with --labels '' names them")
	}
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "plimsoll-bench-"); err != nil {
			return false, err
		}
	}
	report := newReport(ctx, c, play, out)
	r := newRig(c)
	defer func() {
		// A separate context, because the control plane must be stopped also if ctx was canceled.
		keep := err != nil || len(report.Problems) > 0 || c.keep
		err = errors.Join(err, r.plane.Down(context.WithoutCancel(ctx), keep))
		if keep {
			record.Progress("state and logs are kept in %s", c.dir)
		}
	}()
	if err := playAll(ctx, r, report, play); err != nil {
		return false, err
	}
	return report.Finish(c.out)
}

// playAll measures every side with every workload; all sides run one workload before the next. The report is written
// after each workload, so an interrupted run has one, too.
func playAll(ctx context.Context, r *rig, report *record.Report, play []*workload) error {
	notes := slices.Clip(report.Notes)
	for round := range r.rounds {
		measurements := map[string]*record.Measurement{}
		for _, side := range r.sides {
			measurements[side] = record.NewMeasurement(side, round+1)
			report.Measurements = append(report.Measurements, measurements[side])
		}
		for i, w := range play {
			order := slices.Clone(r.sides)
			if (round+i)%2 == 1 {
				slices.Reverse(order)
			}
			for _, side := range order {
				if side == bareLoop && w.paced() {
					continue
				}
				if err := r.measure(ctx, measurements[side], w); err != nil {
					report.Fail(fmt.Errorf("round %d: %s: %s: %w", round+1, side, w.title(), err))
				}
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
			}
			compare(measurements, w)
			report.Warnings = doubts(report.Measurements, play)
			report.Notes = append(notes, inShort(report.Measurements, play)...)
			if err := report.Save(r.out); err != nil {
				return err
			}
		}
	}
	return nil
}
