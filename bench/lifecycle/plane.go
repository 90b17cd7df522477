package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// plane is a control plane with hollow nodes and no controller that watches over them.
type plane struct {
	config
	client *kubernetes.Clientset
	fleet  *process
	nodes  *nodes
	ups    []int // pids of the control plane
}

const (
	instance    = "bench-lifecycle"
	prefix      = "bench-"
	upTimeout   = 2 * time.Minute
	fillTimeout = 5 * time.Minute // for all nodes to register
	stopTimeout = time.Minute
)

func (p *plane) state() string      { return filepath.Join(p.dir, "s") } // short: sockets are below it
func (p *plane) kubeconfig() string { return filepath.Join(p.state(), "admin.kubeconfig") }
func (p *plane) socket() string     { return filepath.Join(p.dir, "fleet.sock") }

// up starts the control plane and the fleet, and returns when all nodes are Ready.
func (p *plane) up(ctx context.Context) error {
	if _, err := p.call(ctx, "up", "--detach", "--no-agent", "--no-lifecycle", "--instance", instance, "--state-dir", p.state(),
		"--apiserver-port", strconv.Itoa(p.port), "--controller-manager-port", "0", "--timeout", upTimeout.String()); err != nil {
		return err
	}
	if err := p.readPIDs(ctx); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig())
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	if p.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	p.nodes = watchNodes(ctx, p.client)
	if p.fleet, err = start(filepath.Join(p.dir, "fleet.log"), p.plimsoll, "fleet", "--kubeconfig", p.kubeconfig(),
		"--nodes", strconv.Itoa(p.config.nodes), "--zones", strconv.Itoa(p.zones), "--node-prefix", prefix, "--control", p.socket()); err != nil {
		return err
	}
	began := time.Now()
	if err := p.nodes.await(ctx, fillTimeout, "register", func(n *nodes) bool { return len(n.by) == p.config.nodes }); err != nil {
		return err
	}
	progress("%d nodes registered in %.1f s", p.config.nodes, time.Since(began).Seconds())
	return nil
}

// call runs our program and returns what it printed.
func (p *plane) call(ctx context.Context, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, p.plimsoll, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for us: it must not end a running down
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = stopTimeout
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, bytes.TrimSpace(append(stdout.Bytes(), stderr.Bytes()...)))
	}
	return stdout.Bytes(), nil
}

func (p *plane) readPIDs(ctx context.Context) error {
	out, err := p.call(ctx, "status", "-o", "json", "--instance", instance, "--state-dir", p.state())
	status := struct {
		Children []struct{ PID int }
	}{}
	if jsonErr := json.Unmarshal(out, &status); jsonErr != nil { // status fails while there is no node, and prints all the same
		return errors.Join(err, jsonErr)
	}
	p.ups = nil
	for _, c := range status.Children {
		p.ups = append(p.ups, c.PID)
	}
	return nil
}

// order makes hollow nodes fail or return, and returns which.
func (p *plane) order(ctx context.Context, words ...string) ([]string, error) {
	out, err := p.call(ctx, append(append([]string{"fleet", "fault"}, words...), "--control", p.socket(), "-o", "json")...)
	if err != nil {
		return nil, err
	}
	obeyed := struct{ Nodes []string }{}
	return obeyed.Nodes, json.Unmarshal(out, &obeyed)
}

// beats is how many leases the fleet has renewed, and the 99th percentile of how long the last ones took.
func (p *plane) beats(ctx context.Context) (renewed float64, p99 float64, err error) {
	out, err := p.call(ctx, "fleet", "status", "--control", p.socket())
	if err != nil {
		return 0, 0, err
	}
	status := struct {
		Requests map[string]struct{ Done, P99Seconds float64 }
	}{}
	err = json.Unmarshal(out, &status)
	return status.Requests["renew"].Done, status.Requests["renew"].P99Seconds, err
}

func (p *plane) stopFleet() error {
	if p.fleet == nil {
		return nil
	}
	err := p.fleet.stop()
	p.fleet = nil
	return err
}

// down removes everything. The logs of a failed run stay, and their place is told.
func (p *plane) down(ctx context.Context, failed bool) error {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	err := p.stopFleet()
	keep := failed || p.keep
	args := []string{"down", "--instance", instance, "--state-dir", p.state()}
	if !keep {
		args = append(args, "--purge")
	}
	_, downErr := p.call(ctx, args...)
	err = errors.Join(err, downErr)
	if keep {
		progress("state and logs are kept in %s", p.dir)
		return err
	}
	return errors.Join(err, os.RemoveAll(p.dir))
}

// process is a program that runs beside us.
type process struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan error
}

func start(log string, argv ...string) (*process, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the child has its own
	c := exec.Command(argv[0], argv[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.Stdout, c.Stderr = file, file
	if err := c.Start(); err != nil {
		return nil, err
	}
	p := &process{name: filepath.Base(argv[0]) + " " + argv[1], log: log, cmd: c, ended: make(chan error, 1)}
	go func() { p.ended <- c.Wait() }()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

// check reports whether p still runs.
func (p *process) check() error {
	select {
	case err := <-p.ended:
		p.ended <- err
		return fmt.Errorf("%s ended: %v: %s", p.name, err, p.logTail())
	default:
		return nil
	}
}

func (p *process) stop() error {
	if err := p.check(); err != nil {
		return err
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
	select {
	case <-p.ended:
		return nil
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("stop %s: not within %v of SIGTERM", p.name, stopTimeout)
	}
}

// logTailBytes of a log are shown with an error.
const logTailBytes = 4 << 10

func (p *process) logTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-logTailBytes):])
}
