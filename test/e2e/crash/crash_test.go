//go:build e2e

// Package crash breaks a whole node in the ways that bug reports describe, and checks that containers go on and that
// the node recovers: processes are killed at random moments, the API server is unreachable, the runtime hangs, `up` and
// `down` run at the wrong time, and input is invalid. It needs root.
//
//	make build && go test -tags e2e ./test/e2e/crash
//
// # Model
//
// A witness observes containers by three sources that none of our processes can change: the kernel's start time of the
// first process, the runtime's records, and a line that each container appends to a file when it starts. Random moments
// come from one seed, which is printed first. PLIMSOLL_E2E_SEED repeats it.
package crash

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// Names of the children of up in `plimsoll status`.
const (
	agent             = "agent"
	containerd        = "containerd"
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "scheduler"
	lifecycle         = "lifecycle"
	supervisor        = "supervisor" // not a child: their parent
)

// workload is the image that `up` brings along.
const workload = "plimsoll.dev/workload:dev"

// soon bounds what takes seconds on an idle machine. slack is how much later than set a timer of the agent may fire on
// a busy machine, as in package pods.
const (
	soon  = 2 * time.Minute
	slack = 20 * time.Second
)

// parallel is how many tests run at once, each with its own instance. Chosen: they wait more than they compute, and an
// instance that starts uses two CPUs for some seconds.
const parallel = 3

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil { // a flag on the command line has precedence
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// chance returns a source of random moments and prints how to repeat it.
func chance(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("PLIMSOLL_E2E_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("PLIMSOLL_E2E_SEED %q: want a number", text)
		}
	}
	t.Logf("seed %d", seed)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("again: PLIMSOLL_E2E_SEED=%d go test -tags e2e -count=1 -run '^%s$' ./test/e2e/crash", seed, t.Name())
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// between returns a random duration.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// wait lets real processes run for a time that is part of the scenario, for example the length of an outage.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// pidOf returns the process of a child or of the supervisor; zero while there is none.
func pidOf(t *testing.T, c *rig.Cluster, name string) int {
	t.Helper()
	children, parent, err := c.Children()
	if err != nil {
		t.Fatal(err)
	}
	if name == supervisor {
		return parent
	}
	for _, child := range children {
		if child.Name == name {
			return child.PID
		}
	}
	return 0
}

// signal sends a signal to a child or the supervisor, as soon as there is one, and returns that process.
func signal(t *testing.T, c *rig.Cluster, name string, sig syscall.Signal) (pid int) {
	t.Helper()
	rig.Eventually(t, soon, fmt.Sprintf("%v for %s", sig, name), func(ctxT) error {
		if pid = pidOf(t, c, name); pid == 0 {
			return fmt.Errorf("it does not run")
		}
		return syscall.Kill(pid, sig)
	})
	return pid
}

// freeze stops a child or the supervisor until the returned function is called, at the latest when the test ends.
func freeze(t *testing.T, c *rig.Cluster, name string) (thaw func()) {
	t.Helper()
	pid := signal(t, c, name, syscall.SIGSTOP)
	thawed := false
	thaw = func() {
		if !thawed {
			thawed = true
			_ = syscall.Kill(pid, syscall.SIGCONT) // it has ended, so there is nothing to continue
		}
	}
	t.Cleanup(thaw)
	return thaw
}
