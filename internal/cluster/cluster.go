// Package cluster implements `plimsoll up`: a whole cluster on one machine as supervised child processes, and the verbs
// `down` and `status`. It connects all parts and leaves every decision to them.
//
// # Model
//
// An instance has a name, a state directory that survives `down`, and a run directory that does not. One process at a
// time may change an instance: the holder of its lock. That is the supervisor (`up` itself, or a process that `up`
// leaves in the background) or `down`. The children (package supervise) are etcd, kube-apiserver,
// kube-controller-manager, kube-proxy, containerd and our own agent, scheduler, lifecycle and fleet. Each is one
// process, so that a crash of one does not end the others.
//
// An instance that joined the cluster of another machine (Options.Server) has the children of a node only: containerd,
// agent, kube-proxy. The cluster signs its certificates (join.go). Routes connect its pods with those of other nodes
// (podnetwork.go). It uses one of the cluster's servers (failover.go).
//
// With an etcd outside (etcd.go), several machines can be servers of one cluster: instances with the same authorities
// (servers.go), which elect leaders.
//
// # Invariants
//
//   - Everything that `up` does can be repeated: it creates or corrects directories, certificates, configuration and
//     RBAC, and adopts running children. So a second `up` repairs what a kill -9 at any moment left.
//   - Children do not depend on the supervisor. If it is killed, the cluster continues unsupervised until the next `up`
//     adopts it or `down` ends it.
//   - `down` ends what the options in the state directory describe. It finds the processes by the record of children,
//     by their marks and by the kernel's information about them; it needs no supervisor.
//   - A supervisor that gets SIGINT or SIGTERM does what `down` does. After SIGUSR1 it leaves everything running.
//     `down` uses that to take over, so that there is one way to stop an instance, and its progress is shown to the
//     person who runs `down`.
//
// # What it does not do
//
// It runs no etcd of several members: an etcd for several servers is the user's.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/supervise"
	"github.com/plimsoll-dev/plimsoll/internal/containerruntime"
	"github.com/plimsoll-dev/plimsoll/internal/core/podroutes"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// cluster is an instance whose lock this process holds.
type cluster struct {
	layout
	sink       progress.Sink // shows progress to the user
	logger     *slog.Logger  // writes the supervisor's log
	lock       *lock
	supervisor *supervise.Supervisor
	build      builder                    // makes the children's command lines
	runtime    *containerruntime.Instance // nil without an agent
	portsFail  bool                       // the last UpdateListeners failed, and this was logged
	halfJoined bool                       // a failure of this first join must leave nothing on this machine
	addonsLack bool                       // the objects of add-ons could not be installed so far

	authority   []byte              // of the cluster that this machine joins with a token, in PEM form; nil: it does not
	routing     sync.Mutex          // one goroutine at a time sets routes
	unreachable []podroutes.Problem // guarded by routing

	mu     sync.Mutex                  // guards what follows
	deaths map[string]int              // how often each child has died since this process began
	last   map[string]supervise.Status // newest state of each child
}

// open takes the lock of an instance and finds its children. The caller must close the result.
func open(o Options, sink progress.Sink, logger *slog.Logger) (*cluster, error) {
	c := &cluster{layout: layout{o}, sink: sink, logger: logger, deaths: map[string]int{},
		last: map[string]supervise.Status{}}
	var err error
	if c.lock, err = takeLock(c.layout.lock()); err != nil {
		return nil, err
	}
	c.supervisor, err = supervise.Open(supervise.Options{Record: c.record(), Owner: o.StateDir, Logger: logger,
		Notice: c.notice})
	if err != nil {
		c.lock.release()
		return nil, err
	}
	return c, nil
}

// close releases the instance's lock and leaves its children running.
func (c *cluster) close() {
	c.supervisor.Leave()
	c.lock.release()
}

// notice counts the deaths of children and shows them to the user.
func (c *cluster) notice(s supervise.Status) {
	c.mu.Lock()
	died := s.PID == 0
	if died {
		c.deaths[s.Name]++
	}
	first := c.deaths[s.Name] == 1
	c.last[s.Name] = s
	c.mu.Unlock()
	if died && first { // only the first, to keep the output short; `plimsoll status` has the count
		c.sink.Show(progress.Event{Step: s.Name, Phase: progress.Note, Detail: fmt.Sprintf("%s; restarting it (log: %s)",
			s.LastExit, s.Log)})
	}
}

// deathsMax is how often a child may die before the wait for it ends with an error. Chosen: one death may be an
// accident; five in a row (within 1.4 s, by DefaultBackoff) have a cause that persists.
const deathsMax = 5

// broken returns an error if one of these children dies again and again, so that waiting for them is useless.
func (c *cluster) broken(children ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range children {
		if c.deaths[name] >= deathsMax {
			return &ChildError{Child: name, Exit: c.last[name].LastExit, Log: c.log(name), Tail: supervise.Tail(c.log(name),
				tailLines)}
		}
	}
	return nil
}

