package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/plimsoll-dev/plimsoll/internal/cluster/progress"
	"github.com/plimsoll-dev/plimsoll/internal/host/shortage"
)

// DetachedVariable marks the detached process, and detachedFD is its pipe to its parent.
const (
	DetachedVariable = "PLIMSOLL_DETACHED"
	detachedFD       = 3 // the first after the standard three: os/exec puts ExtraFiles there
)

// UpDetached starts this program again with args, in the background, shows its progress here, and returns when the
// instance is up or has failed. The child must call DetachedSink and Up.
func UpDetached(ctx context.Context, o Options, args []string, sink progress.Sink) error {
	l, err := prepare(o, sink)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start supervisor: %w", err)
	}
	defer r.Close()
	output, err := os.OpenFile(l.log("supervisor"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if shortage.Is(err) { // the supervisor, too, continues without a log
		output, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	}
	if err != nil {
		return fmt.Errorf("start supervisor: %w", err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), DetachedVariable+"=1")
	cmd.Stdout, cmd.Stderr = output, output
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	output.Close()
	w.Close()
	if err != nil {
		return fmt.Errorf("start supervisor: %w", err)
	}
	return follow(ctx, cmd, r, l, sink)
}

// follow shows the progress of the detached process until that closes the pipe. Its last event was stepUp if the
// instance is up, and stepFailed if it is not.
func follow(ctx context.Context, cmd *exec.Cmd, r *os.File, l layout, sink progress.Sink) error {
	// an error means that the process has ended
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Signal(syscall.SIGTERM) })
	defer stop()
	outcome := &outcomeSink{Sink: sink}
	err := progress.Relay(r, outcome)
	switch {
	case outcome.up:
		return nil
	case err != nil:
		return err
	}
	waited := cmd.Wait()
	if outcome.failure != "" {
		return errors.New(outcome.failure)
	}
	return fmt.Errorf("start supervisor: it ended early: %v (log: %s)", waited, l.log("supervisor"))
}

// stepUp and stepFailed are the last events of a detached process. They are not shown.
const (
	stepUp     = "\x00up"
	stepFailed = "\x00failed"
)

// outcomeSink keeps the last event of a detached process instead of showing it.
type outcomeSink struct {
	progress.Sink
	up      bool
	failure string
}

func (s *outcomeSink) Show(e progress.Event) {
	switch e.Step {
	case stepUp:
		s.up = true
	case stepFailed:
		s.failure = e.Detail
	default:
		s.Sink.Show(e)
	}
}

// Detached reports from a detached process to the one that started it.
type Detached struct{ progress.Sink }

// DetachedSink returns the Detached of this process, if UpDetached started it.
func DetachedSink() (Detached, bool) {
	if os.Getenv(DetachedVariable) == "" {
		return Detached{}, false
	}
	os.Unsetenv(DetachedVariable)
	syscall.CloseOnExec(detachedFD)
	return Detached{progress.Wire(os.NewFile(detachedFD, "progress"))}, true
}

// Up reports success, so that the parent returns.
func (d Detached) Up() {
	d.Show(progress.Event{Step: stepUp})
	d.Close()
}

// Failed reports why the instance is not up.
func (d Detached) Failed(err error) {
	d.Show(progress.Event{Step: stepFailed, Detail: err.Error()})
	d.Close()
}
