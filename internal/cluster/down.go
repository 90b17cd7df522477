package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
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
	// downTimeout bounds all of `down`: the longest grace of each row of stopOrder, and the pods' own.
	downTimeout = 3 * time.Minute
	// handoverTimeout is how long a supervisor has to let go. It only stops watching, so more means it hangs.
	handoverTimeout = 5 * time.Second
)

// Down ends an instance: its components, its pods, its runtime, and what they left on the machine. It keeps the state
// directory unless purge. Ending what is not up is no error.
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
	err := os.MkdirAll(o.RunDir, 0o700)
	if shortage.Is(err) {
		_, given := sparedisk.GiveIfShort(l.reserve())
		err = errors.Join(given, os.MkdirAll(o.RunDir, 0o700))
	}
	if err != nil {
		return fmt.Errorf("stop instance %s: %w", o.Instance, err)
	}
	logger, closeLog, err := l.supervisorLog()
	if err != nil { // a full disk must not keep anything running
		logger, closeLog = slog.New(slog.DiscardHandler), func() {}
	}
	defer closeLog()
	c, err := open(o, sink, logger)
	if errors.Is(err, errLocked) {
		return fmt.Errorf("stop instance %s: another plimsoll took it over meanwhile (see `plimsoll status`)", o.Instance)
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

// askToLeave has the supervisor, if there is one, leave its children to us; one that does not answer is killed, which
// by design is the same.
func (l layout) askToLeave() error {
	pidfd, err := holdHolder(l.lock())
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

// takeDown stops and removes everything but the state directory. It goes on after failures: what can be cleaned up is.
func (c *cluster) takeDown(ctx context.Context) error {
	c.stopChildren(ctx)
	err := c.removePods(ctx)
	if left := c.supervisor.Survivors(); len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("stop children: still running: %s", strings.Join(left, ", ")))
	}
	if err == nil {
		err = os.RemoveAll(c.o.RunDir)
	}
	c.keepReserve() // while what the pods and etcd have given back is free
	return err
}

// stopChildren stops all but containerd, row by row. Children that are only known from the record or their marks too.
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

// removePods has the runtime remove pods and everything that belongs to them, and end itself.
func (c *cluster) removePods(ctx context.Context) error {
	if _, err := os.Stat(c.runtimeState()); !c.o.Agent && errors.Is(err, fs.ErrNotExist) {
		return nil // neither this run nor an earlier one, with other options, had containers
	}
	return progress.Step(c.sink, "remove pods, their network and the runtime", func() (string, error) {
		var err error
		if c.runtime, err = newRuntime(c.layout); err != nil {
			return "", err
		}
		c.supervisor.Release(childContainerd)
		err = c.runtime.Teardown(ctx)
		c.supervisor.Stop(ctx, childContainerd, graceStore) // it is gone; this forgets it
		if c.o.AgentBinary != "" {                          // the kubelet mounts its root directory on itself, to share what it mounts below
			err = errors.Join(err, mount.UnmountBelow(c.agentRoot()))
		}
		// Volumes are the agent's, which has ended.
		return "", errors.Join(err, mount.UnmountInside(c.agentRoot(), c.o.RunDir))
	})
}

// purge removes the state directory.
func (c *cluster) purge() error {
	// Still mounted after all: removing would remove someone's files.
	if err := mount.UnmountInside(c.o.StateDir); err != nil {
		return fmt.Errorf("remove %s: %w", c.o.StateDir, err)
	}
	return os.RemoveAll(c.o.StateDir)
}
