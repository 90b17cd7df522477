package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/plimsoll-dev/plimsoll/lab/wire"
)

// consoleWanted is a file that exists if the user wants a shell on the console.
const consoleWanted = wire.Dir + "/console"

// runInit is process 1. It does not start processes with os/exec, whose Wait would race with its own.
func runInit() error {
	// Process 1 gets only signals that it requests; its children get theirs.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	server, err := start(wire.Program, "serve")
	if err != nil {
		return err
	}
	shell := -1
	if _, err := os.Stat(consoleWanted); err == nil {
		if shell, err = startShell(); err != nil {
			return err
		}
	}
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return err
		case pid == shell:
			return powerOff()
		case pid == server:
			fmt.Fprintf(os.Stderr, "guest: server ended: status %#x; this guest cannot be reached any more\n", status)
			return powerOff()
		}
	}
}

func start(argv ...string) (int, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Dir: "/", Env: os.Environ(), Files: []uintptr{null.Fd(), 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return pid, nil
}

// startShell starts a shell on the console.
func startShell() (int, error) {
	tty, err := os.OpenFile("/dev/ttyS0", os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer tty.Close()
	pid, err := syscall.ForkExec("/bin/bash", []string{"-bash"}, &syscall.ProcAttr{
		Dir: "/root", Env: append(os.Environ(), "HOME=/root", "TERM=vt220"), Files: []uintptr{tty.Fd(), tty.Fd(), tty.Fd()},
		Sys: &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0},
	})
	if err != nil {
		return 0, fmt.Errorf("start a shell on the console: %w", err)
	}
	return pid, nil
}
