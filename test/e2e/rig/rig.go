//go:build e2e

package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

// Options of an instance.
type Options struct {
	UpFlags []string // additional flags of `plimsoll up`
	NoNode  bool     // --no-agent: it needs no root
	// Services adds kube-proxy and CoreDNS. A network namespace, and so this machine, can have one such instance.
	Services bool
	Storage  bool // with the CSI driver and its controllers
	// Parallel is how many tests of the package run at once (Main); zero: parallel.
	Parallel int

	// Prepare is called before anything is started. It may change the state directory, for example to a separate disk.
	Prepare func(*Cluster) error
}

// Cluster is a running instance.
type Cluster struct {
	Name       string // of the instance
	NodeName   string
	Dir        string // contains all its files
	StateDir   string
	RunDir     string
	Kubeconfig string // the administrator's
	AgentPort  int
	Config     *rest.Config
	API        kubernetes.Interface

	services bool // with kube-proxy
	binary   string
	up       []string // the flags of up
	guard    *dismiss
}

// upTimeout bounds up and down; either takes some 6 s on two idle cores.
const upTimeout = 3 * time.Minute

// Start starts an instance. name has at most six letters, since it becomes part of a link's name. The error wraps
// ErrCannot if this machine cannot run an instance; then the test should be skipped.
func Start(name string, o Options) (*Cluster, error) {
	binary, err := findBinary()
	if err != nil {
		return nil, fmt.Errorf("%w: %w; run make build", ErrCannot, err)
	}
	if !o.NoNode && os.Geteuid() != 0 {
		return nil, fmt.Errorf("%w: a node needs root", ErrCannot)
	}
	dir, err := os.MkdirTemp("", "pl-") // a short name: socket paths have at most 107 characters
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil { // pods with users of their own pass through it
		return nil, err
	}
	number := int(started.Add(1))
	c := &Cluster{
		Name: instanceName(name, number), NodeName: "node-" + name, Dir: dir, StateDir: filepath.Join(dir,
			"s"), RunDir: filepath.Join(dir, "r"), binary: binary,
	}
	if err := c.start(o, number); err != nil {
		return nil, errors.Join(fmt.Errorf("start instance %s: %w", c.Name, err), c.Stop())
	}
	return c, nil
}

// ServiceCIDR is the network of Service addresses of an instance with Services. No other instance has it: the default
// of `up` is 10.96.0.0/16 (chosen).
const ServiceCIDR = "10.94.0.0/16"

// ErrCannot is in the chain of errors of a machine that cannot run an instance.
var ErrCannot = errors.New("this machine cannot run an instance")

// started counts the instances of this process.
var started atomic.Int32

// instanceName returns a name that no other process of this machine uses.
func instanceName(name string, number int) string {
	suffix := strconv.FormatInt(int64(os.Getpid()), 36)
	if number > 1 {
		suffix += string(rune('a' + number - 2))
	}
	return name[:min(len(name), 6)] + "-" + suffix
}

// Binary returns the path of the built plimsoll. It skips the test, with the reason, if there is none.
func Binary(t *testing.T) string {
	t.Helper()
	path, err := findBinary()
	if err != nil {
		t.Skipf("%v; run make build", err)
	}
	return path
}

