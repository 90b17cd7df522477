package record

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
)

// insideVariable is set in a process that Apart has started.
const insideVariable = "PLIMSOLL_BENCH_INSIDE"

// Apart runs this program again in a network namespace of its own, so that no other instance is in its way, and exits
// with its code. It returns in the process that is inside, and without root.
func Apart() {
	if os.Getenv(insideVariable) != "" || os.Geteuid() != 0 {
		return
	}
	c := exec.Command("/proc/self/exe", os.Args[1:]...)
	c.Env = append(os.Environ(), insideVariable+"=1")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
	if err := c.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		fmt.Fprintln(os.Stderr, "enter a network namespace:", err)
		os.Exit(1)
	}
	os.Exit(c.ProcessState.ExitCode())
}

// NodeIP is the address of a node in such a namespace: no loopback address, so that pods reach it.
const NodeIP = "172.31.255.1"

// serviceNet is the network of Services: --service-cidr's default.
const serviceNet = "10.96.0.0/16"

// Connect gives the namespace an address and a route to Services, which a machine without a network lacks.
func Connect(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("run containers: not root")
	}
	for _, words := range [][]string{
		{"link", "set", "lo", "up"}, {"route", "add", serviceNet, "dev", "lo"}, {"addr", "add", NodeIP + "/32", "dev", "lo"},
	} {
		if said, err := exec.CommandContext(ctx, "ip", words...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(words, " "), err, said)
		}
	}
	return nil
}
