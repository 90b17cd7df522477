package supervise

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/plimsoll-dev/plimsoll/internal/host/link"
)

// process is one running process, referred to by a pidfd.
type process struct {
	pid        int
	startTicks uint64        // clock ticks since boot, proc_pid_stat(5) field 22
	done       chan struct{} // closed when the process has ended
	how        string        // how it ended; set before done is closed

	mu    sync.Mutex
	pidfd int // it refers to this process even after the pid is reused; -1 once the process has ended
}

func hold(pid, pidfd int, startTicks uint64) *process {
	return &process{pid: pid, pidfd: pidfd, startTicks: startTicks, done: make(chan struct{})}
}

// finish records how the process ended, and closes the pidfd.
func (p *process) finish(how string) {
	p.mu.Lock()
	unix.Close(p.pidfd)
	p.pidfd = -1
	p.mu.Unlock()
	p.how = how
	close(p.done)
}

// start runs spec in its own session, so that no terminal can stop it or hang up on it.
func start(spec Spec, m mark, owner string) (*process, error) {
	log, err := openLog(spec.Log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	pidfd := -1
	m.argv = hashArgv(spec.Argv)
	cmd := exec.Command(spec.Argv[0], spec.Argv[1:]...)
	cmd.Env = append(append([]string(nil), spec.Env...), m.variable(owner))
	cmd.Dir = spec.Dir
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if err := link.Start(spec.Namespace, cmd); err != nil {
		return nil, err
	}
	if pidfd < 0 {
		_, _ = cmd.Process.Kill(), cmd.Wait()
		return nil, errNotSupported
	}
	// The process is our child and was not waited for yet, so its pid is not reused. If it has already ended, its start
	// time is not needed.
	ticks, err := readStartTicks(cmd.Process.Pid)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		_, _ = cmd.Process.Kill(), cmd.Wait()
		unix.Close(pidfd)
		return nil, err
	}
	p := hold(cmd.Process.Pid, pidfd, ticks)
	go func() {
		err := cmd.Wait()
		p.finish(describeExit(cmd.ProcessState, err))
	}()
	return p, nil
}

// adopt returns the process with this pid if it is the one that was started at startTicks.
func adopt(pid int, startTicks uint64) (*process, error) {
	if pid <= 0 {
		return nil, os.ErrProcessDone
	}
	pidfd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, explain(err)
	}
	if ticks, err := readStartTicks(pid); err != nil || ticks != startTicks || ended(pidfd) {
		unix.Close(pidfd)
		return nil, os.ErrProcessDone
	}
	watched, err := unix.FcntlInt(uintptr(pidfd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(pidfd)
		return nil, fmt.Errorf("watch process %d: %w", pid, err)
	}
	p := hold(pid, pidfd, startTicks)
	go p.await(os.NewFile(uintptr(watched), "pidfd"))
	return p, nil
}

// await waits for the end of an adopted process. The runtime's poller waits on the pidfd, so that no thread is blocked.
// The exit code of another process's child cannot be read.
func (p *process) await(pidfd *os.File) {
	defer pidfd.Close()
	conn, err := pidfd.SyscallConn()
	if err == nil {
		err = conn.Read(func(fd uintptr) bool { return ended(int(fd)) })
	}
	if err != nil {
		p.finish(fmt.Sprintf("its end cannot be observed: %v", err))
		return
	}
	p.finish("ended (not our child: exit code unknown)")
}

// ended reports whether the process has ended: then its pidfd is readable.
func ended(pidfd int) bool {
	poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(poll, 0)
	return err == nil && n == 1 && poll[0].Revents&unix.POLLIN != 0
}

func (p *process) signal(sig unix.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pidfd < 0 {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(p.pidfd, sig, nil, 0)
}

// end stops the process: a signal, then SIGKILL after grace or when ctx ends. It returns when the process is gone.
func (p *process) end(ctx context.Context, first unix.Signal, grace time.Duration) {
	if err := p.signal(first); errors.Is(err, unix.ESRCH) {
		<-p.done
		return
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
		return
	case <-timer.C:
	case <-ctx.Done():
	}
	_ = p.signal(unix.SIGKILL) // the only possible error is ESRCH: then the process has ended, and done will be closed
	<-p.done
}

func (p *process) exit() string {
	<-p.done
	return p.how
}

func describeExit(state *os.ProcessState, err error) string {
	if state == nil {
		return fmt.Sprint(err)
	}
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return "killed by " + unix.SignalName(status.Signal())
	}
	return "exit code " + strconv.Itoa(state.ExitCode())
}

// digest identifies what Apply compares: everything that decides how the child runs.
func (s Spec) digest() (string, error) {
	if len(s.Argv) == 0 || !filepath.IsAbs(s.Argv[0]) {
		return "", fmt.Errorf("argv %q: want an absolute program path first", s.Argv)
	}
	info, err := os.Stat(s.Argv[0])
	if err != nil {
		return "", err
	}
	sys, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "", fmt.Errorf("stat %s: no device and inode number", s.Argv[0])
	}
	network, err := link.Namespace(s.Namespace)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %d %d %d %d %s\n", s.Argv, s.Env, s.Dir, sys.Dev, sys.Ino, sys.Size,
		info.ModTime().UnixNano(), network)
	for _, path := range s.Inputs {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %d\n", path, len(content))
		h.Write(content)
	}
	return hex.EncodeToString(h.Sum(nil)[:digestBytes]), nil
}

// digestBytes is how many bytes of a SHA-256 are used. Chosen: they suffice to distinguish the specs of one machine,
// and they are in every child's environment.
const digestBytes = 12

func hashArgv(argv []string) string {
	h := sha256.New()
	for _, a := range argv {
		h.Write(append([]byte(a), 0)) // the format of /proc/PID/cmdline
	}
	return hex.EncodeToString(h.Sum(nil)[:digestBytes])
}
