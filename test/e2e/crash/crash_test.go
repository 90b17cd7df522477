//go:build e2e

// Package crash breaks a whole node in every way that an issue tracker knows, and checks that containers do not notice
// and that everything heals: processes killed at random instants, an API server that is away, a runtime that hangs,
// `up` and `down` at the wrong time, and input that cannot work. It needs root.
//
//	make build && go test -tags e2e ./test/e2e/crash
//
// # Model
//
// A witness looks at containers in three ways that no process of ours can paint over: the kernel's start time of the
// first process, the runtime's records, and a line that each container appends to a file when it starts. Random
// instants come from one seed, which is printed first; PLIMSOLL_E2E_SEED repeats it.
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

// The children of up, as `plimsoll status` names them.
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

// soon bounds what takes seconds on an idle machine; slack is what a loaded one may add to a time that the agent keeps,
// as in package pods.
const (
	soon  = 2 * time.Minute
	slack = 20 * time.Second
)

// parallel is how many tests run at once, each with an instance of its own (chosen: they wait more than they compute,
// and an instance that starts keeps two CPUs busy for some seconds).
const parallel = 3

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", strconv.Itoa(parallel)); err != nil { // a flag on the command line still wins
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// chance returns a source of random instants and prints how to repeat it.
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

// between draws a duration.
func between(r *rand.Rand, least, most time.Duration) time.Duration {
	return least + time.Duration(r.Int64N(int64(most-least)))
}

// wait lets real processes run for a while that is part of the scenario: an outage has a length.
func wait(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// pidOf is the process of a child or the supervisor, zero while there is none.
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

// signal reaches a child or the supervisor, as soon as there is one, and returns which process it reached.
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
			_ = syscall.Kill(pid, syscall.SIGCONT) // gone: then there is nothing to thaw
		}
	}
	t.Cleanup(thaw)
	return thaw
}
