// Command guest is the lab's program in its guests: it sets the machine up, is process 1 in the tiny variant, and runs
// the commands of the host.
//
// # Model
//
// It has several parts:
//
//   - /init, in the initial RAM file system: loads drivers, finds the disks by their serial numbers, assembles the root
//     (the image read-only below, the nodefs disk on top), configures the network card, and becomes process 1 of the
//     variant.
//   - guest init: process 1 of the tiny variant. It starts the server and reaps orphans.
//   - guest serve: answers the host's commands over the virtio serial port (package wire). In the systemd variant it is
//     a unit.
//   - guest exec: becomes a command, without the server's protection from the OOM killer.
//   - guest forward: forwards a port of the network card to one of the loopback interface.
//   - guest poweroff: shuts a tiny guest down.
//
// # Invariants
//
// A guest that cannot be set up as configured reports the reason on the port and on the console, and powers off; it
// never continues with another setup. The OOM killer never chooses the server; it can choose what the server starts.
//
// The program contains nothing about Kubernetes or tests.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() {
	part := ""
	if len(os.Args) > 1 {
		part = os.Args[1]
	}
	var err error
	switch {
	case os.Args[0] == "/init":
		boot() // it does not return
	case part == "init":
		err = runInit()
	case part == "serve":
		err = serve()
	case part == "exec" && len(os.Args) > 2:
		err = become(os.Args[2:])
	case part == "forward" && len(os.Args) == 4:
		err = forward(os.Args[2], os.Args[3])
	case part == "poweroff":
		err = powerOff()
	default:
		err = errors.New("usage: guest init | serve | exec PROGRAM [ARG...] | forward ADDRESS:PORT ADDRESS:PORT | " +
			"poweroff; package lab starts it")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(exitNotStarted)
	}
}

// exitNotStarted is the status of a shell for a command that it could not run.
const exitNotStarted = 127

// oomNever protects a process from the OOM killer, oomUsual is a process's default (proc(5), oom_score_adj).
const (
	oomNever = "-1000"
	oomUsual = "0"
)

// become replaces this process by a command.
func become(argv []string) error {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(oomUsual), 0); err != nil {
		return err
	}
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", path, syscall.Exec(path, argv, os.Environ()))
}

// powerOff flushes the disks and switches the machine off.
func powerOff() error {
	unix.Sync()
	return unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}
