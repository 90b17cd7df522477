//go:build e2e

package rig

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
)

// Program is one of our programs next to an instance. It is restarted whenever it ends, as by a supervisor.
type Program struct {
	command func() *exec.Cmd
	process atomic.Pointer[os.Process] // the newest one
	cancel  context.CancelFunc
	crash   chan struct{}
	ended   chan struct{} // closed when it is no longer restarted
	log     string
}

// LogFile returns the file of its output.
func (p *Program) LogFile() string { return p.log }

// Keep runs a program with the instance's kubeconfig until the test ends. Its log is printed if the test has failed.
func (c *Cluster) Keep(t *testing.T, name string, args ...string) *Program {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	p := &Program{log: log.Name(), crash: make(chan struct{}), command: func() *exec.Cmd {
		command := exec.Command(Binary(t), append(args, "--kubeconfig", c.Kubeconfig)...)
		command.Stdout, command.Stderr = log, log
		return command
	}}
	p.Start()
	t.Cleanup(func() {
		p.Stop()
		log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("---- %s\n%s", name, text)
		}
	})
	return p
}

// Start runs it; it may be called again after Stop.
func (p *Program) Start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.ended = cancel, make(chan struct{})
	go func(ended chan struct{}) {
		defer close(ended)
		for ctx.Err() == nil {
			running := p.command()
			if running.Start() != nil {
				return
			}
			p.process.Store(running.Process)
			over := make(chan struct{})
			go func() { defer close(over); _ = running.Wait() }()
			select {
			case <-over:
			case <-p.crash:
				_ = running.Process.Kill()
			case <-ctx.Done():
				_ = running.Process.Kill()
			}
			<-over
		}
	}(p.ended)
}

// Crash kills it; it is restarted at once.
func (p *Program) Crash() { p.crash <- struct{}{} }

// PID returns its newest process; zero: it was never started.
func (p *Program) PID() int {
	if process := p.process.Load(); process != nil {
		return process.Pid
	}
	return 0
}

// Signal sends a signal to its newest process.
func (p *Program) Signal(t *testing.T, signal syscall.Signal) {
	t.Helper()
	if err := syscall.Kill(p.PID(), signal); err != nil {
		t.Fatalf("%v: %v", signal, err)
	}
}

// Stop kills it and does not restart it.
func (p *Program) Stop() {
	p.cancel()
	<-p.ended
}
