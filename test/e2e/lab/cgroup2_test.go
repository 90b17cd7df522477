//go:build e2e

package lab

import (
	"context"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/plimsoll-dev/plimsoll/internal/image"
	"github.com/plimsoll-dev/plimsoll/lab"
	"github.com/plimsoll-dev/plimsoll/lab/wire"
	"github.com/plimsoll-dev/plimsoll/test/e2e/rig"
)

// TestCgroup2WithSystemd reads the values that the agent, the runtime and systemd set for three pods and a reservation,
// from the files of a real cgroup v2. TestCgroup2WithCgroupfs does the same without systemd.
func TestCgroup2WithSystemd(t *testing.T) { cgroup2(t, lab.Systemd, "systemd", systemdNames) }

// Names of groups. UID and ID stand for the UID of the pod and the ID of the container.
type names struct{ node, burstable, bestEffort, pod, container, tasks string }

var systemdNames = names{"kubepods.slice", "kubepods.slice/kubepods-burstable.slice",
	"kubepods.slice/kubepods-besteffort.slice", "TIER-podUID.slice", "cri-containerd-ID.scope", "1228"}

// The machine has two CPUs, 1 GiB of memory, of which 16 MiB are huge pages, and 640 MiB of swap.
var cgroup2Config = map[string]any{
	"systemReserved":          map[string]string{"cpu": "250m", "memory": "500Mi"},
	"systemReservedCgroup":    "/system.slice",
	"enforceNodeAllocatable":  []string{"pods", "system-reserved"},
	"evictionHard":            map[string]string{"memory.available": "100Mi"},
	"podPidsLimit":            512,
	"memorySwap":              map[string]string{"swapBehavior": "LimitedSwap"},
	"featureGates":            map[string]bool{"MemoryQoS": true, "QOSReserved": true},
	"qosReserved":             map[string]string{"memory": "50%"},
	"memoryReservationPolicy": "TieredReservation",
}

var cgroup2Pods = map[string]corev1.ResourceRequirements{
	"best":  {},
	"burst": {Requests: amounts("250m", "32Mi"), Limits: amounts("", "128Mi")},
	"full":  {Requests: hugeToo(amounts("500m", "128Mi")), Limits: hugeToo(amounts("500m", "128Mi"))},
}

// hugeToo adds two huge pages.
func hugeToo(list corev1.ResourceList) corev1.ResourceList {
	list["hugepages-2Mi"] = resource.MustParse("4Mi")
	return list
}

// cgroup2Want has each file's value, in the order of cgroup2Files. The node has 1750m CPU allocatable, and the memory
// that the system reservation leaves. Both drivers give the same values, except that systemd gives every scope a limit
// of tasks (15 % of the machine's), which is TASKS here. containerd does not limit the huge pages of containers unless
// it is configured to (disable_hugetlb_controller). A Burstable container may use swap in proportion to its request of
// memory: 640Mi * 32Mi / 1Gi. Others get none. Burstable pods may not use half of what Guaranteed ones request of the
// node's memory, and BestEffort pods may not use half of what Burstable ones request either.
const cgroup2Want = `
system 10 max/100000 524288000 524288000 0 max max 0 max max
node 69 max/100000 549453824 167772160 0 max max 0 8192 16777216
burstable 10 max/100000 482344960 0 33554432 max max 0 max max
besteffort 1 max/100000 465567744 0 0 max max 0 max max
best 1 max/100000 max 0 0 max max 0 512 0
best's 1 max/100000 max 0 0 max 0 1 TASKS max
burst 10 max/100000 134217728 0 33554432 max max 0 512 0
burst's 10 max/100000 134217728 0 33554432 124149760 20971520 1 TASKS max
full 20 50000/100000 134217728 134217728 0 max max 0 512 4194304
full's 20 50000/100000 134217728 134217728 0 max 0 1 TASKS max
`

var cgroup2Files = []string{"cpu.weight", "cpu.max", "memory.max", "memory.min", "memory.low", "memory.high",
	"memory.swap.max", "memory.oom.group", "pids.max", "hugetlb.2MB.max"}

