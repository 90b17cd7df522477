//go:build e2e

// Package hostile attacks a real node by pods: by every writable mount, annotation, hook, probe, port, log and
// termination message that a pod has. Next to them runs a well-behaved neighbour. The test measures the neighbour: how
// fast its pods start and stop, whether its secrets and tokens arrive, whether a container that exceeds its memory is
// killed, and what the agent uses.
//
//	make build && go test -tags e2e ./test/e2e/hostile
//	PLIMSOLL_E2E_LONG=1 go test -tags e2e -timeout 2h ./test/e2e/hostile -run TestOneByOne
//	PLIMSOLL_E2E_LONG=1 go test -tags e2e ./test/e2e/hostile -run TestOneByOne -attacks '^port-' -rounds 10
//
// # Model
//
// An attack is a row of one table (attacks): its pods, and conditions that must become true for them. In the short form
// the attacks of one kind run at the same time. TestOneByOne is the long form: each attack alone, in more pods.
//
// The attackers may use all of both CPUs, so the neighbour is slower while they run. It must not be slower than beside
// ordinary pods. So it is measured three times: alone; beside a crowd of ordinary pods, as many as an attack has, which
// use all the CPU that they may; and during each attack, from the creation of the first attacker to the deletion of the
// last. An attack is judged by its ratio to the worse of the first two (neighbour_test.go), so a slow machine does not
// fail. One agent runs from the first attack to the last, so what it does not release adds up.
//
// # Safety
//
// The instance's files are on a separate file system, in a sparse file: an attacker that fills the disk fills that
// file. All pods together have a few GiB of memory. Each pod has a limited number of processes, and each attacker has
// limits of CPU and memory, unless their absence is the attack.
package hostile

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/smallfs"
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
	d, err := smallfs.New(diskBytes)
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostile: the instance's own disk:", err)
		if os.Geteuid() == 0 {
			return 1
		}
		return rig.Main(m, "hostil", rig.Options{}) // which says why it skips
	}
	config := filepath.Join(d.Dir, "agent.yaml")
	if err := os.WriteFile(config, []byte(configuration()), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	os.Setenv("TMPDIR", d.Dir)
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
