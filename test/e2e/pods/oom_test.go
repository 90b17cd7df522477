//go:build e2e

package pods

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// reports is locked by tests that need the kernel's report on a kill, and exclusively by the test that makes the kernel
// leave reports out. The kernel writes ten in five seconds for the whole machine (oom_kill_process in mm/oom_kill.c).
// Without one, the Event of a kill does not name the limit.
var reports sync.RWMutex

// reportsWindow is the kernel's DEFAULT_RATELIMIT_INTERVAL.
const reportsWindow = 5 * time.Second

// A container that exceeds its memory limit is killed by the kernel. Its status says so with the numbers, both for a
// kill so early that containerd 1.6 does not notice it, and for a later one.
func TestOOMKilled(t *testing.T) {
	b := at(t)
	reports.RLock()
	defer reports.RUnlock()
	programs := map[string][]string{
		"early": {"memory", "--hold", "200Mi"},
		"late":  {"run", "sleep 2s", "memory --hold 200Mi"},
	}
	for name, args := range programs {
		c := workload("c", args...)
		c.Resources.Limits = resources("", "32Mi")
		b.create(name, brief(c))
	}
	for name := range programs {
		p := b.ended(name, corev1.PodFailed)
		end := container(p, "c").State.Terminated
		if end == nil || end.Reason != "OOMKilled" || end.ExitCode != 137 ||
			!containsAll(end.Message, []string{"(workload)", "it held ", "limit (32Mi) were in use"}) {
			t.Errorf("%s: %+v", name, end)
		}
		b.event(name, "OOMKilled", "(workload)", "container c", "limit (32Mi) were in use")
	}
}

// The kernel kills a child process. The container goes on, and an Event says what happened.
func TestOOMOfChild(t *testing.T) {
	b := at(t)
	reports.RLock()
	defer reports.RUnlock()
	hungry, other := workload("c", "sleep", "infinity"), workload("d", "sleep", "infinity")
	hungry.Resources.Limits = resources("", "32Mi")
	b.create("p", lasting(hungry, other))
	b.ready("p")
	if _, err := b.tryIn("p/c", "memory", "--hold", "200Mi"); err == nil {
		t.Error("the child has lived")
	}
	e := b.event("p", "OOMKilled", "Process ", "(workload) of container c was killed by the kernel",
		"of the container's limit (32Mi) were in use")
	if e.InvolvedObject.FieldPath != "spec.containers{c}" || e.Type != corev1.EventTypeWarning {
		t.Errorf("event: %+v", e)
	}
	b.Explains(t, "pod "+b.ns+"/p", nil, `\(workload\).*killed by the kernel.*of the container's limit \(32Mi\) were in use`)
	p := b.ready("p")
	for _, name := range []string{"c", "d"} {
		if s := container(p, name); s.RestartCount != 0 || s.State.Running == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// All kills are found, even if they are more than the kernel reports in full. The children run one after another: of
// many at once some have not taken memory yet when those that have are dead, and then the kernel can choose the
// container's first process.
func TestOOMOfMany(t *testing.T) {
	b := at(t)
	const kills = 14
	c := workload("c", "sleep", "infinity")
	c.Resources.Limits = resources("", "64Mi")
	p := b.create("p", lasting(c))
	b.ready("p")
	reports.Lock()
	defer reports.Unlock()
	for range kills {
		if _, err := b.tryIn("p/c", "memory", "--hold", "128Mi"); err == nil {
			t.Error("a child has lived")
		}
	}
	over := time.After(reportsWindow)
	rig.Eventually(t, soon, "every kill is in the agent's log", func(context.Context) error {
		text, err := os.ReadFile(b.LogFile("agent"))
		if err != nil {
			return err
		}
		found, rationed := 0, 0
		for line := range strings.Lines(string(text)) {
			if strings.Contains(line, "out of memory") && strings.Contains(line, string(p.UID)) {
				found++
				if strings.Contains(line, "limit=absent") {
					rationed++
				}
			}
		}
		if found != kills {
			return fmt.Errorf("%d of %d", found, kills)
		}
		t.Logf("%d of %d kills had no report", rationed, kills)
		return nil
	})
	if n := container(b.ready("p"), "c").RestartCount; n != 0 {
		t.Errorf("the container's first process was killed: %d restarts", n)
	}
	<-over
}