func findBinary() (string, error) {
	dir := os.Getenv("PLIMSOLL_BIN")
	if dir == "" {
		root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
		if err != nil {
			return "", fmt.Errorf("find the repository: %w", err)
		}
		dir = filepath.Join(strings.TrimSpace(string(root)), "bin")
	}
	for _, name := range []string{"plimsoll-controlplane", "plimsoll"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return filepath.Abs(filepath.Join(dir, "plimsoll"))
}

func (c *Cluster) start(o Options, number int) error {
	ports, err := freeport.Find(4)
	if err != nil {
		return err
	}
	c.AgentPort = ports[2]
	if o.Prepare != nil {
		if err := o.Prepare(c); err != nil {
			return err
		}
	}
	if err := c.watchOver(); err != nil {
		return err
	}
	// Between the service network (10.96) and the networks of internal/containerruntime's tests (from 10.192).
	pid := os.Getpid() + number*7919
	c.up = append([]string{
		"--detach", "--run-dir", c.RunDir, "--node-name", c.NodeName,
		"--apiserver-port", strconv.Itoa(ports[0]), "--controller-manager-port", strconv.Itoa(ports[1]),
		"--agent-port", strconv.Itoa(ports[2]), "--agent-health-port", strconv.Itoa(ports[3]),
		"--pod-cidr", fmt.Sprintf("10.%d.%d.0/24", 100+pid%90, pid/90%256),
	}, o.UpFlags...)
	if o.NoNode {
		c.up = append(c.up, "--no-agent")
	}
	if c.services = o.Services; o.Services {
		c.up = append(c.up, "--service-cidr", ServiceCIDR)
	} else {
		c.up = append(c.up, "--without", "kube-proxy,coredns,metrics-server")
	}
	if !o.Storage {
		c.up = append(c.up, "--without", "csi")
	}
	if out, err := c.Up(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	path, err := c.Plimsoll("kubeconfig")
	if err != nil {
		return err
	}
	c.Kubeconfig = strings.TrimSpace(path)
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return err
	}
	c.Config.QPS = -1 // no rate limit for tests
	c.API, err = kubernetes.NewForConfig(c.Config)
	return err
}

// Up runs `plimsoll up --detach` with the flags of the start and returns its output.
func (c *Cluster) Up() (string, error) { return c.UpWith(c.binary) }

// UpWith is Up of another build of plimsoll, or with more flags.
func (c *Cluster) UpWith(binary string, flags ...string) (string, error) {
	return c.runs(binary, "up", append(slices.Clone(c.up), flags...)...)
}

// watchOver starts a process that takes the instance down if this process dies before it has done so.
func (c *Cluster) watchOver() error {
	guard := exec.Command("/bin/sh", "-c", `read end || exec "$0" "$@"`, c.binary, "down", "--instance", c.Name,
		"--state-dir", c.StateDir, "--purge")
	guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	life, err := guard.StdinPipe()
	if err != nil {
		return err
	}
	if err := guard.Start(); err != nil {
		return err
	}
	c.guard = &dismiss{life, guard}
	return nil
}

type dismiss struct {
	io.WriteCloser
	guard *exec.Cmd
}

func (d *dismiss) Close() error {
	_, _ = fmt.Fprintln(d.WriteCloser, "all is well") // if the guard has died, Wait returns an error
	return d.guard.Wait()
}

// Plimsoll runs a verb on this instance and returns its standard output; the error contains standard error.
func (c *Cluster) Plimsoll(verb string, args ...string) (string, error) {
	return c.runs(c.binary, verb, args...)
}

// PlimsollCommand returns a plimsoll command that runs until ctx ends.
func (c *Cluster) PlimsollCommand(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.binary, args...)
}

func (c *Cluster) runs(binary, verb string, args ...string) (string, error) {
	ctx, cancel := StartClock().Limit(context.Background(), upTimeout)
	defer cancel()
	return run(exec.CommandContext(ctx, binary, append([]string{verb, "--instance", c.Name, "--state-dir", c.StateDir},
		args...)...))
}

func run(cmd *exec.Cmd) (string, error) {
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}

// Child is one process of the instance in `plimsoll status`.
type Child struct {
	Name string
	PID  int
}

// Children returns the processes of the instance; PID is zero while one is down.
func (c *Cluster) Children() (children []Child, supervisor int, err error) {
	var status struct {
		Children      []Child
		SupervisorPID int
	}
	out, err := c.Plimsoll("status", "-o", "json") // it fails while a child is down, but prints its result
	if json.Unmarshal([]byte(out), &status) != nil {
		return nil, 0, err
	}
	return status.Children, status.SupervisorPID, nil
}

// PID returns the process of a child, zero while it is down.
func (c *Cluster) PID(t *testing.T, child string) int {
	t.Helper()
	children, _, err := c.Children()
	if err != nil {
		t.Fatal(err)
	}
	if i := slices.IndexFunc(children, func(o Child) bool { return o.Name == child }); i >= 0 {
		return children[i].PID
	}
	return 0
}

