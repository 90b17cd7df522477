package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// qemuProgram is in Debian's package qemu-system-x86.
const qemuProgram = "qemu-system-x86_64"

// qemuSaidKept is how much of QEMU's error output is kept: the messages that complaint drops are some 100 bytes for
// each feature and CPU.
const qemuSaidKept = 256 << 10

// A process is one run of QEMU: from power on to power off, crash or kill.
type process struct {
	command *exec.Cmd
	monitor *monitor
	channel *channel
	said    *tail         // QEMU's error output
	ended   chan struct{} // closed when it has ended

	mu     sync.Mutex
	reason string // of the end, in QEMU's words; empty: QEMU was killed or crashed
}

// A launch is the input of a run of QEMU.
type launch struct {
	args      []string
	files     []*os.File // its file descriptors 3, 4, ...
	console   io.Writer
	stdin     io.Reader
	hasMemory func([]int64) error // see newChannel
}

// run starts QEMU and waits until the guest is ready.
func (l launch) run(ctx context.Context) (*process, error) {
	channelHere, channelThere, err := pair("channel", syscall.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer channelThere.Close()
	monitorHere, monitorThere, err := pair("monitor", syscall.SOCK_STREAM)
	if err != nil {
		return nil, errors.Join(err, channelHere.Close())
	}
	defer monitorThere.Close()
	p := &process{said: &tail{max: qemuSaidKept}, ended: make(chan struct{})}
	p.command = exec.Command(qemuProgram, l.args...)
	p.command.Args = append(p.command.Args,
		"-chardev", fmt.Sprintf("socket,id=channel,fd=%d", 3+len(l.files)), "-chardev", fmt.Sprintf("socket,id=monitor,fd=%d",
			4+len(l.files)))
	p.command.ExtraFiles = append(append([]*os.File{}, l.files...), channelThere, monitorThere)
	p.command.Stdin = l.stdin
	p.command.Stdout = l.console
	p.command.Stderr = p.said
	p.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.start(); err != nil {
		return nil, errors.Join(err, channelHere.Close(), monitorHere.Close())
	}
	if err := p.greet(ctx, channelHere, monitorHere, l.hasMemory); err != nil {
		p.kill()
		return nil, errors.Join(err, p.complaint())
	}
	return p, nil
}

// start starts QEMU from a thread that lives as long as QEMU: the kernel sends the death signal when the thread that is
// the parent ends (prctl(2), PR_SET_PDEATHSIG), which must be the end of the whole process.
func (p *process) start() error {
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.command.Start()
		started <- err
		if err == nil {
			_ = p.command.Wait() // QEMU is usually killed; its messages are in said
			close(p.ended)
		}
	}()
	return <-started
}

func (p *process) greet(ctx context.Context, channelHere, monitorHere net.Conn, hasMemory func([]int64) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { channelHere.Close(); monitorHere.Close() })
	defer stop()
	go func() {
		select {
		case <-p.ended:
			cancel(p.end())
		case <-ctx.Done():
		}
	}()
	var err error
	if p.monitor, err = newMonitor(monitorHere, p.setReason); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	p.channel, err = newChannel(ctx, channelHere, hasMemory)
	return err
}

func (p *process) setReason(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reason = reason
}

func (p *process) endReason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reason
}

// end returns how QEMU ended by itself.
func (p *process) end() error {
	if reason := p.endReason(); reason != "" {
		return fmt.Errorf("QEMU ended: %s (%v)", reason, p.command.ProcessState)
	}
	return fmt.Errorf("QEMU ended: %v", p.command.ProcessState)
}

// kill ends QEMU at once.
func (p *process) kill() {
	_ = p.command.Process.Kill() // it may have ended already
	<-p.ended
	if p.monitor != nil {
		p.monitor.conn.Close()
	}
}

// complaint returns QEMU's error output, without the messages about features that it does not emulate.
func (p *process) complaint() error {
	var lines []string
	for line := range strings.Lines(p.said.String()) {
		if !strings.Contains(line, "TCG doesn't support requested feature") {
			lines = append(lines, line)
		}
	}
	if lines == nil {
		return nil
	}
	return fmt.Errorf("QEMU said: %s", strings.TrimSpace(strings.Join(lines, "")))
}

// pair returns two connected sockets: one for this process, one for a child.
func pair(name string, kind int) (net.Conn, *os.File, error) {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, kind|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	here, there := os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name)
	defer here.Close()
	conn, err := net.FileConn(here)
	if err != nil {
		return nil, nil, errors.Join(err, there.Close())
	}
	return conn, there, nil
}
