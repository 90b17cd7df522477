//go:build e2e && lab

package lab

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

const nic = "example.com/nic"

// TestDevicesTwoSocket gives pods devices, CPUs and memory from one NUMA node of a machine with two, under a real device plugin.
// Then the machine crashes, and its plugin comes back late: the pod waits for it and runs again with what it had.
func TestDevicesTwoSocket(t *testing.T) {
	plugin := filepath.Join(t.TempDir(), "plugin")
	build := exec.Command("go", "build", "-o", plugin, "github.com/plimsoll-dev/plimsoll/test/deviceplugin/plugin")
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	c := rig.Shared(t)
	ns := c.Namespace(t)
	n := c.Join(t, lab.Boot(t, "two-socket", lab.Options{Name: "devices"}), rig.JoinOptions{Config: pinnedConfig("single-numa-node")})
	n.CopyIn(t, plugin, "/var/lib/plugin")
	start := func() {
		t.Helper()
		n.Start(t, lab.Command{Args: []string{"sh", "-c", "sleep infinity | /var/lib/plugin --resource " + nic + " --devices n0@0,n1@1,n2@1 --env NICS --nodes"}})
	}
	start()
	pod := func(name string, count int64) *corev1.Pod {
		limits := amounts("1", "48Mi")
		limits[nic] = *resource.NewQuantity(count, resource.DecimalSI)
		grace := int64(1)
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PodSpec{NodeName: n.Name, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{
				{Name: "c", Image: image.Demo, Args: []string{"sleep", "infinity"}, Resources: corev1.ResourceRequirements{Limits: limits, Requests: limits}},
			}},
		}
	}
	// Two devices are near node 1 only; the lowest ids would be on both.
	p := createReady(t, c, ns, pod("p", 2))
	home := func() {
		t.Helper()
		if out := strings.Fields(c.Kubectl(t, "exec", "--namespace", ns, "p", "--", "/workload", "env", "NICS")); len(out) == 0 || out[len(out)-1] != "n1,n2" {
			t.Errorf("its devices are %q", out)
		}
		status := c.Kubectl(t, "exec", "--namespace", ns, "p", "--", "/workload", "cat", "/proc/1/status")
		for _, line := range strings.Split(status, "\n") {
			if mems, ok := strings.CutPrefix(line, "Mems_allowed_list:"); ok && strings.TrimSpace(mems) != "1" {
				t.Errorf("its memory is on node %s", mems)
			}
		}
	}
	home()
	if _, err := c.API.CoreV1().Pods(ns).Create(t.Context(), pod("q", 2), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wantReason(t, c, ns, "q", func(p *corev1.Pod) error {
		if p.Status.Phase != corev1.PodFailed || p.Status.Reason != "TopologyAffinityError" {
			return fmt.Errorf("%s %s %s", p.Status.Phase, p.Status.Reason, p.Status.Message)
		}
		return nil
	})

	n.Run(t, "sync")
	n.Kill()
	n.Restart(t)
	n.StartRuntime(t)
	n.StartAgent(t)
	wantPod(t, c, ns, "p waits for its plugin", p, func(p *corev1.Pod) error {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReadyToStartContainers && c.Reason == "WaitingForDevices" {
				return nil
			}
		}
		return fmt.Errorf("phase %s %s, conditions %+v", p.Status.Phase, p.Status.Reason, p.Status.Conditions)
	})
	start()
	wantPod(t, c, ns, "p runs again", p, func(p *corev1.Pod) error {
		if err := podReady(p); err != nil {
			return err
		}
		if p.Status.ContainerStatuses[0].RestartCount == 0 {
			return errors.New("not restarted")
		}
		return nil
	})
	home()
}

// wantReason waits until a pod is as it should be.
func wantReason(t *testing.T, c *rig.Cluster, ns, name string, is func(*corev1.Pod) error) {
	t.Helper()
	p, err := c.API.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantPod(t, c, ns, name, p, is)
}
