package containerruntime

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
)

// A process is a running process. Its descriptor identifies it even if its PID is reused.
type process struct {
	pid int
	fd  int // pidfd
}

func openProcess(pid int) (process, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	return process{pid, fd}, err
}

func (p process) close() { unix.Close(p.fd) }

func (p process) signal(s syscall.Signal) error {
	err := unix.PidfdSendSignal(p.fd, s, nil, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("send %s to process %d: %w", s, p.pid, err)
	}
	return nil
}

func (p process) kill() error { return p.signal(syscall.SIGKILL) }

// wait reports whether the process ends within that time.
func (p process) wait(ctx context.Context, most time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, int(pollPeriod.Milliseconds()))
		if n > 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return err == nil
		}
	}
	return false
}

// endAll sends SIGTERM to processes, and SIGKILL to those that do not end.
func endAll(ctx context.Context, list []process, patience time.Duration) error {
	var problems []error
	for _, p := range list {
		problems = append(problems, p.signal(syscall.SIGTERM))
	}
	var stubborn []process
	for _, p := range list {
		if p.wait(ctx, patience) {
			p.close()
		} else {
			stubborn = append(stubborn, p)
		}
	}
	return errors.Join(append(problems, killAll(ctx, stubborn))...)
}

func killAll(ctx context.Context, list []process) error {
	var problems []error
	for _, p := range list {
		problems = append(problems, p.kill())
	}
	for _, p := range list {
		if !p.wait(ctx, killMax) {
			problems = append(problems, fmt.Errorf("kill process %d: still exists after %s", p.pid, killMax))
		}
		p.close()
	}
	return errors.Join(problems...)
}

// daemons returns the containerd processes with the instance's configuration: one, unless a second was started by hand.
func (i *Instance) daemons() []process {
	return findProcesses(func(argv []string) bool {
		return filepath.Base(argv[0]) == "containerd" && slices.Contains(argv, i.options.configPath())
	})
}

// shims returns the instance's shims, the parents of its containers. Each has the socket of its containerd as an
// argument.
func (i *Instance) shims() []process {
	return findProcesses(func(argv []string) bool {
		at := slices.Index(argv, "-address")
		return strings.HasPrefix(filepath.Base(argv[0]), "containerd-shim") && at > 0 && at+1 < len(argv) &&
			argv[at+1] == i.options.socket()
	})
}

// findProcesses opens every process whose command line is wanted. The command line is read again after the process was
// opened, so that it belongs to that process.
func findProcesses(want func(argv []string) bool) []process {
	pids, err := procfs.Default.ProcessIDs()
	if err != nil {
		slog.Warn("processes of the container runtime not found", "err", err)
		return nil
	}
	var found []process
	for _, pid := range pids {
		if !wantedLine(pid, want) {
			continue
		}
		p, err := openProcess(pid)
		if err != nil {
			continue // it has ended
		}
		if !wantedLine(pid, want) {
			p.close()
			continue
		}
		found = append(found, p)
	}
	return found
}

func wantedLine(pid int, want func([]string) bool) bool {
	argv, err := procfs.Default.Arguments(pid)
	// an error or no arguments: it has ended, or is a zombie or a kernel thread
	return err == nil && len(argv) > 0 && want(argv)
}

// startDetached starts a program in a process group of its own. The channel is closed when the program has ended.
func startDetached(argv []string) (<-chan struct{}, error) {
	command := exec.Command(argv[0], argv[1:]...)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := command.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		command.Wait() // its result does not matter
		close(ended)
	}()
	return ended, nil
}
