//go:build e2e && lab

package lab

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// agentUnit is the unit of the agent in a guest. Its timeouts are shorter than anybody would choose.
const agentUnit = `[Unit]
Description=Plimsoll node agent

[Service]
Type=notify
TimeoutStartSec=20
WatchdogSec=20
ExecStart=%s
Restart=always
RestartSec=1
KillMode=process
Delegate=yes
`

// longerThanTimeout is how long the agent waits for its runtime here: much longer than TimeoutStartSec of agentUnit.
const longerThanTimeout = 50 * time.Second

// TestWatchdog runs the agent as a service of a real systemd. While there is no container runtime, the service goes on
// starting for longer than its timeout. It is ready when the runtime is there. An agent that stands still is started
// again by the watchdog. A pod that runs notices nothing.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	c := rig.Shared(t)
	ns := c.Namespace(t)
	g := lab.Boot(t, "tiny", lab.Options{Init: lab.Systemd, Name: "watchdog"})
	n := c.Join(t, g, rig.JoinOptions{CgroupDriver: "systemd", Config: map[string]any{"enableSystemLogQuery": true}})
	pod := func(name string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{
				NodeName:    n.Name,
				Containers:  []corev1.Container{{Name: "c", Image: image.Demo, Args: []string{"sleep", "infinity"}}},
				Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			},
		}
	}
	web := createReady(t, c, ns, pod("web"))
	n.Agent.Stop()
	args := n.AgentArgs()
	args[0] = g.Run(t, "sh", "-c", "command -v plimsoll")
	g.Write(t, "/etc/systemd/system/plimsoll-agent.service", fmt.Sprintf(agentUnit, strings.Join(args, " ")))
	g.Run(t, "systemctl", "daemon-reload")

	g.Run(t, "systemctl", "stop", "containerd")
	g.Run(t, "systemctl", "start", "--no-block", "plimsoll-agent")
	rig.Eventually(t, podWithin, "the service starts for longer than its timeout", func(ctx context.Context) error {
		s := serviceOf(t, g)
		if s.restarts != 0 || s.state != "activating" && s.state != "inactive" {
			t.Fatalf("without a runtime the service is %+v", s)
		}
		if s.since < longerThanTimeout {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	n.StartRuntime(t)
	rig.Eventually(t, podWithin, "the service is ready", func(ctx context.Context) error {
		if s := serviceOf(t, g); s.state != "active" || s.restarts != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	c.WaitCondition(t, n.Name, corev1.NodeReady, corev1.ConditionTrue, podWithin)

	stopped := serviceOf(t, g).pid
	g.Run(t, "sh", "-c", "kill -STOP "+stopped)
	rig.Eventually(t, podWithin, "systemd starts the agent again", func(ctx context.Context) error {
		if s := serviceOf(t, g); s.state != "active" || s.restarts == 0 || s.pid == stopped {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	if journal := g.Run(t, "journalctl", "-u", "plimsoll-agent", "--no-pager"); !strings.Contains(journal,
		"Watchdog timeout") {
		t.Errorf("it was not the watchdog:\n%s", journal)
	}
	logs := agentAPI(t, n)
	rig.Eventually(t, podWithin, "the agent's log is read from the agent", func(ctx context.Context) error {
		text, err := logs.Get().AbsPath("/logs").Param("query", "plimsoll-agent").
			Param("pattern", "the agent is ready").Param("boot", "0").DoRaw(ctx)
		if err == nil && strings.Count(string(text), "the agent is ready") != 2 {
			err = fmt.Errorf("want two starts in %q", text)
		}
		return err
	})
	createReady(t, c, ns, pod("after"))
	wantPod(t, c, ns, "web notices nothing", web, func(now *corev1.Pod) error {
		was, is := web.Status.ContainerStatuses[0], now.Status.ContainerStatuses[0]
		if was.ContainerID != is.ContainerID || is.RestartCount != 0 {
			return fmt.Errorf("its container was %s, and is %s after %d restarts", was.ContainerID, is.ContainerID,
				is.RestartCount)
		}
		return podReady(now)
	})
	if s := serviceOf(t, g); s.state != "active" || s.restarts != 1 {
		t.Errorf("at the end the service is %+v", s)
	}
}

// agentAPI returns a client of a guest's agent, with the rights of the instance's administrator. It takes the forwarded
// port: the API server has no proxy to a node whose address is of a loopback interface ("address not allowed").
func agentAPI(t *testing.T, n *rig.GuestNode) rest.Interface {
	t.Helper()
	config := rest.CopyConfig(rig.Shared(t).Config)
	config.Host = "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(n.Port))
	agent, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return agent.CoreV1().RESTClient()
}

// service is what systemd says of the agent's service.
type service struct {
	state    string
	pid      string
	restarts int
	since    time.Duration // since it began to start
}

func serviceOf(t *testing.T, g *lab.Guest) service {
	t.Helper()
	said := map[string]string{}
	for line := range strings.Lines(g.Run(t, "systemctl", "show", "plimsoll-agent", "-p",
		"ActiveState,MainPID,NRestarts,InactiveExitTimestampMonotonic")) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		said[name] = value
	}
	uptime, _, _ := strings.Cut(g.Run(t, "cat", "/proc/uptime"), " ")
	now, err := strconv.ParseFloat(uptime, 64)
	if err != nil {
		t.Fatal(err)
	}
	began, err := strconv.ParseInt(said["InactiveExitTimestampMonotonic"], 10, 64)
	if err != nil {
		t.Fatalf("%v: %v", said, err)
	}
	restarts, err := strconv.Atoi(said["NRestarts"])
	if err != nil {
		t.Fatalf("%v: %v", said, err)
	}
	s := service{state: said["ActiveState"], pid: said["MainPID"], restarts: restarts}
	if began > 0 {
		s.since = time.Duration(now*float64(time.Second)) - time.Duration(began)*time.Microsecond
	}
	return s
}
