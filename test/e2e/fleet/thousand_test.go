//go:build e2e

package fleet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// The nodes of the test's fleet, beside those of the instance. A Lease of 20 s is renewed every 5 s. So a healthy node
// may be late by three quarters of the node-monitor grace period, also on a busy machine.
const (
	thousand      = 1000
	thousandZones = 5
	grace         = 20 * time.Second
)

// beside starts a plimsoll command that runs until the test ends.
func (i *instance) beside(t *testing.T, verb string, args ...string) *exec.Cmd {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), verb+".log"))
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(i.binary, append([]string{verb, "--kubeconfig", strings.TrimSpace(i.plimsoll("kubeconfig"))},
		args...)...)
	c.Stdout, c.Stderr = log, log
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		log.Close()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("---- %s\n%s", verb, text[max(0, len(text)-16<<10):])
		}
	})
	return c
}

// watchOver starts the lifecycle controller with a short node-monitor grace period.
func (i *instance) watchOver(t *testing.T) {
	i.beside(t, "lifecycle", "--node-monitor-grace-period", grace.String(), "--leader-elect=false", "--secure-port=0")
}

// give sends an order to the test's fleet by the command line.
func (i *instance) give(socket string, words ...string) {
	i.t.Helper()
	if out, err := exec.Command(i.binary, append(append([]string{"fleet", "fault"}, words...), "--control",
		socket)...).CombinedOutput(); err != nil {
		i.t.Fatalf("plimsoll fleet fault %s: %v\n%s", words, err, out)
	}
}

// census counts the Nodes of the test's fleet in the API.
type census struct {
	ready, unknown, notReady int
	closed                   int // nodes with a NoSchedule taint of a condition
	emptied                  int // nodes with a NoExecute taint
	zoneUnknown              int // of zone-0
}

func (i *instance) census(ctx context.Context) (c census) {
	list, err := i.api.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return census{}
	}
	for _, n := range list.Items {
		if !strings.HasPrefix(n.Name, "k-") {
			continue
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type != corev1.NodeReady {
				continue
			}
			switch condition.Status {
			case corev1.ConditionTrue:
				c.ready++
			case corev1.ConditionFalse:
				c.notReady++
			default:
				c.unknown++
				if n.Labels[corev1.LabelTopologyZone] == "zone-0" {
					c.zoneUnknown++
				}
			}
		}
		for _, taint := range n.Spec.Taints {
			if taint.Key != corev1.TaintNodeUnreachable && taint.Key != corev1.TaintNodeNotReady {
				continue
			}
			if taint.Effect == corev1.TaintEffectNoExecute {
				c.emptied++
			} else {
				c.closed++
			}
		}
	}
	return c
}

// await waits for a census and for the given number of ready pods.
func (i *instance) await(what string, limit time.Duration, pods func(int) bool, is func(census) bool) {
	i.t.Helper()
	i.until(what, limit, func(ctx context.Context) (bool, string) {
		c, ready := i.census(ctx), i.readyPods(ctx)
		return is(c) && pods(ready), fmt.Sprintf("%+v, %d pods Ready", c, ready)
	})
}

// TestThousand breaks a fleet of a thousand nodes. One zone is cut off, some nodes are silent, some flap, some report
// that they are not ready. Each gets the condition and taint for its own fault, and no other node gets any. Pods are
// evicted from one node after another. Then all nodes are silent, and evictions end. Then all nodes return with their
// pods.
func TestThousand(t *testing.T) {
	if os.Getenv("PLIMSOLL_E2E_LONG") == "" {
		t.Skip("takes minutes: set PLIMSOLL_E2E_LONG, or make test-long")
	}
	i := up(t, "--no-lifecycle")
	i.watchOver(t)
	const pods = 200
	socket := filepath.Join(t.TempDir(), "fleet")
	fleet := i.beside(t, "fleet", "--nodes", fmt.Sprint(thousand), "--zones", fmt.Sprint(thousandZones), "--node-prefix",
		"k-", "--lease-duration", grace.String(), "--control", socket)
	i.await("a thousand nodes Ready and open", 3*time.Minute, func(int) bool { return true },
		func(c census) bool { return c == census{ready: thousand} })
	spec := podSpec("100m")
	spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpExists},
				}},
			},
		},
	}}
	i.createPods(0, pods, spec)
	i.until("200 pods Ready", time.Minute, func(ctx context.Context) (bool, string) {
		n := i.readyPods(ctx)
		return n == pods, fmt.Sprint(n)
	})
	i.give(socket, "partition", "zone=zone-0")
	i.give(socket, "silence", "zone=zone-1", "count=7")
	i.give(socket, "flap", "zone=zone-2", "count=10", "down=4s", "up=8s")
	i.give(socket, "notready", "zone=zone-3", "count=3")
	const cut = thousand / thousandZones
	some := func(ready int) bool { return ready > 0 && ready < pods }
	i.await("a zone and seven nodes Unknown, three not Ready, one emptied", 2*time.Minute, some, func(c census) bool {
		return c.ready == thousand-cut-7-3 && c.unknown == cut+7 && c.zoneUnknown == cut && c.notReady == 3 &&
			c.closed == cut+7+3 && c.emptied > 0
	})
	if c := i.census(t.Context()); c.emptied > cut/4 { // 0.1 nodes per second and zone, also on a slow machine
		t.Errorf("%d of %d nodes are emptied already", c.emptied, cut+7+3)
	}
	if err := syscall.Kill(fleet.Process.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(i.pid("fleet"), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	i.await("all Unknown, nobody emptied, no pod Ready", 2*time.Minute, func(ready int) bool { return ready == 0 },
		func(c census) bool {
			return c.unknown == thousand && c.closed == thousand && c.emptied == 0
		})
	for _, pid := range []int{fleet.Process.Pid, i.pid("fleet")} {
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
	}
	i.give(socket, "return")
	i.await("all Ready and open, with their pods", 2*time.Minute, func(ready int) bool { return ready == pods },
		func(c census) bool { return c == census{ready: thousand} })
}

// metrics checks that an administrator may read the scheduler's metrics and that another user may not.
func (i *instance) metrics(t *testing.T) {
	config := rest.CopyConfig(i.config)
	// its certificate is self-signed
	config.TLSClientConfig.CAData, config.TLSClientConfig.CAFile, config.Insecure = nil, "", true
	admin, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		who    *http.Client
		status int
		holds  string
	}{{admin, http.StatusOK, "scheduler_pod_scheduling_attempts"}, {stranger, http.StatusUnauthorized, ""}} {
		answer, err := test.who.Get("https://127.0.0.1:" + i.schedulerPort + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != test.status || !strings.Contains(string(body), test.holds) {
			t.Errorf("status %d, want %d with %q: %v\n%.500s", answer.StatusCode, test.status, test.holds, err, body)
		}
	}
}
