// Command up measures `plimsoll up` with one node and with several (--nodes): the time until all nodes and all add-ons
// are ready, on an empty state directory and again after `down`; how long `down` takes; then memory and CPU at rest.
//
// It runs in its own network namespace, so that no other instance disturbs it. It adds an address and a route to
// Services, which a machine without a network lacks. A node is Ready when `up` says so: it has renewed its Lease since
// its agent began. At rest every process of the instance counts: those that `status` lists, the supervisor, and the
// shims with the pods of add-ons.
//
// It compares the results with the bars of the project and exits with 1 when one is missed or a round could not be
// measured. It is not a test: a busy machine is no reason to fail a build.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/record"
)

// config is the command line.
type config struct {
	rounds   int
	nodes    int           // of the larger side
	settle   time.Duration // wait before the window at rest
	rest     time.Duration // length of the window at rest
	plimsoll string        // our program
	out      string        // the report's file; empty: none
}

func parseFlags(args []string) (config, error) {
	c := config{}
	f := flag.NewFlagSet("up", flag.ContinueOnError)
	f.IntVar(&c.rounds, "rounds", 3, "how often one node and several are measured")
	f.IntVar(&c.nodes, "nodes", 3, "nodes of the larger side")
	f.DurationVar(&c.settle, "settle", time.Minute, "wait before the window at rest")
	f.DurationVar(&c.rest, "rest", time.Minute, "length of the window at rest")
	f.StringVar(&c.plimsoll, "plimsoll", "../bin/plimsoll", "our program; what belongs to it is found beside it")
	f.StringVar(&c.out, "out", "results/up.md", "the report; empty: none")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if c.rounds < 1 || c.nodes < 2 || c.rest <= 0 || c.settle < 0 {
		return c, fmt.Errorf("--rounds %d, --nodes %d, --rest %v, --settle %v: want at least 1, 2, more than 0, 0",
			c.rounds, c.nodes, c.rest, c.settle)
	}
	var err error
	c.plimsoll, err = filepath.Abs(c.plimsoll)
	return c, err
}

// The sides.
const (
	one  = "one node"
	many = "several nodes"
)

// Names of values. Cold is on an empty state directory, warm is after `down`.
const (
	readyCold = "ready_cold"
	namesCold = "names_cold"
	allCold   = "all_cold"
	readyWarm = "ready_warm"
	namesWarm = "names_warm"
	allWarm   = "all_warm"
	resident  = "resident"
	private   = "private"
	restCPU   = "rest_cpu"
	downTime  = "down"
	processes = "processes"
)

const instance = "bench-up"

// Bars of the project, for the larger side: three nodes on two cores.
const (
	readyBar = 40 // s
	allBar   = 40 // s
)

func lines() []record.Line {
	const (
		cold = "Empty state directory"
		warm = "Again after `down`"
		rest = "At rest"
		end  = "End"
	)
	ready, all := record.Bar{Max: readyBar}, record.Bar{Max: allBar}
	line := func(group, name, title, unit string, bar record.Bar) record.Line {
		return record.Line{Group: group, Name: name, Title: title, Unit: unit, Bar: bar}
	}
	none := record.Bar{}
	return []record.Line{
		line(cold, readyCold, "`up` to all nodes Ready", "s", ready),
		line(cold, namesCold, "`up` to names of Services (CoreDNS)", "s", all),
		line(cold, allCold, "`up` to all add-ons ready", "s", none),
		line(warm, readyWarm, "`up` to all nodes Ready", "s", ready),
		line(warm, namesWarm, "`up` to names of Services (CoreDNS)", "s", all),
		line(warm, allWarm, "`up` to all add-ons ready", "s", all),
		line(rest, processes, "processes, those of add-ons included", "", none),
		line(rest, resident, "resident memory, shared pages counted in each process", "MiB", none),
		line(rest, private, "the same, shared pages divided among the processes that have them", "MiB", none),
		line(rest, restCPU, "CPU", "cores", none),
		line(end, downTime, "`down`", "s", none),
	}
}

func main() {
	record.Apart()
	record.Main("up", parseFlags, run)
}

func run(ctx context.Context, c config) (bool, error) {
	if err := record.Connect(ctx); err != nil {
		return false, err
	}
	r := &record.Report{
		Title:   fmt.Sprintf("`plimsoll up` with one node and with %d", c.nodes),
		Program: "up",
		Ours:    many,
		Theirs:  one,
		Heads:   [2]string{one, fmt.Sprintf("%d nodes", c.nodes)},
		Lines:   lines(),
		Rounds:  c.rounds,
		Args:    os.Args[1:],
		Began:   time.Now(),
		Machine: append(record.Machine(ctx), record.Fact{Name: "plimsoll", Value: record.Output(ctx, c.plimsoll, "version")}),
		Notes:   []string{fmt.Sprintf("at rest: %v, after %v", c.rest, c.settle)},
	}
	err := r.Play(ctx, c.out, []string{one, many}, func(ctx context.Context, m *record.Measurement) error {
		return measure(ctx, c, m)
	})
	if err != nil {
		return false, err
	}
	return r.Finish(c.out)
}