// Forgive replaces the supervisor by a new one, which has seen no child die. The old one makes a child that dies
// repeatedly wait for up to half a minute (supervise.DefaultBackoff), and a test that kills children on purpose would
// wait too.
func (c *Cluster) Forgive(t *testing.T) {
	t.Helper()
	_, supervisor, err := c.Children()
	if supervisor == 0 {
		t.Fatalf("no supervisor: %v", err)
	}
	if err := syscall.Kill(supervisor, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if out, err := c.Up(); err != nil {
		t.Fatalf("up after the supervisor's death: %v\n%s", err, out)
	}
}

// Paths and names of the instance.

func (c *Cluster) LogFile(child string) string { return filepath.Join(c.StateDir, "log", child+".log") }
func (c *Cluster) StaticPods() string          { return filepath.Join(c.StateDir, "static-pods") }
func (c *Cluster) AgentRoot() string           { return filepath.Join(c.StateDir, "agent") }
func (c *Cluster) PodLogs() string             { return filepath.Join(c.StateDir, "pod-logs") }
func (c *Cluster) RuntimeSocket() string       { return filepath.Join(c.RunDir, "containerd.sock") }

// CgroupRoot is the parent of the instance's kubepods, in every hierarchy.
func (c *Cluster) CgroupRoot() string { return "/plimsoll-" + c.Name }

// Bridge is the network interface that connects the pods, and the name of the instance's nftables table.
func (c *Cluster) Bridge() string { return "pl-" + c.Name }

// ReadAgent returns what the agent's own server answers to a GET: kube-apiserver refuses to proxy to a node on
// loopback. It fails the test if the answer is not 200.
func (c *Cluster) ReadAgent(t *testing.T, path string) string {
	t.Helper()
	config := rest.CopyConfig(c.Config)
	config.Timeout = readAgentTimeout
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("https://localhost:%d%s", c.AgentPort, path)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %.400s", path, answer.Status, err, text)
	}
	return string(text)
}

// readAgentTimeout bounds a request of ReadAgent, which takes a second or two on an idle machine.
const readAgentTimeout = 2 * time.Minute

// Kubectl runs kubectl as administrator and fails the test if it fails.
func (c *Cluster) Kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := c.TryKubectl(t, args...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// TryKubectl returns kubectl's standard output; the error contains standard error.
func (c *Cluster) TryKubectl(t *testing.T, args ...string) (string, error) {
	ctx, cancel := StartClock().Limit(context.WithoutCancel(t.Context()), kubectlTimeout)
	defer cancel()
	return run(c.KubectlCommand(ctx, args...))
}

// kubectlTimeout bounds a kubectl command, on a Clock.
const kubectlTimeout = 3 * time.Minute

// KubectlWaits leaves it to kubectlTimeout how long kubectl's wait, rollout status, drain or delete may wait.
const KubectlWaits = "--timeout=1h"

// KubectlCommand returns a kubectl command that runs until ctx ends.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, c.binary+"-controlplane", append([]string{"kubectl", "--kubeconfig", c.Kubeconfig},
		args...)...)
}

// pollEvery is the interval of Eventually's polls.
const pollEvery = 100 * time.Millisecond

// Eventually polls until the result is nil. It fails the test with the last result if more than within counts on a
// Clock. It returns how long it took.
func Eventually(t *testing.T, within time.Duration, what string, ask func(context.Context) error) time.Duration {
	t.Helper()
	return EventuallyAt(t, pollEvery, within, what, ask)
}

// EventuallyAt is Eventually for what is too slow to be asked ten times in a second.
func EventuallyAt(t *testing.T, every, within time.Duration, what string,
	ask func(context.Context) error) time.Duration {
	t.Helper()
	clock := StartClock()
	ctx, cancel := clock.Limit(t.Context(), within)
	defer cancel()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var last error
	for {
		err := ask(ctx)
		if err == nil {
			return clock.Elapsed()
		}
		if ctx.Err() == nil || last == nil { // a poll that was cancelled has no result
			last = err
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: not within %v (%v on a busy machine): %v", what, within, clock.Elapsed().Round(time.Second), last)
		case <-tick.C:
		}
	}
}
