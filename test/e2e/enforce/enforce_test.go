//go:build e2e

// Package enforce compares allocatable and reservations with what the kernel enforces. An agent gets one configuration
// after the other, and the test reads the values that it set from the files of cgroup v1. It needs root.
//
//	make build && go test -tags e2e ./test/e2e/enforce
//
// Package lab tests the same on cgroup v2 and with systemd, in guests.
package enforce

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	ours "github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
	"github.com/plimsoll-dev/plimsoll/test/freeport"
)

func TestMain(m *testing.M) { os.Exit(rig.Main(m, "line", rig.Options{})) }

const (
	head  = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	image = ours.Demo
	mount = "/sys/fs/cgroup"
	soon  = 2 * time.Minute // bounds what takes seconds on an idle machine
)

// node is the instance, whose state is read from files.
type node struct {
	*rig.Cluster
	t *testing.T
}

func at(t *testing.T) node {
	c := rig.Shared(t)
	if _, err := os.Stat(mount + "/cpu/cpu.shares"); err != nil {
		t.Skip("reads cgroup v1 files, and this machine has none")
	}
	return node{c, t}
}

// generated is the configuration that `up` wrote for the agent, before the first change.
var generated []byte

// configure adds fields to the configuration that `up` wrote, and waits until an agent with them runs. Pods keep
// running.
func (n node) configure(text string) {
	n.t.Helper()
	file := filepath.Join(n.StateDir, "agent.yaml")
	if generated == nil {
		var err error
		if generated, err = os.ReadFile(file); err != nil {
			n.t.Fatal(err)
		}
		generated = []byte(strings.ReplaceAll(string(generated), "failSwapOn: false\n", ""))
	}
	if err := os.WriteFile(file, []byte(string(generated)+text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	before := n.PID(n.t, "agent")
	if err := syscall.Kill(before, syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	rig.Eventually(n.t, soon, "a new agent", func(context.Context) error {
		if after := n.PID(n.t, "agent"); after == before || after == 0 {
			return fmt.Errorf("pid %d, was %d", after, before)
		}
		return nil
	})
}

// want waits until a file of the kernel has the wanted content.
func (n node) want(controller, group, file, want string) {
	n.t.Helper()
	path := filepath.Join(mount, controller, group, file)
	rig.Eventually(n.t, soon, path, func(context.Context) error {
		text, err := os.ReadFile(path)
		if got := strings.TrimSpace(string(text)); err == nil && got != want {
			return fmt.Errorf("%s, want %s", got, want)
		}
		return err
	})
}

func (n node) read(controller, group, file string) int64 {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(mount, controller, group, file))
	if err != nil {
		n.t.Fatal(err)
	}
	value, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		n.t.Fatal(err)
	}
	return value
}

func (n node) pods() string { return n.CgroupRoot() + "/kubepods" }

func (n node) node() *corev1.Node {
	n.t.Helper()
	node, err := n.API.CoreV1().Nodes().Get(n.t.Context(), n.NodeName, metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return node
}

// event waits for an Event of the node.
func (n node) event(reason, part string) {
	n.t.Helper()
	rig.Eventually(n.t, soon, reason, func(ctx context.Context) error {
		events, err := n.API.CoreV1().Events("").List(ctx,
			metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,reason=" + reason})
		if err != nil {
			return err
		}
		var said []string
		for _, e := range events.Items {
			if strings.Contains(e.Message, part) {
				return nil
			}
			said = append(said, e.Message)
		}
		return fmt.Errorf("want %q among %q", part, said)
	})
}

// run creates a pod of the workload image and waits until it is ready.
func (n node) run(ns, name string, r corev1.ResourceRequirements, args ...string) *corev1.Pod {
	n.t.Helper()
	grace := int64(1)
	pod, err := n.API.CoreV1().Pods(ns).Create(n.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{
			Name: "c", Image: image, Args: args, Resources: r,
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	rig.Eventually(n.t, soon, name+" runs", func(ctx context.Context) error {
		if pod, err = n.API.CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%s: %s", pod.Status.Phase, pod.Status.Message)
		}
		return nil
	})
	return pod
}

func list(cpu, memory string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for name, text := range map[corev1.ResourceName]string{"cpu": cpu, "memory": memory} {
		if text != "" {
			out[name] = resource.MustParse(text)
		}
	}
	return out
}

// agent runs an agent that must fail at its start, and returns its output and its error.
func (n node) agent(text string) (string, int) {
	n.t.Helper()
	file := filepath.Join(n.t.TempDir(), "bad.yaml")
	if err := os.WriteFile(file, []byte(head+text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := rig.StartClock().Limit(n.t.Context(), soon)
	defer cancel()
	cmd := exec.CommandContext(ctx, rig.Binary(n.t), "agent", "--kubeconfig", n.Kubeconfig, "--config", file,
		"--root-dir", n.t.TempDir(), "--hostname-override", "refused", "--container-runtime-endpoint", n.RuntimeSocket())
	out, err := cmd.CombinedOutput()
	if err == nil {
		n.t.Fatalf("the agent took\n%s", text)
	}
	return string(out), cmd.ProcessState.ExitCode()
}

// An invalid file is refused with all of its problems at once, and nothing starts.
func TestBadConfiguration(t *testing.T) {
	n := at(t)
	out, code := n.agent(`
systemReserved: {cpu: lots, memory: -1Gi}
evictionHard: {memory.free: 1Gi}
enforceNodeAllocatable: [pods, kube-reserved, everything]
cpuCFSQuotaPeriod: 2s
memoryReservationPolicy: TieredReservation
qosReserved: {cpu: 10%}
memorySwap: {swapBehavior: UnlimitedSwap}
`)
	for _, want := range []string{
		`systemReserved.cpu: "lots"`, `systemReserved.memory: "-1Gi"`, `evictionHard.memory.free: "1Gi"`,
		`"kube-reserved": needs kubeReservedCgroup`,
		`enforceNodeAllocatable: "everything"`, "cpuCFSQuotaPeriod: 2s", "memoryReservationPolicy", "qosReserved.cpu",
		"memorySwap.swapBehavior",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in:\n%s", want, out)
		}
	}
	if code != 2 {
		t.Errorf("exit code %d, want 2", code)
	}
}

// A reserved cgroup that lacks a controller, reservations above capacity and CPUs that do not exist are reported in one
// error. Each lacking controller is named with its path and the command that makes the cgroup. Nothing is created.
func TestReservedGroups(t *testing.T) {
	n := at(t)
	group := n.CgroupRoot() + "/system"
	bad := fmt.Sprintf(`
cgroupRoot: %s/refused
systemReserved: {cpu: 250m, memory: 500Mi}
systemReservedCgroup: %s
enforceNodeAllocatable: [pods, system-reserved]
port: %d
healthzPort: %d
failSwapOn: false
`, n.CgroupRoot(), group, freeport.ForTest(t), freeport.ForTest(t))
	if err := os.MkdirAll(filepath.Join(mount, "memory", group), 0o755); err != nil { // an existing cgroup is not named
		t.Fatal(err)
	}
	out, code := n.agent(bad + "kubeReserved: {memory: 100Ti}\nsingleProcessOOMKill: false\n")
	var commands []string
	for _, line := range strings.Split(out, "\n") {
		if controller, rest, ok := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "- "), " at "); ok &&
			strings.HasPrefix(strings.TrimSpace(line), "- ") {
			path, command, _ := strings.Cut(rest, ": ")
			if path != filepath.Join(mount, controller, group) {
				t.Errorf("%s is said to be at %s", controller, path)
			}
			commands = append(commands, command)
		}
	}
	for _, want := range []string{"cpu", "cpuacct", "cpuset", "pids", "systemd"} {
		if !strings.Contains(out, "- "+want+" at ") {
			t.Errorf("%s is not named:\n%s", want, out)
		}
	}
	for _, want := range []string{"memory: reservations and eviction threshold of 104858200Mi",
		"singleProcessOOMKill: false: needs cgroup v2", "--create-missing-cgroups"} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in:\n%s", want, out)
		}
	}
	if strings.Contains(out, "- memory at") || code != 1 {
		t.Errorf("exit code %d:\n%s", code, out)
	}
	if _, err := os.Stat(filepath.Join(mount, "cpu", n.CgroupRoot(), "refused")); err == nil {
		t.Error("groups were made before the refusal")
	}
	for _, command := range commands {
		if out, err := exec.CommandContext(t.Context(), "/bin/sh", "-ec", command).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", command, err, out)
		}
	}

	// The values of the default configuration, and those of another one.
	n.configure(fmt.Sprintf("failSwapOn: false\nsystemReserved: {cpu: 250m, memory: 500Mi}\nsystemReservedCgroup: %s\n"+
		"enforceNodeAllocatable: [pods, system-reserved]\n", group))
	n.want("cpu", group, "cpu.shares", "256")
	n.want("memory", group, "memory.limit_in_bytes", "524288000")
	capacity := n.node().Status.Capacity
	memory, cpus := capacity.Memory().Value(), capacity.Cpu().MilliValue()
	n.want("memory", n.pods(), "memory.limit_in_bytes", fmt.Sprint(memory-500<<20))
	n.want("cpu", n.pods(), "cpu.shares", fmt.Sprint((cpus-250)*1024/1000))
	n.event("NodeAllocatableEnforced", n.pods()+": limit is")
	n.event("NodeAllocatableEnforced", group+": limit is 500Mi")
	rig.Eventually(t, soon, "allocatable", func(context.Context) error {
		if got, want := n.node().Status.Allocatable.Memory().Value(), memory-(500+100)<<20; got != want {
			return fmt.Errorf("memory %d, want %d", got, want)
		}
		return nil
	})

	n.configure(fmt.Sprintf("failSwapOn: false\nsystemReserved: {cpu: \"1\", memory: 1Gi, pid: \"1000\"}\n"+
		"systemReservedCgroup: %s\nenforceNodeAllocatable: [pods, system-reserved]\n", group))
	n.want("cpu", group, "cpu.shares", "1024")
	n.want("memory", group, "memory.limit_in_bytes", "1073741824")
	n.want("pids", group, "pids.max", "1000")
	n.want("memory", n.pods(), "memory.limit_in_bytes", fmt.Sprint(memory-1<<30))

	// Compressible: of kubeReserved only the CPU is enforced. Pods, which enforceNodeAllocatable does not name, may use
	// all memory.
	n.configure(fmt.Sprintf("failSwapOn: false\nkubeReserved: {cpu: 500m, memory: 2Gi}\nkubeReservedCgroup: %s\n"+
		"enforceNodeAllocatable: [kube-reserved-compressible]\n", group))
	n.want("cpu", group, "cpu.shares", "512")
	n.want("memory", group, "memory.limit_in_bytes", "1073741824") // unchanged
	n.want("memory", n.pods(), "memory.limit_in_bytes", fmt.Sprint(memory))
	n.want("cpu", n.pods(), "cpu.shares", fmt.Sprint(cpus*1024/1000))
}

