package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"

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
	for _, names := range [][moments]string{coldNames, warmNames} {
		record.Progress("%s, round %d: up", m.Side, m.Round)
		took, err := s.up(ctx)
		if err != nil {
			return err
		}
		for i, name := range names {
			m.Put(name, took[i].Seconds(), 1)
		}
		if names == warmNames {
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

// The moments of a start that are measured.
const (
	momentReady = iota // all nodes are Ready
	momentSaid         // `up` says so
	momentNames        // the cluster's DNS answers
	momentAll          // all add-ons are ready
	moments
)

var (
	coldNames = [moments]string{readyCold, saidCold, namesCold, allCold}
	warmNames = [moments]string{readyWarm, saidWarm, namesWarm, allWarm}
)

// up brings the instance up, and returns how long after its start each moment was.
func (s *subject) up(ctx context.Context) ([moments]time.Duration, error) {
	var none, took [moments]time.Duration
	args, err := s.upFlags()
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, allMax, fmt.Errorf("add-ons are not ready after %v", allMax))
	defer cancel()
	began := time.Now()
	watch := func(moment int, what string, await func() error) func() error {
		result := make(chan error, 1)
		go func() {
			err := await()
			took[moment] = time.Since(began)
			result <- err
		}()
		return func() error {
			if err := <-result; err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			return nil
		}
	}
	answered := make(chan struct{}) // by the control plane
	ready := watch(momentReady, "wait for nodes that report Ready", func() error {
		select {
		case <-answered:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		nodes, err := s.nodeClient(ctx)
		if err == nil && s.upstream {
			err = s.startScheduler()
		}
		if err != nil {
			return err
		}
		return s.awaitNodes(ctx, nodes, began)
	})
	named := watch(momentNames, "ask the cluster's DNS", func() error { return awaitNames(ctx) })
	if took[momentSaid], err = s.runUp(ctx, began, args, answered); err != nil {
		cancel()
	}
	if watchErr := errors.Join(ready(), named()); err == nil {
		err = watchErr
	}
	if err != nil {
		return none, err
	}
	for {
		status, err := s.status(ctx)
		if err == nil && status.ready() {
			took[momentAll] = time.Since(began)
			return took, s.checkUpstream(status)
		}
		if paused := record.Pause(ctx, pollPeriod); paused != nil {
			return none, errors.Join(paused, err)
		}
	}
}

// runUp runs `up`, and returns when it said that all nodes are Ready. It closes answered when the control plane has.
func (s *subject) runUp(ctx context.Context, began time.Time, args []string,
	answered chan<- struct{}) (said time.Duration, err error) {
	up := s.command(ctx, "up", args...)
	out, err := up.StdoutPipe()
	if err != nil {
		return 0, err
	}
	var text bytes.Buffer
	up.Stderr = &text
	if err := up.Start(); err != nil {
		return 0, err
	}
	missing, silent := s.nodes, true
	for lines := bufio.NewScanner(out); lines.Scan(); {
		line := lines.Text()
		text.WriteString(line + "\n")
		switch {
		case strings.HasPrefix(line, "done    control plane:") && silent:
			silent = false
			close(answered)
		case strings.HasPrefix(line, "done    node bench") && strings.Contains(line, ": Ready ("):
			if missing--; missing == 0 {
				said = time.Since(began)
			}
		}
	}
	problem := up.Wait()
	if problem == nil && (silent || said == 0) {
		problem = errors.New("it did not say that the control plane answers and all nodes are Ready")
	}
	if problem != nil {
		return 0, fmt.Errorf("plimsoll up: %w: %s", problem, text.String())
	}
	return said, nil
}

// nodeClient returns a client, when it may read nodes: the administrator's rights are among the first objects of a new
// cluster, and `up` starts our scheduler after they are there.
func (s *subject) nodeClient(ctx context.Context) (typedv1.NodeInterface, error) {
	p := plane.Plane{Dir: s.dir}
	config, err := p.Config()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	nodes := client.CoreV1().Nodes()
	for {
		_, err := nodes.List(ctx, metav1.ListOptions{})
		if err == nil {
			return nodes, nil
		}
		if paused := record.Pause(ctx, askPeriod); paused != nil {
			return nil, errors.Join(paused, err)
		}
	}
}

// awaitNodes waits until all nodes report, since began, that they are Ready. A report from an earlier run is older.
func (s *subject) awaitNodes(ctx context.Context, nodes typedv1.NodeInterface, began time.Time) error {
	ready := map[string]bool{}
	for {
		seen, err := nodes.Watch(ctx, metav1.ListOptions{}) // it begins with what there is
		if err != nil {
			return err
		}
		for e := range seen.ResultChan() {
			if node, ok := e.Object.(*corev1.Node); ok {
				ready[node.Name] = reportsReady(node, began)
			}
			if all := slices.Collect(maps.Values(ready)); len(all) == s.nodes && !slices.Contains(all, false) {
				seen.Stop()
				return nil
			}
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// reportsReady reports whether a node is Ready by a report of its agent since a moment. Times of conditions are in
// whole seconds.
func reportsReady(node *corev1.Node, since time.Time) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue &&
			!c.LastHeartbeatTime.Time.Before(since.Truncate(time.Second))
	})
}

const (
	pollPeriod = 250 * time.Millisecond // chosen: each question is a process
	allMax     = 3 * time.Minute        // chosen
	askPeriod  = 50 * time.Millisecond  // between questions of this process; chosen
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
		if err := record.Pause(ctx, askPeriod); err != nil {
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
