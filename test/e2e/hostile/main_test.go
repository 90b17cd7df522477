//go:build e2e

// Package hostile has tenants attack a real node: every writable mount, annotation, hook, probe, port, log and termination message
// that a pod has. Beside them lives a well-behaved neighbour, and what the test looks at is the neighbour: how fast its pods start and
// stop, whether its secrets and tokens come, whether it is killed when it should be, and what the agent costs.
//
//	make build && go test -tags e2e ./test/e2e/hostile
//	PLIMSOLL_E2E_LONG=1 go test -tags e2e -timeout 2h ./test/e2e/hostile -run TestOneByOne
//	PLIMSOLL_E2E_LONG=1 go test -tags e2e ./test/e2e/hostile -run TestOneByOne -attacks '^port-' -rounds 10
//
// # Model
//
// An attack is a row of one table (attacks): its pods, and what must hold of them. In the short form the attackers of one kind come
// together; TestOneByOne is the long form: each attack alone, in more pods. The neighbour is measured before the first attack, and then
// in each from the first attacker's coming to the last one's going; bounds are ratios of the two (neighbour_test.go), so that a slow
// machine fails nothing. The agent is one and the same from the first attack to the last: what it does not give back adds up.
//
// # Safety
//
// The instance's files lie on a file system of their own, in a sparse file: whoever fills the disk fills that. All pods together
// have a few GiB of memory, each pod a bounded number of processes, and each attacker limits of CPU and memory, but where their
// absence is the attack.
package hostile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// What attackers can use up (chosen).
const (
	diskBytes   = 12 * unit.GiB // of the instance's file system
	memoryBytes = 8 * unit.GiB  // of all pods
	pidsMax     = 128           // of a pod
	podsMax     = 200           // of the node: more than can be stopped at once, and fewer than it has addresses
)

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	d, err := mountDisk()
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile: the instance's own disk:", err)
		if os.Geteuid() == 0 {
			return 1
		}
		return rig.Main(m, "hostil", rig.Options{}) // which says why it skips
	}
	config := filepath.Join(d.dir, "agent.yaml")
	if err := os.WriteFile(config, []byte(configuration()), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv("TMPDIR", d.dir)
	code := rig.Main(m, "hostil", rig.Options{UpFlags: []string{"--agent-config", config}})
	if err := d.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		code = max(code, 1)
	}
	return code
}

func configuration() string {
	kept := unit.Bytes(0)
	if memory, err := procfs.Default.Memory(); err == nil {
		kept = max(memory.Total-memoryBytes, 0)
	}
	return fmt.Sprintf(`
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failSwapOn: false
maxPods: %d
podPidsLimit: %d
kubeReserved: {memory: %q}
evictionPressureTransitionPeriod: 1s
`, podsMax, pidsMax, kept.String())
}

// ownDisk is a file system in a sparse file.
type ownDisk struct {
	dir, file string
	guard     *exec.Cmd
	life      io.Closer // the guard unmounts when it is closed
}

// mountDisk makes it, without quota accounting: nodes seldom have it, and what tenants write is then counted by walks. A guard unmounts it when this process has died; it waits until the
// rig's guard has taken the instance down.
func mountDisk() (*ownDisk, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("needs root")
	}
	dir, err := os.MkdirTemp("/tmp", "plh") // short: socket paths have 107 characters
	if err != nil {
		return nil, err
	}
	d := &ownDisk{dir: dir, file: dir + ".img"}
	file, err := os.Create(d.file)
	if err == nil {
		err = errors.Join(file.Truncate(int64(diskBytes)), file.Close())
	}
	if err == nil {
		err = execute("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1", "-m", "0", d.file)
	}
	if err == nil {
		err = execute("mount", "-o", "loop,discard", d.file, dir)
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir), os.Remove(d.file))
	}
	const unmount = `read end; for i in $(seq 300); do umount "$0" && break; sleep 1; done 2>/dev/null; rmdir "$0"; rm -f "$0.img"`
	d.guard = exec.Command("/bin/sh", "-c", unmount, dir)
	d.guard.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if d.life, err = d.guard.StdinPipe(); err == nil {
		err = d.guard.Start()
	}
	return d, err
}

// Close unmounts the file system, which must not be in use any more, and waits for that.
func (d *ownDisk) Close() error {
	if err := errors.Join(d.life.Close(), d.guard.Wait()); err != nil {
		return err
	}
	if _, err := os.Stat(d.dir); err == nil {
		return fmt.Errorf("%s is still mounted", d.dir)
	}
	return nil
}

func execute(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
