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
	if err := l.askToLeave(ctx); err != nil {
		return err
	}
	if err := l.makeDirectories(); err != nil && !errors.Is(err, unix.ENOSPC) {
		return err
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
func (l layout) askToLeave(ctx context.Context) error {
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
		ready := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		deadline := time.Now().Add(handoverTimeout)
		for time.Now().Before(deadline) {
			n, err := unix.Poll(ready, int(pollPeriod.Milliseconds()))
			if n == 1 {
				return nil
			}
			if err != nil && !errors.Is(err, unix.EINTR) {
				return fmt.Errorf("take over from the supervisor: %w", err)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return fmt.Errorf("take over from the supervisor: it did not end within %s of SIGKILL", handoverTimeout)
}

// takeDown stops and removes everything but the state directory. It goes on after failures: what can be cleaned up is.
func (c *cluster) takeDown(ctx context.Context) error {
	c.stopChildren(ctx)
	err := c.removePods(ctx)
	c.supervisor.Stop(ctx, childContainerd, graceStore)
	err = errors.Join(err, c.unmountAll())
	if left := c.supervisor.Survivors(); len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("stop children: still running: %s", strings.Join(left, ", ")))
	}
	if err == nil {
		err = os.RemoveAll(c.o.RunDir)
	}
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

// removePods has the runtime remove pods and everything that belongs to them. It needs the runtime running, so one that
// was killed is started for it.
func (c *cluster) removePods(ctx context.Context) error {
	if !c.o.Agent {
		return nil
	}
	return progress.Step(c.sink, "remove pods and their network", func() (string, error) {
		var err error
		if c.runtime, err = newRuntime(c.layout, c.imageDir()); err != nil {
			return "", err
		}
		if spec, ours := c.containerd(); ours {
			if err := c.apply(ctx, spec); err != nil {
				return "", err
			}
		}
		return "", c.runtime.Teardown(ctx)
	})
}

// unmountAll removes what volumes and sandboxes left mounted below our directories, the newest first.
func (c *cluster) unmountAll() error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("find mounts: %w", err)
	}
	var errs []error
	for _, path := range mountsBelow(string(text), c.o.StateDir, c.o.RunDir) {
		if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// mountsBelow reads the form of proc_pid_mountinfo(5): mount point in column 5, with blanks and backslashes as octal
// escapes. Later lines are mounted over earlier ones, so the result is in reverse.
func mountsBelow(mountinfo string, dirs ...string) (paths []string) {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(mountinfo) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		path := unescape.Replace(f[4])
		for _, dir := range dirs {
			if strings.HasPrefix(path, dir+"/") {
				paths = append(paths, path)
				break
			}
		}
	}
	slices.Reverse(paths)
	return paths
}

// purge removes the state directory. A mount below it would mean removing someone's files, so it refuses.
func (c *cluster) purge() error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("find mounts: %w", err)
	}
	if left := mountsBelow(string(text), c.o.StateDir); len(left) > 0 {
		return fmt.Errorf("remove %s: still mounted below it: %s (unmount, then `plimsoll down --purge` again)", c.o.StateDir, strings.Join(left, ", "))
	}
	return os.RemoveAll(c.o.StateDir)
}
