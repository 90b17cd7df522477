// Command up measures `plimsoll up` with one node, with several (--nodes), and with one node and upstream's programs in
// the places of ours: the kubelet, kube-scheduler, and kube-controller-manager with its node-lifecycle and
// taint-eviction controllers (upstream.go). It measures the time until all nodes and all add-ons are ready, on an empty
// state directory and again after `down`; how long `down` takes; then memory and CPU at rest.
//
// The sides take turns in one run. Two reports come from it: several nodes beside one, and one node with our programs
// beside one with upstream's. All that is not replaced is the same on both sides of the second report: etcd,
// kube-apiserver, kube-proxy, containerd, the CSI driver, the add-ons, and `up` itself.
//
// It runs in its own network namespace, so that no other instance disturbs it. It adds an address and a route to
// Services, which a machine without a network lacks. A node is Ready when its agent has reported so since the start.
// `up` also waits until the agent has renewed the node's Lease.
//
// At rest every process of the instance counts: those that `status` lists, the supervisor, and the shims with the pods
// of add-ons.
//
// It compares the results with the bars of the project and exits with 1 when one is missed or a round could not be
// measured. It is not a test: a busy machine is no reason to fail a build.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// config is the command line.
type config struct {
	rounds   int
	nodes    int           // of the larger side
	settle   time.Duration // wait before the window at rest
	rest     time.Duration // length of the window at rest
	plimsoll string        // our program

	kubelet      string // upstream's
	scheduler    string // upstream's
	controlplane string // the program with etcd, kube-apiserver and kube-controller-manager

	out         string // file of the report about several nodes; empty: none
	outUpstream string // file of the report about upstream's programs; empty: none
}

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("up", flag.ContinueOnError)
	f.IntVar(&c.rounds, "rounds", 3, "how often each side is measured")
	f.IntVar(&c.nodes, "nodes", 3, "nodes of the larger side")
	f.DurationVar(&c.settle, "settle", time.Minute, "wait before the window at rest")
	f.DurationVar(&c.rest, "rest", time.Minute, "length of the window at rest")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll", "our program; what belongs to it is found beside it")
	f.StringVar(&c.kubelet, "kubelet", "", "upstream's kubelet (default: upstream-kubelet beside ours)")
	f.StringVar(&c.scheduler, "kube-scheduler", "", "upstream's kube-scheduler (default: upstream-scheduler beside ours)")
	f.StringVar(&c.out, "out", "results/up.md", "the report about several nodes; empty: none")
	f.StringVar(&c.outUpstream, "out-upstream", "results/up-upstream.md",
		"the report about upstream's programs; empty: none")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if c.rounds < 1 || c.nodes < 2 || c.rest <= 0 || c.settle < 0 {
		return c, fmt.Errorf("--rounds %d, --nodes %d, --rest %v, --settle %v: want at least 1, 2, more than 0, 0",
			c.rounds, c.nodes, c.rest, c.settle)
	}
	beside := func(given, name string) string {
		if given == "" {
			return filepath.Join(filepath.Dir(c.plimsoll), name)
		}
		return given
	}
	c.kubelet, c.scheduler = beside(c.kubelet, "upstream-kubelet"), beside(c.scheduler, "upstream-scheduler")
	c.controlplane = beside("", "plimsoll-controlplane")
	var errs [4]error
	for i, path := range []*string{&c.plimsoll, &c.kubelet, &c.scheduler, &c.controlplane} {
		*path, errs[i] = filepath.Abs(*path)
	}
	return c, errors.Join(errs[:]...)
}

// check returns an error if a program is missing.
func (c config) check() error {
	var errs []error
	for _, path := range []string{c.plimsoll, c.kubelet, c.scheduler, c.controlplane} {
		if _, err := os.Stat(path); err != nil {
			errs = append(errs, fmt.Errorf("%w: build it with `make build bench-build bin/upstream-scheduler`", err))
		}
	}
	return errors.Join(errs...)
}

// The sides.
const (
	one    = "one node"
	many   = "several nodes"
	theirs = "upstream's programs"
)

func main() {
	record.Apart()
	record.Main("up", parseFlags, run)
}

func run(ctx context.Context, c config) (ok bool, err error) {
	if err := errors.Join(c.check(), record.Connect(ctx)); err != nil {
		return false, err
	}
	restore, err := plane.KeepSysctls()
	if err != nil {
		return false, err
	}
	defer restore()
	restoreDir := plane.NoteKubeletDir()
	defer func() { err = errors.Join(err, restoreDir()) }()
	r := &record.Report{
		Title:   fmt.Sprintf("`plimsoll up` with one node and with %d", c.nodes),
		Program: "up",
		Ours:    many,
		Theirs:  one,
		Heads:   [2]string{one, fmt.Sprintf("%d nodes", c.nodes)},
		Lines:   nodeLines(),
		Rounds:  c.rounds,
		Args:    os.Args[1:],
		Began:   time.Now(),
		Machine: append(record.Machine(ctx),
			record.Fact{Name: "plimsoll", Value: record.Output(ctx, c.plimsoll, "version")},
			record.Fact{Name: "upstream's kubelet", Value: record.Output(ctx, c.kubelet, "--version")},
			record.Fact{Name: "upstream's kube-scheduler", Value: record.Output(ctx, c.scheduler, "--version")}),
		Notes: []string{fmt.Sprintf("at rest: %v, after %v", c.rest, c.settle)},
	}
	err = r.Play(ctx, c.out, []string{theirs, one, many}, func(ctx context.Context, m *record.Measurement) error {
		return measure(ctx, c, m)
	})
	if err != nil {
		return false, err
	}
	beside := *r
	beside.Title = "`plimsoll up` with our programs and with upstream's"
	beside.Ours, beside.Theirs = one, theirs
	beside.Heads = [2]string{"upstream", "ours"}
	beside.Lines = upstreamLines()
	okNodes, err := r.Finish(c.out)
	if err != nil {
		return false, err
	}
	fmt.Println()
	okUpstream, err := beside.Finish(c.outUpstream)
	return okNodes && okUpstream, err
}
