// Command guest is what the lab runs inside its guests: it makes a machine of what QEMU offers, is process 1 where nobody
// else is, and runs the commands that the host asks for.
//
// # Model
//
// One program in several parts, one after the other:
//
//   - /init, in the initial RAM file system: loads drivers, finds the disks by their serial numbers, puts the root together (the image
//     read-only below, the node's file system on top), configures the network card, and becomes process 1 of the variant.
//   - guest init: process 1 of the tiny variant. It keeps the server running, reaps orphans, and that is all.
//   - guest serve: answers the host's commands over the virtio serial port (package wire). In the systemd variant it is a unit.
//   - guest exec: becomes a command, without the server's protection from the OOM killer.
//   - guest forward: leads a port of the network card to one of the loopback interface.
//   - guest poweroff: ends a tiny guest in order.
//
// # Invariants
//
// A guest that cannot become what it was told says why on the port and on the console, and powers off; it never goes on as
// something else. The server is never chosen by the OOM killer; what it starts can be.
//
// It decides nothing about Kubernetes and knows no test: it is the floor on which tests stand.
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
		boot() // does not return
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
		err = errors.New("usage: guest init | serve | exec PROGRAM [ARG...] | forward ADDRESS:PORT ADDRESS:PORT | poweroff; package lab starts it")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(exitNotStarted)
	}
}

// exitNotStarted is what a shell returns for a command that it could not run.
const exitNotStarted = 127

// oomNever keeps the OOM killer away, oomUsual is what a process has that nobody cares for (proc(5), oom_score_adj).
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
