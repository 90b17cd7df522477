// Package cluster is `plimsoll up`: a whole one-machine cluster as supervised child processes, and the verbs beside it
// (down, status). It is the wiring package: it knows every part and decides nothing that a part could.
//
// # Model
//
// An instance has a name, a state directory that survives `down`, and a run directory that does not. One process at a
// time may change it: the holder of its lock. That is the supervisor, which `up` is or leaves in the background, or
// `down`. Children (package supervise) are etcd, kube-apiserver, kube-controller-manager, containerd and our own
// agent, scheduler, lifecycle and fleet, one process each, so that any may crash alone.
//
// # Invariants
//
//   - Everything that `up` does can be done again: directories, certificates, configuration and RBAC are made as they
//     should be, running children are adopted. So a second `up` heals whatever a kill -9 left, at any instant.
//   - Children do not depend on the supervisor's life. If it is killed, the cluster goes on, unsupervised, until the
//     next `up` adopts it or `down` ends it.
//   - `down` ends what the options in the state directory describe, found again from the record of children, their marks
//     and the kernel; it needs no supervisor.
//   - The end of a supervisor by SIGINT or SIGTERM is `down`. SIGUSR1 makes it leave everything running: that is how
//     `down` takes over, so that there is one way to stop, seen by the person who asked for it.
//
// # What it does not do
//
// No control plane of several machines, no join: other machines' agents take a kubeconfig as they would anywhere. No
// Service proxy and no DNS.
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
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// cluster is one instance while this process holds its lock.
type cluster struct {
	layout
	sink       progress.Sink
	logger     *slog.Logger
	lock       *lock
	supervisor *supervise.Supervisor
	build      builder
	runtime    *containerruntime.Instance // nil without agent
	portsFail  bool                       // the last KeepPorts failed

	mu     sync.Mutex
	deaths map[string]int              // of each child since this process began
	last   map[string]supervise.Status // newest state of each child
}

// open takes the lock of an instance and finds its children. The caller must close it.
func open(o Options, sink progress.Sink, logger *slog.Logger) (*cluster, error) {
	c := &cluster{layout: layout{o}, sink: sink, logger: logger, deaths: map[string]int{}, last: map[string]supervise.Status{}}
	var err error
	if c.lock, err = takeLock(c.layout.lock()); err != nil {
		return nil, err
	}
	c.supervisor, err = supervise.Open(supervise.Options{Record: c.record(), Owner: o.StateDir, Logger: logger, Notice: c.notice})
	if err != nil {
		c.lock.release()
		return nil, err
	}
	return c, nil
}

// close lets go of the instance and leaves its children running.
func (c *cluster) close() {
	c.supervisor.Leave()
	c.lock.release()
}

// notice counts deaths, and tells the person in front of a terminal.
func (c *cluster) notice(s supervise.Status) {
	c.mu.Lock()
	died := s.PID == 0
	if died {
		c.deaths[s.Name]++
	}
	first := c.deaths[s.Name] == 1
	c.last[s.Name] = s
	c.mu.Unlock()
	if died && first { // more would drown the rest; `plimsoll status` has the count
		c.sink.Show(progress.Event{Step: s.Name, Phase: progress.Note, Detail: fmt.Sprintf("%s; starting it again (log: %s)", s.LastExit, s.Log)})
	}
}

// deathsMax is how often a child may die before waiting for it is given up: once is an accident, five times in a row (1.4 s
// of DefaultBackoff) a cause that will not go away.
const deathsMax = 5

// broken returns why waiting for these children is hopeless, nil while it is not.
func (c *cluster) broken(children ...string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range children {
		if c.deaths[name] >= deathsMax {
			return &ChildError{Child: name, Exit: c.last[name].LastExit, Log: c.log(name), Tail: supervise.Tail(c.log(name), tailLines)}
		}
	}
	return nil
}

// tailLines of a log are shown with an error: the reason is among the last, and more would hide the message.
const tailLines = 8

// ChildError says that a child does not stay up.
type ChildError struct{ Child, Exit, Log, Tail string }

func (e *ChildError) Error() string {
	return fmt.Sprintf("%s does not stay up: %s (log: %s, its end:\n%s)", e.Child, e.Exit, e.Log, indent(e.Tail))
}

func indent(text string) string { return "  " + strings.ReplaceAll(text, "\n", "\n  ") }

// pollPeriod is how often a starting component is asked whether it is ready. Asking costs a millisecond; waiting twice
// as long costs the user half of the difference.
const pollPeriod = 50 * time.Millisecond

// await asks ready until it says nil. It gives up when ctx ends, with the last answer, or when one of the children that
// it depends on does not stay up.
func (c *cluster) await(ctx context.Context, what string, ready func(context.Context) error, children ...string) error {
	tick := time.NewTicker(pollPeriod)
	defer tick.Stop()
	for {
		last := ready(ctx)
		if last == nil {
			return nil
		}
		if err := c.broken(children...); err != nil {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			err := fmt.Errorf("wait for %s: %w: %w", what, context.Cause(ctx), last)
			if errors.Is(ctx.Err(), context.Canceled) {
				return err // somebody wanted it to end: no log has the reason
			}
			for _, name := range children {
				if tail := supervise.Tail(c.log(name), tailLines); tail != "" {
					err = fmt.Errorf("%w\nend of %s:\n%s", err, c.log(name), indent(tail))
				}
			}
			return err
		case <-tick.C:
		}
	}
}

// client speaks to the instance's API server as w.
func (l layout) client(w who) (*kube.Client, error) {
	path := l.kubeconfig(w)
	if w == whoAdmin {
		path = l.adminKubeconfig()
	}
	return kube.NewClient(kube.Options{Kubeconfig: path, UserAgent: "plimsoll-" + string(w), QPS: -1})
}

// programs finds the two files that children run.
func (l layout) programs() (builder, error) {
	self, err := os.Executable()
	if err != nil {
		return builder{}, fmt.Errorf("find this program: %w", err)
	}
	b := builder{layout: l, plimsoll: self}
	b.controlplane, err = findControlplane(l.o.ControlplaneBinary, self)
	return b, err
}

// controlplaneName is the file name of the multi-call binary that controlplane/ builds.
const controlplaneName = "plimsoll-controlplane"

// findControlplane looks where it was told, else beside this program, else in PATH.
func findControlplane(told, self string) (string, error) {
	if told != "" {
		path, err := filepath.Abs(told)
		if err == nil {
			err = unix.Access(path, unix.X_OK)
		}
		if err != nil {
			return "", fmt.Errorf("find control plane binary: --controlplane-binary %s: %w", told, err)
		}
		return path, nil
	}
	beside := filepath.Join(filepath.Dir(self), controlplaneName)
	if unix.Access(beside, unix.X_OK) == nil {
		return beside, nil
	}
	path, err := exec.LookPath(controlplaneName)
	if err != nil {
		return "", fmt.Errorf("find control plane binary: neither %s nor PATH has it: build it with `make bin/%s`, or give --controlplane-binary", beside, controlplaneName)
	}
	return filepath.Abs(path)
}

// parallel runs fs at once and returns all their errors. The first failure cancels the others.
func parallel(ctx context.Context, fs ...func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
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
	// What was cancelled by another's failure is not news.
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