// cgroup2 compares all values of one driver with the table.
func cgroup2(t *testing.T, init wire.InitKind, driver string, n names) {
	t.Parallel()
	c := rig.Shared(t)
	ns := c.Namespace(t)
	node := c.Join(t, lab.Boot(t, "swap", lab.Options{Init: init, Name: driver}), rig.JoinOptions{CgroupDriver: driver,
		Config: cgroup2Config, AgentFlags: []string{"--create-missing-cgroups"}})
	for name, r := range cgroup2Pods {
		runPod(t, c, ns, name, node.Name, r)
	}
	type row struct{ name, group string }
	rows := []row{{"system", "system.slice"}, {"node", n.node}, {"burstable", n.burstable}, {"besteffort", n.bestEffort}}
	for _, name := range []string{"best", "burst", "full"} {
		pod, err := c.API.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		tier := map[string]string{"best": n.bestEffort, "burst": n.burstable, "full": n.node}[name]
		group := path.Join(tier, n.of(n.pod, tier, pod.UID))
		_, id, _ := strings.Cut(pod.Status.ContainerStatuses[0].ContainerID, "://")
		inner := path.Join(group, strings.Replace(n.container, "ID", id, 1))
		rows = append(rows, row{name, group}, row{name + "'s", inner})
		wantScore(t, node, name, `head -1 "/sys/fs/cgroup/`+inner+`/cgroup.procs"`, cgroup2Scores[name])
	}
	for _, program := range []string{"plimsoll", "containerd"} {
		wantScore(t, node, program, "pgrep -o -x "+program, "-999")
	}
	want := strings.ReplaceAll(cgroup2Want[1:], "TASKS", n.tasks)
	rig.Eventually(t, podWithin, "the kernel's files hold the values", func(ctx context.Context) error {
		var table strings.Builder
		for _, r := range rows {
			const script = `cd "/sys/fs/cgroup/$0" && for f; do if [ -e $f ]; then tr " " / < $f; else echo -; fi; done`
			values, err := node.Output(ctx, append([]string{"sh", "-c", script, r.group}, cgroup2Files...)...)
			if err != nil {
				return err
			}
			fmt.Fprintln(&table, r.name, strings.Join(strings.Fields(values), " "))
		}
		if got := table.String(); got != want {
			return fmt.Errorf("%s\nthe kernel's files say\n%swant\n%s", strings.Join(cgroup2Files, " "), got, want)
		}
		return nil
	})
}

// wantScore waits until a process has the given OOM score. The command pid prints its id.
func wantScore(t *testing.T, node *rig.GuestNode, of, pid, want string) {
	t.Helper()
	rig.Eventually(t, podWithin, "oom_score_adj of "+of, func(ctx context.Context) error {
		score, err := node.Output(ctx, "sh", "-c", "cat /proc/$("+pid+")/oom_score_adj")
		if score = strings.TrimSpace(score); err == nil && score != want {
			err = fmt.Errorf("%s, want %s", score, want)
		}
		return err
	})
}

// 1000 - 1000 * 32Mi / 1Gi is 969 (968.75, cut in the division).
var cgroup2Scores = map[string]string{"best": "1000", "burst": "969", "full": "-997"}

// of replaces UID and ID in the name of a group.
func (n names) of(pattern, tier string, uid types.UID) string {
	if strings.HasSuffix(pattern, ".slice") {
		uid = types.UID(strings.ReplaceAll(string(uid), "-", "_"))
	}
	return strings.NewReplacer("TIER", strings.TrimSuffix(path.Base(tier), ".slice"), "UID", string(uid)).Replace(pattern)
}

func amounts(cpu, memory string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for name, text := range map[corev1.ResourceName]string{"cpu": cpu, "memory": memory} {
		if text != "" {
			list[name] = resource.MustParse(text)
		}
	}
	return list
}

// podWithin bounds the time until a pod is Ready. Chosen: some 6 s on two idle cores, most of it in runc, without
// hardware virtualization.
const podWithin = 3 * time.Minute

// runPod creates a pod of the workload image on a node, and waits until it is Ready.
func runPod(t *testing.T, c *rig.Cluster, ns, name, node string, r corev1.ResourceRequirements) {
	t.Helper()
	grace := int64(1)
	createReady(t, c, ns, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{NodeName: node, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "c", Image: image.Demo, Args: []string{"sleep", "infinity"}, Resources: r}}},
	})
}

// createReady creates a pod and returns it when it is Ready.
func createReady(t *testing.T, c *rig.Cluster, ns string, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	pod, err := c.API.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rig.Eventually(t, podWithin, pod.Name+" is Ready", func(ctx context.Context) error {
		if pod, err = c.API.CoreV1().Pods(ns).Get(ctx, pod.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		return podReady(pod)
	})
	return pod
}

func podReady(pod *corev1.Pod) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	return fmt.Errorf("%s %s: %v", pod.Status.Phase, pod.Status.Reason, pod.Status.ContainerStatuses)
}
