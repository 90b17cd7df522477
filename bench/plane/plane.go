// Package plane is the control plane that measurements share: an instance of `plimsoll up`, usually without an agent on
// this machine, and the programs that are measured on it, each in its own process.
//
// It starts, calls and stops them and leaves nothing behind, except the logs after a failure, whose directory is
// printed. It measures nothing.
package plane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Bounds that matter only if something hangs.
const (
	upTimeout   = 2 * time.Minute
	downTimeout = 4 * time.Minute
	stopTimeout = time.Minute
)

// Plane is one instance.
type Plane struct {
	Plimsoll string   // our program
	Instance string   // its name on this machine
	Dir      string   // of all state and logs
	Port     int      // of the API server
	Flags    []string // additional flags of up
}

// State is the instance's directory. Its name is short because it contains sockets.
func (p *Plane) State() string { return filepath.Join(p.Dir, "s") }

// Kubeconfig is the administrator's kubeconfig.
func (p *Plane) Kubeconfig() string { return filepath.Join(p.State(), "admin.kubeconfig") }

// Up starts the control plane, without an agent on this machine.
func (p *Plane) Up(ctx context.Context) error {
	args := append([]string{"up", "--detach", "--no-agent", "--instance", p.Instance, "--state-dir", p.State(),
		"--apiserver-port", strconv.Itoa(p.Port), "--controller-manager-port", "0", "--timeout", upTimeout.String()},
		p.Flags...)
	_, err := p.Call(ctx, args...)
	return err
}

// Config is the configuration for clients without a rate limit.
func (p *Plane) Config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig())
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	config.QPS = -1
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return config, nil
}

// Call runs our program and returns its output.
func (p *Plane) Call(ctx context.Context, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, p.Plimsoll, args...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C must not end a running down
	c.Cancel = func() error { return c.Process.Signal(os.Interrupt) }
	c.WaitDelay = stopTimeout
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return stdout.Bytes(), fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err,
			bytes.TrimSpace(append(stdout.Bytes(), stderr.Bytes()...)))
	}
	return stdout.Bytes(), nil
}

// PIDs returns the pids of the instance's processes.
func (p *Plane) PIDs(ctx context.Context) (pids []int, err error) {
	children, err := p.Children(ctx)
	return slices.Collect(maps.Values(children)), err
}

// Children returns the pids of the instance's processes, by name.
func (p *Plane) Children(ctx context.Context) (map[string]int, error) {
	out, err := p.Call(ctx, "status", "-o", "json", "--instance", p.Instance, "--state-dir", p.State())
	status := struct {
		Children []struct {
			Name string
			PID  int
		}
	}{}
	// status fails while there is no node, but prints its result
	if jsonErr := json.Unmarshal(out, &status); jsonErr != nil {
		return nil, errors.Join(err, fmt.Errorf("read status: %w", jsonErr))
	}
	pids := map[string]int{}
	for _, c := range status.Children {
		pids[c.Name] = c.PID
	}
	return pids, nil
}

// Purge stops the instance and removes its state, so that it can start again from nothing.
func (p *Plane) Purge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	_, err := p.Call(ctx, "down", "--purge", "--instance", p.Instance, "--state-dir", p.State())
	return err
}

// Down removes everything; with keep, or if something could not be stopped, logs and state are kept.
func (p *Plane) Down(ctx context.Context, keep bool) error {
	ctx, cancel := context.WithTimeout(ctx, downTimeout)
	defer cancel()
	args := []string{"down", "--instance", p.Instance, "--state-dir", p.State()}
	if !keep {
		args = append(args, "--purge")
	}
	if _, err := p.Call(ctx, args...); err != nil || keep {
		return err
	}
	return os.RemoveAll(p.Dir)
}

// Process is a program that runs next to this one.
type Process struct {
	name  string
	log   string
	cmd   *exec.Cmd
	ended chan error

	unsaid string // text that its log must not contain; empty: none
}

// Start runs a program whose output goes to the file log.
func Start(log string, argv ...string) (*Process, error) {
	file, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the child has its own descriptor
	c := exec.Command(argv[0], argv[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c.Stdout, c.Stderr = file, file
	if err := c.Start(); err != nil {
		return nil, err
	}
	p := &Process{name: filepath.Base(argv[0]), log: log, cmd: c, ended: make(chan error, 1)}
	if len(argv) > 1 {
		p.name += " " + argv[1]
	}
	go func() { p.ended <- c.Wait() }()
	return p, nil
}

// PID returns its process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log returns the file of its output.
func (p *Process) Log() string { return p.log }

// Check returns an error if it has ended.
func (p *Process) Check() error {
	select {
	case err := <-p.ended:
		p.ended <- err
		return fmt.Errorf("%s ended: %v: %s", p.name, err, p.logTail())
	default:
		return nil
	}
}

// Stop ends it with SIGTERM, as an operator would.
func (p *Process) Stop() error {
	if err := p.Check(); err != nil {
		return err
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has just ended
	select {
	case <-p.ended:
		return p.said()
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.ended
		return fmt.Errorf("stop %s: not within %v of SIGTERM", p.name, stopTimeout)
	}
}

// said returns an error if the log contains text that it must not contain.
func (p *Process) said() error {
	if p.unsaid == "" {
		return nil
	}
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	if i := bytes.Index(text, []byte(p.unsaid)); i >= 0 {
		line, _, _ := bytes.Cut(text[i:], []byte{'\n'})
		return fmt.Errorf("%s: %s", p.name, line)
	}
	return nil
}

// logTailBytes is how much of a log an error contains.
const logTailBytes = 4 << 10

func (p *Process) logTail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-logTailBytes):])
}
