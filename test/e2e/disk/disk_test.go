//go:build e2e

package disk

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// Names of the children of up that are stopped or killed here.
const (
	agent      = "agent"
	supervisor = "supervisor"
)

// soon bounds what takes seconds on an idle machine.
const soon = time.Minute

// leaseSeconds is short, so that the agent can be stopped for longer than its Lease lasts.
const leaseSeconds = 5

// configuration has thresholds for blocks and none for inodes: when inodes are short, the test frees them itself.
var configuration = fmt.Sprintf(`
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failSwapOn: false
evictionHard: {nodefs.available: 60Mi}
evictionPressureTransitionPeriod: 1s
nodeLeaseDurationSeconds: %d
`, leaseSeconds)

// start brings up an instance with that configuration.
func start(t *testing.T, name string, prepare func(*rig.Cluster) error) node {
	t.Helper()
	file := filepath.Join(t.TempDir(), "agent.yaml")
	if err := os.WriteFile(file, []byte(configuration), 0o600); err != nil {
		t.Fatal(err)
	}
	c := rig.New(t, name, rig.Options{UpFlags: []string{"--agent-config", file}, Prepare: prepare})
	return node{Cluster: c, t: t, ns: c.Namespace(t)}
}

// node is an instance, and the namespace of the test's pods.
type node struct {
	*rig.Cluster
	t  *testing.T
	ns string
}

// post creates a pod with a volume on the node's disk and a token. mend changes the pod before.
func (n node) post(name string, mend ...func(*corev1.PodSpec)) {
	n.t.Helper()
	grace := int64(1)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName: n.NodeName, TerminationGracePeriodSeconds: &grace,
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers: []corev1.Container{{
				Name: "c", Image: image.Demo, Args: []string{"sleep", "infinity"},
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}},
			}},
			Volumes: []corev1.Volume{{Name: "data",
				VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		},
	}
	for _, change := range mend {
		change(&pod.Spec)
	}
	if _, err := n.API.CoreV1().Pods(n.ns).Create(n.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

func (n node) until(name, what string, is func(*corev1.Pod) error) *corev1.Pod {
	n.t.Helper()
	var pod *corev1.Pod
	took := rig.Eventually(n.t, soon, name+" "+what, func(ctx context.Context) (err error) {
		if pod, err = n.API.CoreV1().Pods(n.ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		return is(pod)
	})
	n.t.Logf("%s %s after %v", name, what, took.Round(100*time.Millisecond))
	return pod
}

func ready(p *corev1.Pod) error {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("%s: %s: %+v", p.Status.Phase, p.Status.Message, p.Status.ContainerStatuses)
}

func evicted(p *corev1.Pod) error {
	if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "Evicted" {
		return fmt.Errorf("%s, %s: %s: %+v", p.Status.Phase, p.Status.Reason, p.Status.Message, p.Status.ContainerStatuses)
	}
	return nil
}

func (n node) run(name string, mend ...func(*corev1.PodSpec)) *corev1.Pod {
	n.t.Helper()
	n.post(name, mend...)
	return n.until(name, "is ready", ready)
}

func (n node) remove(name string) {
	n.t.Helper()
	n.Kubectl(n.t, "--namespace", n.ns, "delete", "pod", "--grace-period=1", name)
}

// takesPods waits until the node has no disk pressure, and checks that it runs a new pod.
func (n node) takesPods(name string) {
	n.t.Helper()
	n.WaitCondition(n.t, n.NodeName, corev1.NodeDiskPressure, corev1.ConditionFalse, soon)
	n.run(name)
	n.remove(name)
}

// untouched checks that a pod's containers are still the same.
func (n node) untouched(was *corev1.Pod) {
	n.t.Helper()
	n.until(was.Name, "runs on", func(p *corev1.Pod) error {
		if err := ready(p); err != nil {
			return err
		}
		if now, before := p.Status.ContainerStatuses[0],
			was.Status.ContainerStatuses[0]; now.ContainerID != before.ContainerID || now.RestartCount != before.RestartCount {
			n.t.Fatalf("%s was container %s and is %s, restarted %d times", was.Name, before.ContainerID, now.ContainerID,
				now.RestartCount)
		}
		return nil
	})
}

// volume is the directory of a pod's emptyDir.
func (n node) volume(p *corev1.Pod) string {
	return filepath.Join(n.AgentRoot(), "pods", string(p.UID), "volumes/kubernetes.io~empty-dir/data")
}

// fails waits for an Event about a pod with the given reason and text.
func (n node) fails(name, reason, text string) {
	n.t.Helper()
	rig.Eventually(n.t, soon, name+" has an Event about "+text, func(ctx context.Context) error {
		events, err := n.API.CoreV1().Events(n.ns).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return err
		}
		var said []string
		for _, e := range events.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
			said = append(said, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("there are %q", said)
	})
}

// pid waits until a child or the supervisor runs, and returns its process.
func (n node) pid(name string) (pid int) {
	n.t.Helper()
	rig.Eventually(n.t, soon, name+" runs", func(context.Context) error {
		children, parent, err := n.Children()
		if err != nil && children == nil {
			return err
		}
		if pid = parent; name != supervisor {
			pid = 0
			for _, c := range children {
				if c.Name == name {
					pid = c.PID
				}
			}
		}
		if pid == 0 {
			return errors.New("it does not")
		}
		return nil
	})
	return pid
}

func (n node) signal(pid int, sig syscall.Signal) {
	n.t.Helper()
	if err := syscall.Kill(pid, sig); err != nil {
		n.t.Fatalf("%v for process %d: %v", sig, pid, err)
	}
}

// another waits until an agent other than the given process has renewed the node's Lease.
func (n node) another(old int) (pid int) {
	n.t.Helper()
	began := time.Now()
	rig.Eventually(n.t, soon, "another agent", func(context.Context) error {
		if pid = n.pid(agent); pid == old {
			return fmt.Errorf("pid %d is the one that was killed", old)
		}
		return nil
	})
	n.renews(began)
	return pid
}

// renews waits until the node's Lease was renewed within the given time.
func (n node) renews(since time.Time) {
	n.t.Helper()
	took := rig.Eventually(n.t, soon, "the lease is renewed", func(ctx context.Context) error {
		lease, err := n.API.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, n.NodeName, metav1.GetOptions{})
		if err == nil && !lease.Spec.RenewTime.After(since) {
			err = fmt.Errorf("renewed %v", lease.Spec.RenewTime)
		}
		return err
	})
	n.t.Logf("the lease is renewed after %v", took.Round(100*time.Millisecond))
}

// same checks that the agent is still the given process.
func (n node) same(pid int) {
	n.t.Helper()
	if now := n.pid(agent); now != pid {
		n.t.Errorf("the agent was process %d and is %d", pid, now)
	}
}

// inLog waits until the agent has logged a text after the given offset of its log.
func (n node) inLog(since int64, text string) {
	n.t.Helper()
	rig.Eventually(n.t, soon, "the agent says "+text, func(context.Context) error {
		all, err := os.ReadFile(n.LogFile(agent))
		if err == nil && !strings.Contains(string(all[since:]), text) {
			err = fmt.Errorf("it says:\n%s", all[max(int64(len(all))-2000, since):])
		}
		return err
	})
}

func (n node) logSize() int64 {
	n.t.Helper()
	info, err := os.Stat(n.LogFile(agent))
	if err != nil {
		n.t.Fatal(err)
	}
	return info.Size()
}
