package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/plimsoll-dev/plimsoll/bench/plane"
	"github.com/plimsoll-dev/plimsoll/bench/record"
)

const instance = "bench-up"

// measure measures one side in one round.
func measure(ctx context.Context, c config, m *record.Measurement) (err error) {
	dir, err := os.MkdirTemp("", "pl-")
	if err != nil {
		return err
	}
	s := &subject{config: c, dir: dir, nodes: 1, upstream: m.Side == theirs}
	if m.Side == many {
		s.nodes = c.nodes
	}
	defer func() {
		err = errors.Join(err, s.down(context.WithoutCancel(ctx), "--purge"), plane.RemoveLogLinks(s.state()),
			os.RemoveAll(dir))
	}()
	if err := os.WriteFile(s.agentConfig(), []byte(agentConfig), 0o600); err != nil {
		return err
	}
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
		if err := s.down(ctx); err != nil {
			return err
		}
		m.Put(downTime, time.Since(began).Seconds(), 1)
	}
	return s.rests(ctx, m)
}

// subject is the instance that is measured.
type subject struct {
	config
	dir      string // of all files
	nodes    int
	upstream bool // upstream's programs run in the places of ours

	kubeScheduler *plane.Process // upstream's, while it runs
}

// state is the instance's directory. Its name is short because it contains sockets.
func (s *subject) state() string { return filepath.Join(s.dir, "s") }

func (s *subject) agentConfig() string { return filepath.Join(s.dir, "agent.yaml") }

// agentConfig is the configuration of the agents of all sides: what the kubelet needs to start on any machine on which
// our agent starts. `up` sets the other fields.
const agentConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
failSwapOn: false
`

func (s *subject) command(ctx context.Context, verb string, args ...string) *exec.Cmd {
	words := append([]string{verb, "--instance", instance, "--state-dir", s.state()}, args...)
	return exec.CommandContext(ctx, s.plimsoll, words...)
}

// down stops upstream's scheduler, if it runs, and the instance.
func (s *subject) down(ctx context.Context, args ...string) error {
	err := s.stopScheduler()
	if said, callErr := s.command(ctx, "down", args...).CombinedOutput(); callErr != nil {
		err = errors.Join(err, fmt.Errorf("plimsoll down: %w: %s", callErr, bytes.TrimSpace(said)))
	}
	return err
}

// upFlags returns the flags of `up`.
func (s *subject) upFlags() ([]string, error) {
	args := []string{"--detach", "--node-name", "bench", "--agent-config", s.agentConfig()}
	if s.nodes > 1 {
		return append(args, "--nodes", strconv.Itoa(s.nodes)), nil
	}
	args = append(args, "--node-ip", record.NodeIP)
	if !s.upstream {
		return args, nil
	}
	more, err := s.upstreamFlags()
	return append(args, more...), err
}

// up brings the instance up, and returns when all nodes were Ready, names known and all add-ons ready.
func (s *subject) up(ctx context.Context) (ready, named, all time.Duration, err error) {
	fail := func(err error) (_, _, _ time.Duration, _ error) { return 0, 0, 0, err }
	args, err := s.upFlags()
	if err != nil {
		return fail(err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, allMax, fmt.Errorf("add-ons are not ready after %v", allMax))
	defer cancel()
	began := time.Now()
	answered := make(chan time.Duration, 1)
	go func() {
		if awaitNames(ctx) == nil {
			answered <- time.Since(began)
		}
	}()
	if ready, err = s.runUp(ctx, began, args); err != nil {
		return fail(err)
	}
	select {
	case named = <-answered:
	case <-ctx.Done():
		return fail(fmt.Errorf("ask the cluster's DNS: %w", context.Cause(ctx)))
	}
	for {
		status, err := s.status(ctx)
		if err == nil && status.ready() {
			return ready, named, time.Since(began), s.checkUpstream(status)
		}
		if paused := record.Pause(ctx, pollPeriod); paused != nil {
			return fail(errors.Join(paused, err))
		}
	}
}

// runUp runs `up`, and returns when all nodes were Ready.
func (s *subject) runUp(ctx context.Context, began time.Time, args []string) (ready time.Duration, err error) {
	up := s.command(ctx, "up", args...)
	out, err := up.StdoutPipe()
	if err != nil {
		return 0, err
	}
	var said bytes.Buffer
	up.Stderr = &said
	if err := up.Start(); err != nil {
		return 0, err
	}
	missing := s.nodes
	var problem error
	for text := bufio.NewScanner(out); text.Scan(); {
		line := text.Text()
		said.WriteString(line + "\n")
		switch {
		case strings.HasPrefix(line, "done    control plane:") && s.upstream:
			problem = s.startScheduler()
		case strings.HasPrefix(line, "done    node bench") && strings.Contains(line, ": Ready ("):
			if missing--; missing == 0 {
				ready = time.Since(began)
			}
		}
	}
	problem = errors.Join(problem, up.Wait())
	if problem == nil && ready == 0 {
		problem = errors.New("it did not say that all nodes are Ready")
	}
	if problem == nil && s.upstream && s.kubeScheduler == nil {
		problem = errors.New("it did not say that the control plane is there")
	}
	if problem != nil {
		return 0, fmt.Errorf("plimsoll up: %w: %s", problem, said.String())
	}
	return ready, nil
}

const (
	pollPeriod = 250 * time.Millisecond // chosen: each question is a process
	allMax     = 3 * time.Minute        // chosen
	namePeriod = 50 * time.Millisecond  // between questions to the cluster's DNS; chosen
	nameMax    = 500 * time.Millisecond // of one of them; chosen: before Services work, there is no answer at all
)

// dnsServer is the address of the cluster's DNS: the tenth of --service-cidr's default.
const dnsServer = "10.96.0.10:53"

// awaitNames asks the cluster's DNS for the Service "kubernetes", which every cluster has, until it answers.
func awaitNames(ctx context.Context) error {
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, dnsServer)
	}}
	ask := func() error {
		ctx, cancel := context.WithTimeout(ctx, nameMax)
		defer cancel()
		_, err := resolver.LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
		return err
	}
	for {
		if err := ask(); err == nil {
			return nil
		}
		if err := record.Pause(ctx, namePeriod); err != nil {
			return err
		}
	}
}

// status is what is read of `plimsoll status -o json`.
type status struct {
	SupervisorPID int
	Children      []struct {
		Name string
		PID  int
	}
	Addons []struct{ Ready bool }
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
	roles, err := s.roles(all)
	if err != nil {
		return err
	}
	before, err := use(roles)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := record.Pause(ctx, s.rest); err != nil {
		return err
	}
	after, err := use(roles)
	if err != nil {
		return fmt.Errorf("a process ended at rest: %w", err)
	}
	took := time.Since(began).Seconds()
	if err := s.checkUpstream(all); err != nil {
		return err
	}
	for name, value := range sums(before, after, took) {
		m.Put(name, value, 1)
	}
	return nil
}