// tailLines is how many lines of a log an error contains. Chosen: the reason is among the last lines, and more lines
// would hide the error's own text.
const tailLines = 8

// ChildError is the error of a child that dies again and again.
type ChildError struct{ Child, Exit, Log, Tail string }

func (e *ChildError) Error() string {
	return fmt.Sprintf("%s does not stay up: %s (log: %s, its end:\n%s)", e.Child, e.Exit, e.Log, indent(e.Tail))
}

func indent(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }

// pollPeriod is the interval of the readiness checks of a starting component. Chosen: a check costs a millisecond of
// CPU, and a user waits half an interval longer than necessary on average.
const pollPeriod = 50 * time.Millisecond

// await calls ready until it returns nil. It ends with an error when ctx ends, with what ready said last, or when one
// of the children that the component depends on dies again and again.
func (c *cluster) await(ctx context.Context, what string, ready func(context.Context) error, children ...string) error {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	began := time.Now()
	var last error // what ready said before ctx ended: an answer that the end cut short says nothing
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		if err := c.broken(children...); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if ctx.Err() == nil {
			last = err
		} else if last == nil {
			last = fmt.Errorf("the first question was not answered: %w", err)
		}
		select {
		case <-ctx.Done():
			return c.late(ctx, what, time.Since(began), last, children)
		case <-tick.C:
		}
	}
}

// late returns the error of a wait whose ctx has ended: what was awaited, for how long, why it ended, what was seen
// last, and the ends of the children's logs.
func (c *cluster) late(ctx context.Context, what string, waited time.Duration, last error, children []string) error {
	waited = waited.Round(time.Second)
	err := fmt.Errorf("wait for %s: given up after %s: %w: last seen: %w", what, waited, context.Cause(ctx), last)
	if errors.Is(ctx.Err(), context.Canceled) && stalled(ctx) == nil {
		return err // the user cancelled it: no log can explain that
	}
	for _, name := range children {
		if tail := supervise.Tail(c.log(name), tailLines); tail != "" {
			err = fmt.Errorf("%w\nend of %s:\n%s", err, c.log(name), indent(tail))
		}
	}
	return err
}

// client returns a client of the instance's API server with the credentials of w.
func (l layout) client(w who) (*kube.Client, error) {
	w = l.o.holder(w)
	path := l.kubeconfig(w)
	if w == whoAdmin {
		path = l.adminKubeconfig()
	}
	return kube.NewClient(kube.Options{Kubeconfig: path, UserAgent: "plimsoll-" + string(w), QPS: -1})
}

// programs finds the programs that children run.
func (l layout) programs() (builder, error) {
	self, err := os.Executable()
	if err != nil {
		return builder{}, fmt.Errorf("find this program: %w", err)
	}
	b := builder{layout: l, plimsoll: self}
	b.controlplane, err = findControlplane(l.o.ControlplaneBinary, self)
	return b, err
}

// controlplaneName is the file name of the program that controlplane/ builds; its first argument selects a component.
const controlplaneName = "plimsoll-controlplane"

// findControlplane returns the given path. If it is empty, it looks for the program in the directory of this one, then
// in PATH.
func findControlplane(given, self string) (string, error) {
	if given != "" {
		path, err := filepath.Abs(given)
		if err == nil {
			err = unix.Access(path, unix.X_OK)
		}
		if err != nil {
			return "", fmt.Errorf("find control plane binary: --controlplane-binary %s: %w", given, err)
		}
		return path, nil
	}
	beside := filepath.Join(filepath.Dir(self), controlplaneName)
	if unix.Access(beside, unix.X_OK) == nil {
		return beside, nil
	}
	path, err := exec.LookPath(controlplaneName)
	if err != nil {
		return "",
			fmt.Errorf("find control plane binary: neither %s nor PATH has it: build it with `make bin/%s`, "+
				"or set --controlplane-binary", beside, controlplaneName)
	}
	return filepath.Abs(path)
}

// parallel runs fs concurrently and returns all their errors. The first failure cancels the others.
func parallel(parent context.Context, fs ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	errs := make([]error, len(fs))
	var wg sync.WaitGroup
	for i, f := range fs {
		wg.Go(func() {
			if errs[i] = f(ctx); errs[i] != nil {
				cancel()
			}
		})
	}
	wg.Wait()
	if parent.Err() != nil {
		return errors.Join(errs...) // all were cancelled at the same time, and each says what it waited for
	}
	// Functions that were cancelled because another failed are left out.
	var real []error
	for _, err := range errs {
		if err != nil && !errors.Is(err, context.Canceled) {
			real = append(real, err)
		}
	}
	if len(real) == 0 {
		return errors.Join(errs...)
	}
	return errors.Join(real...)
}
