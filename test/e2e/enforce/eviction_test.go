//go:build e2e

package enforce

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/process"
	"github.com/plimsoll-dev/plimsoll/internal/host/procfs"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// evicted waits until a pod has ended and returns it.
func (n node) evicted(ns, name string) *corev1.Pod {
	n.t.Helper()
	var pod *corev1.Pod
	rig.Eventually(n.t, soon, name+" is evicted", func(ctx context.Context) (err error) {
		if pod, err = n.API.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodFailed || pod.Status.Reason != "Evicted" {
			return fmt.Errorf("%s, %s: %s", pod.Status.Phase, pod.Status.Reason, pod.Status.Message)
		}
		return nil
	})
	return pod
}

// pressed waits until MemoryPressure has the wanted status.
func (n node) pressed(want corev1.ConditionStatus) {
	n.t.Helper()
	rig.Eventually(n.t, soon, "MemoryPressure is "+string(want), func(context.Context) error {
		for _, c := range n.node().Status.Conditions {
			if c.Type == corev1.NodeMemoryPressure && c.Status == want {
				return nil
			}
		}
		return fmt.Errorf("not yet")
	})
}

// A pod uses more memory than all pods may use together: once while the runtime answers, once while it hangs. The agent
// evicts it, and no other pod, before the kernel kills a process. Status, Events and `plimsoll explain` say why.
func TestEviction(t *testing.T) {
	n := at(t)
	memory, err := procfs.Default.Memory()
	if err != nil {
		t.Fatal(err)
	}
	n.configure(fmt.Sprintf("kubeReserved: {memory: %q}\nevictionHard: {memory.available: 100Mi}\n"+
		"evictionPressureTransitionPeriod: 1s\n", (memory.Total - unit.GiB).String()))
	n.want("memory", n.pods(), "memory.limit_in_bytes", fmt.Sprint(int64(unit.GiB)))
	ns := n.Namespace(t)
	n.run(ns, "steady", corev1.ResourceRequirements{Requests: list("", "64Mi")}, "memory", "--hold=32Mi")

	n.run(ns, "grower", corev1.ResourceRequirements{}, "memory", "--grow=500Mi")
	pod := n.evicted(ns, "grower")
	want := regexp.MustCompile(`^The node was low on resource: memory\. Threshold quantity: 100Mi, available: \d+[KMG]i\. Container c was using \d+[KMG]i, request is 0, has larger consumption of memory\. $`)
	if !want.MatchString(pod.Status.Message) {
		t.Errorf("message %q", pod.Status.Message)
	}
	if c := condition(pod, corev1.DisruptionTarget); c == nil || c.Status != corev1.ConditionTrue ||
		c.Reason != "TerminationByKubelet" || c.Message != pod.Status.Message {
		t.Errorf("condition %+v", c)
	}
	n.event("EvictionThresholdMet", "Attempting to reclaim memory")
	n.pressed(corev1.ConditionTrue)
	n.event("NodeHasInsufficientMemory", "")
	if said := n.explain("pod", "grower", "--namespace", ns); !strings.Contains(said, "allocatableMemory.available") ||
		!strings.Contains(said, ns+"/grower") {
		t.Errorf("explain says\n%s", said)
	}
	n.pressed(corev1.ConditionFalse)

	n.run(ns, "hung", corev1.ResourceRequirements{}, "memory", "--hold=16Mi", "--grow=60Mi")
	runtime, err := process.Listener(n.RuntimeSocket())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(runtime, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn := func() { _ = syscall.Kill(runtime, syscall.SIGCONT) }
	t.Cleanup(goOn)
	hung, err := n.API.CoreV1().Pods(ns).Get(t.Context(), "hung", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	procs := filepath.Join(mount, "memory", n.pods(), "besteffort", "pod"+string(hung.UID))
	rig.Eventually(t, soon, "its processes are gone", func(context.Context) error {
		groups, err := filepath.Glob(procs + "/*/cgroup.procs")
		if err != nil || len(groups) == 0 {
			return fmt.Errorf("%v, %v", groups, err)
		}
		for _, file := range groups {
			if text, err := os.ReadFile(file); err != nil || len(text) > 0 {
				return fmt.Errorf("%s: %q, %v", file, text, err)
			}
		}
		return nil
	})
	goOn()
	if pod := n.evicted(ns, "hung"); pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("it was restarted: %+v", pod.Status.ContainerStatuses)
	}
	steady, err := n.API.CoreV1().Pods(ns).Get(t.Context(), "steady", metav1.GetOptions{})
	if err != nil || steady.Status.Phase != corev1.PodRunning || steady.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the one who did not grow: %+v, %v", steady.Status, err)
	}
	if kills := n.text("memory", n.pods(), "memory.oom_control"); !strings.Contains(kills, "oom_kill 0") {
		t.Errorf("the kernel killed: %s", kills)
	}
}

func condition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}

// explain runs `plimsoll explain` and returns its output.
func (n node) explain(args ...string) string {
	n.t.Helper()
	out, err := n.Plimsoll("explain", append(args, "--kubeconfig", n.Kubeconfig)...)
	if err != nil {
		n.t.Fatalf("%v\n%s", err, out)
	}
	return out
}