// Values of pods and QoS tiers with settings other than the defaults.
func TestPodsAndTiers(t *testing.T) {
	n := at(t)
	ns := n.Namespace(t)
	n.configure("failSwapOn: false\npodPidsLimit: 64\ncpuCFSQuotaPeriod: 50ms\nfeatureGates: {QOSReserved: true}\n" +
		"qosReserved: {memory: 50%}\nmaxPods: 20\npodsPerCore: 4\n")
	full := n.run(ns, "full", corev1.ResourceRequirements{Limits: list("500m", "128Mi")}, "sleep", "infinity")
	burst := n.run(ns, "burst", corev1.ResourceRequirements{Requests: list("100m", "64Mi")}, "sleep", "infinity")
	n.run(ns, "more", corev1.ResourceRequirements{Requests: list("200m", "32Mi"), Limits: list("", "64Mi")}, "sleep",
		"infinity")

	group := n.pods() + "/pod" + string(full.UID)
	n.want("cpu", group, "cpu.cfs_quota_us", "25000")
	n.want("cpu", group, "cpu.cfs_period_us", "50000")
	n.want("memory", group, "memory.limit_in_bytes", "134217728")
	n.want("pids", group, "pids.max", "64")
	n.want("pids", n.pods()+"/burstable/pod"+string(burst.UID), "pids.max", "64")
	n.want("cpuset", n.pods(), "cpuset.cpus", strings.TrimSpace(n.text("cpuset", n.CgroupRoot(), "cpuset.cpus")))

	// The Burstable tier's CPU weight follows from its pods' requests. With qosReserved at 50 %, the tiers below a
	// class may not use half of the memory that it requests.
	n.want("cpu", n.pods()+"/burstable", "cpu.shares", "307")
	memory := n.node().Status.Capacity.Memory().Value()
	n.want("memory", n.pods()+"/burstable", "memory.limit_in_bytes", fmt.Sprint(memory-64<<20))
	n.want("memory", n.pods()+"/besteffort", "memory.limit_in_bytes", fmt.Sprint(memory-(64+48)<<20))
	n.Kubectl(t, "delete", "pod", "more", "-n", ns)
	n.want("cpu", n.pods()+"/burstable", "cpu.shares", "102")
	n.want("memory", n.pods()+"/besteffort", "memory.limit_in_bytes", fmt.Sprint(memory-(64+32)<<20))
	if cpus := n.node().Status.Capacity.Cpu().Value(); cpus < 5 {
		if got := n.node().Status.Capacity.Pods().Value(); got != 4*cpus {
			t.Errorf("%d pods on %d CPUs, want 4 for each", got, cpus)
		}
	}

	// A new agent finds the running pods and keeps the tier's weight.
	n.configure("failSwapOn: false\n")
	n.want("cpu", n.pods()+"/burstable", "cpu.shares", "102")
}

