//go:build e2e

package lab

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestGuestDiesWithItsProcess kills plimsoll-lab while its guest runs, as may happen in a test. QEMU must end too.
func TestGuestDiesWithItsProcess(t *testing.T) {
	program := filepath.Join(filepath.Dir(rig.Binary(t)), "plimsoll-lab")
	command := exec.CommandContext(t.Context(), program, "exec", "tiny", "--", "sh", "-c", "echo up; sleep 1000")
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "up\n" {
		t.Fatalf("it says %q, %v", line, err)
	}
	qemu := childrenOf(t, command.Process.Pid)
	if len(qemu) != 1 {
		t.Fatalf("its children are %v, want QEMU", qemu)
	}
	if err := command.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = command.Wait() // killed
	rig.Eventually(t, 30*time.Second, "QEMU ends", func(context.Context) error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", qemu[0]))
		if err == nil && strings.Contains(string(text), "qemu") {
			return fmt.Errorf("process %d runs", qemu[0])
		}
		return nil
	})
}

// childrenOf returns the processes that a process is the parent of (proc_pid_task(5), children, is not in every
// kernel).
func childrenOf(t *testing.T, parent int) (pids []int) {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ") // the fields after the name: state, parent
		if fields := strings.Fields(rest); len(fields) > 1 && fields[1] == strconv.Itoa(parent) {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}