// measure measures one side in one round.
func measure(ctx context.Context, c config, m *record.Measurement) (err error) {
	dir, err := os.MkdirTemp("", "pl-")
	if err != nil {
		return err
	}
	s := &subject{config: c, state: filepath.Join(dir, "s"), nodes: 1}
	if m.Side == many {
		s.nodes = c.nodes
	}
	defer func() {
		err = errors.Join(err, s.call(context.WithoutCancel(ctx), "down", "--purge"), os.RemoveAll(dir))
	}()
	for _, names := range [][3]string{{readyCold, namesCold, allCold}, {readyWarm, namesWarm, allWarm}} {
		record.Progress("%s, round %d: up", m.Side, m.Round)
		ready, named, all, err := s.up(ctx)
		if err != nil {
			return err
		}
		for i, took := range []time.Duration{ready, named, all} {
			m.Put(names[i], took.Seconds(), 1)
		}
		if names[0] == readyWarm {
			break
		}
		began := time.Now()
		if err := s.call(ctx, "down"); err != nil {
			return err
		}
		m.Put(downTime, time.Since(began).Seconds(), 1)
	}
	return s.rests(ctx, m)
}

// subject is the instance that is measured.
type subject struct {
	config
	state string
	nodes int
}

func (s *subject) command(ctx context.Context, verb string, args ...string) *exec.Cmd {
	words := append([]string{verb, "--instance", instance, "--state-dir", s.state}, args...)
	return exec.CommandContext(ctx, s.plimsoll, words...)
}

func (s *subject) call(ctx context.Context, verb string, args ...string) error {
	if said, err := s.command(ctx, verb, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("plimsoll %s: %w: %s", verb, err, bytes.TrimSpace(said))
	}
	return nil
}

// up brings the instance up, and returns when all nodes were Ready, names known and all add-ons ready.
func (s *subject) up(ctx context.Context) (ready, named, all time.Duration, err error) {
	up := s.command(ctx, "up", "--detach", "--node-name", "bench")
	if s.nodes == 1 {
		up.Args = append(up.Args, "--node-ip", record.NodeIP)
	} else {
		up.Args = append(up.Args, "--nodes", strconv.Itoa(s.nodes))
	}
	out, err := up.StdoutPipe()
	if err != nil {
		return 0, 0, 0, err
	}
	var said bytes.Buffer
	up.Stderr = &said
	began := time.Now()
	if err := up.Start(); err != nil {
		return 0, 0, 0, err
	}
	missing := s.nodes
	for text := bufio.NewScanner(out); text.Scan(); {
		line := text.Text()
		said.WriteString(line + "\n")
		switch {
		case strings.HasPrefix(line, "done    node bench") && strings.Contains(line, ": Ready ("):
			if missing--; missing == 0 {
				ready = time.Since(began)
			}
		case strings.HasPrefix(line, "done    add-ons: coredns ("):
			named = time.Since(began)
		}
	}
	if err := up.Wait(); err != nil || ready == 0 || named == 0 {
		return 0, 0, 0, fmt.Errorf("plimsoll up: %w: %s", err, said.String())
	}
	for {
		status, err := s.status(ctx)
		if err == nil && status.ready() {
			return ready, named, time.Since(began), nil
		}
		select {
		case <-ctx.Done():
			return 0, 0, 0, ctx.Err()
		case <-time.After(pollPeriod):
		}
		if time.Since(began) > allMax {
			return 0, 0, 0, fmt.Errorf("add-ons are not ready after %v: %v", allMax, err)
		}
	}
}

const (
	pollPeriod = 250 * time.Millisecond // chosen: each question is a process
	allMax     = 3 * time.Minute        // chosen
)

// status is what is read of `plimsoll status -o json`.
type status struct {
	SupervisorPID int
	Children      []struct{ PID int }
	Addons        []struct{ Ready bool }
}

func (s *status) ready() bool {
	for _, a := range s.Addons {
		if !a.Ready {
			return false
		}
	}
	return len(s.Addons) > 0
}

func (s *subject) status(ctx context.Context) (status, error) {
	out, err := s.command(ctx, "status", "-o", "json").Output()
	if err != nil {
		return status{}, err
	}
	all := status{}
	return all, json.Unmarshal(out, &all)
}

// rests measures memory and CPU of all processes at rest.
func (s *subject) rests(ctx context.Context, m *record.Measurement) error {
	record.Progress("%s, round %d: rest", m.Side, m.Round)
	if err := record.Pause(ctx, s.settle); err != nil {
		return err
	}
	all, err := s.status(ctx)
	if err != nil {
		return err
	}
	pids, err := s.processes(all)
	if err != nil {
		return err
	}
	before, err := cpuOf(pids)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := record.Pause(ctx, s.rest); err != nil {
		return err
	}
	after, err := cpuOf(pids)
	if err != nil {
		return fmt.Errorf("a process ended at rest: %w", err)
	}
	m.Put(restCPU, (after-before)/time.Since(began).Seconds(), 1)
	m.Put(processes, float64(len(pids)), 1)
	var sums [2]float64
	for _, pid := range pids {
		for i, key := range []string{"Rss", "Pss"} {
			kib, err := rollup(pid, key)
			if err != nil {
				return err
			}
			sums[i] += kib / 1024
		}
	}
	m.Put(resident, sums[0], 1)
	m.Put(private, sums[1], 1)
	return nil
}