func (n node) text(controller, group, file string) string {
	n.t.Helper()
	text, err := os.ReadFile(filepath.Join(mount, controller, group, file))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// Allocatable is lowered below what a running pod uses (k/k #141609). The pod keeps running. The limit stays above its
// usage and comes down when the pod has ended.
func TestLoweringUnderARunningPod(t *testing.T) {
	n := at(t)
	ns := n.Namespace(t)
	n.configure("failSwapOn: false\n")
	pod := n.run(ns, "hog", corev1.ResourceRequirements{}, "memory", "--hold", "300Mi")
	rig.Eventually(t, soon, "the pod holds its memory", func(context.Context) error {
		if used := n.read("memory", n.pods(), "memory.usage_in_bytes"); used < 300<<20 {
			return fmt.Errorf("%d bytes", used)
		}
		return nil
	})
	memory := n.node().Status.Capacity.Memory().Value()
	const left = 200 << 20
	n.configure(fmt.Sprintf("failSwapOn: false\nsystemReserved: {memory: \"%d\"}\n", memory-left))
	n.event("FailedNodeAllocatableEnforcement", "is above the target of 200Mi")
	if limit := n.read("memory", n.pods(), "memory.limit_in_bytes"); limit < 300<<20 || limit > memory {
		t.Errorf("the limit is %d while 300Mi are used", limit)
	}
	rig.Eventually(t, soon, "the metric tells", func(context.Context) error {
		out, err := n.TryKubectl(t, "get", "--raw", "/api/v1/nodes/"+n.NodeName+"/proxy/metrics")
		if err != nil {
			return nil // kube-apiserver refuses to proxy to a node on loopback; the agent's own tests read it
		}
		if !strings.Contains(out, "kubelet_cgroup_memory_limit_excess_bytes") {
			return fmt.Errorf("no metric")
		}
		return nil
	})
	pod, err := n.API.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil || pod.Status.Phase != corev1.PodRunning || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Fatalf("the pod did not go on: %+v, %v", pod.Status, err)
	}
	n.Kubectl(t, "delete", "pod", "hog", "-n", ns)
	n.want("memory", n.pods(), "memory.limit_in_bytes", fmt.Sprint(left))
	n.event("NodeAllocatableEnforced", n.pods()+": limit is 200Mi, usage")
}
