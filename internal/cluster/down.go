package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/cluster/sparedisk"
	"github.com/plimsoll-dev/plimsoll/internal/host/mount"
	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
)

const (
	// downTimeout bounds all of `down`: the longest grace period of each row of stopOrder, and those of the pods.
	downTimeout = 3 * time.Minute
	// handoverTimeout is how long a supervisor may take to hand the instance over. Chosen: it only has to stop watching,
	// so one that takes longer hangs.
	handoverTimeout = 5 * time.Second
)

// Down ends an instance: its components, its pods, its runtime, and what they left on the machine. It keeps the state
// directory unless purge is set. It is no error if the instance is not up.
func Down(ctx context.Context, o Options, purge bool, sink progress.Sink) error {
	l := layout{o}
	if _, err := os.Stat(o.StateDir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := l.checkOurs(); err != nil {
		return err
	}
	if err := l.askToLeave(); err != nil {
		return err
	}
	if _, err := os.Stat(o.StateDir); errors.Is(err, fs.ErrNotExist) {
		return nil // the supervisor has left the cluster meanwhile, and removed everything
	}
	err := os.MkdirAll(o.RunDir, 0o700)
	if shortage.Is(err) {
		_, given := sparedisk.GiveIfShort(l.reserve())
		err = errors.Join(given, os.MkdirAll(o.RunDir, 0o700))
	}
	if err != nil {
		return fmt.Errorf("stop instance %s: %w", o.Instance, err)
	}
	logger, closeLog, err := l.supervisorLog()
	if err != nil { // a full disk must not prevent the stop
		logger, closeLog = slog.New(slog.DiscardHandler), func() {}
	}
	defer closeLog()
	c, err := open(o, sink, logger)
	if errors.Is(err, errLocked) {
		return fmt.Errorf("stop instance %s: another plimsoll process took it over meanwhile (see `plimsoll status`)",
			o.Instance)
	}
	if err != nil {
		return err
	}
	defer c.close()
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	if err := c.takeDown(ctx); err != nil {
		return err
	}
	if purge {
		return progress.Step(sink, "remove "+o.StateDir, func() (string, error) { return "", c.purge() })
	}
	return nil
}

// askToLeave makes the supervisor, if there is one, leave its children to this process. A supervisor that does not
// react is killed; its children continue to run in that case, too.
func (l layout) askToLeave() error {
	pidfd, err := openHolder(l.lock())
	if err != nil || pidfd < 0 {
		return err
	}
	defer unix.Close(pidfd)
	for _, sig := range []unix.Signal{unix.SIGUSR1, unix.SIGKILL} {
		if err := unix.PidfdSendSignal(pidfd, sig, nil, 0); err != nil {
			if errors.Is(err, unix.ESRCH) {
				return nil
			}
			return fmt.Errorf("take over from the supervisor: %w", err)
		}
		ended, err := pollPidfd(pidfd, handoverTimeout)
		if err != nil {
			return fmt.Errorf("take over from the supervisor: %w", err)
		}
		if ended {
			return nil
		}
	}
	return fmt.Errorf("take over from the supervisor: it did not end within %s of SIGKILL", handoverTimeout)
}

// takeDown stops and removes everything except the state directory. It continues after failures, so that as much as
// possible is cleaned up.
func (c *cluster) takeDown(ctx context.Context) error {
	err := c.takeLocalNodesDown(ctx)
	c.stopChildren(ctx)
	err = errors.Join(err, c.removeNodeNetwork(), c.cleanServices(ctx), c.removePods(ctx), c.removeRoutes())
	if left := c.supervisor.Survivors(); len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("stop children: still running: %s", strings.Join(left, ", ")))
	}
	if err == nil {
		err = os.RemoveAll(c.o.RunDir)
	}
	c.keepReserve() // while the space that the pods and etcd freed is available
	return err
}

// stopChildren stops all children except containerd, row by row, including those that are known only from the record or
// their marks.
func (c *cluster) stopChildren(ctx context.Context) {
	running := c.supervisor.Survivors()
	for _, s := range c.supervisor.Status() {
		running = append(running, s.Name)
	}
	for _, row := range stopOrder {
		var wg sync.WaitGroup
		for _, name := range row {
			if !slices.Contains(running, name) {
				continue
			}
			wg.Go(func() {
				_ = progress.Step(c.sink, "stop "+name, func() (string, error) {
					c.supervisor.Stop(ctx, name, graceOf(name))
					return "", nil
				})
			})
		}
		wg.Wait()
	}
}

func graceOf(child string) time.Duration {
	switch child {
	case childAPIServer:
		return graceAPIServer
	case childEtcd, childContainerd:
		return graceStore
	}
	return graceComponent
}

// removePods makes the runtime remove the pods and all that belongs to them, and stop.
func (c *cluster) removePods(ctx context.Context) error {
	if _, err := os.Stat(c.runtimeState()); !c.o.Agent && errors.Is(err, fs.ErrNotExist) {
		return nil // neither this run nor an earlier one with other options had containers
	}
	return progress.Step(c.sink, "remove pods, their network and the runtime", func() (string, error) {
		var err error
		if c.runtime, err = newRuntime(c.layout); err != nil {
			return "", err
		}
		c.supervisor.Release(childContainerd)
		err = c.runtime.Teardown(ctx)
		c.supervisor.Stop(ctx, childContainerd, graceStore) // it has ended; this removes it from the record
		// the kubelet bind-mounts its root directory, to share the mounts below it
		if c.o.AgentBinary != "" {
			err = errors.Join(err, mount.UnmountBelow(c.agentRoot()))
		}
		// The agent, which makes the mounts of volumes, has ended.
		return "", errors.Join(err, mount.UnmountInside(c.agentRoot(), c.o.RunDir), c.releaseVolumes())
	})
}

// purge removes the state directory.
func (c *cluster) purge() error {
	// If something is still mounted there, removing would delete the mounted files.
	if err := mount.UnmountInside(c.o.StateDir); err != nil {
		return fmt.Errorf("remove %s: %w", c.o.StateDir, err)
	}
	return c.removeState()
}

// removeState removes the state directory. The lock goes last: by it another process knows whose directory it is, and
// that this one is still at work there.
func (l layout) removeState() error {
	entries, err := os.ReadDir(l.o.StateDir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if path := filepath.Join(l.o.StateDir, e.Name()); path != l.lock() {
			err = errors.Join(err, os.RemoveAll(path))
		}
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(l.o.StateDir)
}
