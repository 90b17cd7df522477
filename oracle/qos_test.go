package oracle

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	v1qos "k8s.io/kubernetes/pkg/apis/core/v1/helper/qos"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	kubeletqos "k8s.io/kubernetes/pkg/kubelet/qos"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

var (
	qosPods = flag.Int("qos.pods", 100_000, "random pods whose class, cgroup values and OOM scores are judged")
	qosSeed = flag.Uint64("qos.seed", 1, "seed of the random pods")
)

// TestQoS compares class, OOM scores and the values of a pod's cgroup with the kubelet's own functions.
func TestQoS(t *testing.T) {
	random := rand.New(rand.NewPCG(*qosSeed, 0))
	classes := map[qos.Class]int{}
	for n := range *qosPods {
		pod := qosPod(random)
		p := translate.QoSPod(pod)
		class := qos.ClassOf(p)
		classes[class]++
		if want := v1qos.GetPodQOS(pod); string(class) != string(want) {
			t.Fatalf("seed %d, pod %d: class %s, want %s\n%+v", *qosSeed, n, class, want, pod.Spec)
		}
		judgeScores(t, n, random, pod, p, class)
		judgeValues(t, n, random, pod, p)
		if t.Failed() {
			t.Fatalf("seed %d, pod %d:\n%+v", *qosSeed, n, pod.Spec)
		}
	}
	t.Logf("seed %d: %v", *qosSeed, classes)
}

func judgeScores(t *testing.T, n int, random *rand.Rand, pod *corev1.Pod, p qos.Pod, class qos.Class) {
	t.Helper()
	memory := int64(4 << 30)
	if random.IntN(2) == 0 {
		memory = 1 + random.Int64N(1<<(20+random.IntN(26)))
	}
	judge := func(c *corev1.Container, ours qos.Container) {
		want := kubeletqos.GetContainerOOMScoreAdjust(pod, c, memory)
		if class == qos.Burstable {
			// If containers request more than their pod, which the API server refuses, the kubelet's number exceeds
			// what the kernel accepts; ours stops at 999.
			want = min(want, 999)
		}
		if got := qos.OOMScoreAdj(p, ours, unit.Bytes(memory)); got != want {
			t.Errorf("pod %d: container %s: oom_score_adj %d, want %d", n, c.Name, got, want)
		}
	}
	for i := range pod.Spec.Containers {
		judge(&pod.Spec.Containers[i], p.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		judge(&pod.Spec.InitContainers[i], p.Init[i])
	}
}

// judgeValues compares the values for the kernel. Where the kubelet writes nothing, or a value that means no limit,
// ours is unlimited.
func judgeValues(t *testing.T, n int, random *rand.Rand, pod *corev1.Pod, p qos.Pod) {
	t.Helper()
	enforce := random.IntN(5) > 0
	period := []time.Duration{100 * time.Millisecond, 5 * time.Millisecond}[random.IntN(2)]
	protect, tiered := random.IntN(2) == 0, random.IntN(2) == 0
	reservation := kubeletconfig.NoneMemoryReservationPolicy
	if tiered {
		reservation = kubeletconfig.TieredReservationMemoryReservationPolicy
	}
	want := cm.ResourceConfigForPod(pod, enforce, uint64(period.Microseconds()), protect, reservation)
	got := qos.PodValues(p, qos.Policy{CFSQuota: enforce, CFSPeriod: period, Memory: qos.MemoryPolicy{On: protect,
		Tiered: tiered}})
	for file, ours := range map[string]unit.Amount[unit.Bytes]{cm.Cgroup2MemoryMin: got.MemoryMin,
		cm.Cgroup2MemoryLow: got.MemoryLow} {
		text := ""
		if bytes, ok := ours.Get(); ok {
			text = fmt.Sprint(int64(bytes))
		}
		if text != want.Unified[file] {
			t.Errorf("pod %d: %s %q, want %q", n, file, text, want.Unified[file])
		}
	}
	if uint64(got.CPUShares.OrZero()) != *want.CPUShares {
		t.Errorf("pod %d: shares %v, want %d", n, got.CPUShares, *want.CPUShares)
	}
	quota, bound := got.CPUQuota.Get()
	if wanted := positive(want.CPUQuota); bound != (wanted > 0) || quota.Microseconds() != wanted {
		t.Errorf("pod %d: quota %v, want %d microseconds", n, got.CPUQuota, wanted)
	}
	memory, bound := got.Memory.Get()
	if wanted := positive(want.Memory); bound != (wanted > 0) || int64(memory) != wanted {
		t.Errorf("pod %d: memory %v, want %d", n, got.Memory, wanted)
	}
	if len(got.HugePages) != len(want.HugePageLimit) {
		t.Errorf("pod %d: huge pages %v, want %v", n, got.HugePages, want.HugePageLimit)
	}
	for size, limit := range want.HugePageLimit {
		if int64(got.HugePages[unit.Bytes(size)]) != limit {
			t.Errorf("pod %d: huge pages %v, want %v", n, got.HugePages, want.HugePageLimit)
		}
	}
}

func positive(v *int64) int64 {
	if v == nil {
		return 0
	}
	return max(0, *v)
}

// qosPod generates a pod: containers, init containers and sidecars, pod-level resources, overhead, priority.
func qosPod(random *rand.Rand) *corev1.Pod {
	always := corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{}
	for i := range 1 + random.IntN(3) {
		c := corev1.Container{Name: fmt.Sprint("c", i), Resources: qosRequirements(random)}
		if random.IntN(20) == 0 {
			c.RestartPolicy = &always // always restarts, but is no sidecar
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
	}
	for i := range random.IntN(3) {
		c := corev1.Container{Name: fmt.Sprint("i", i), Resources: qosRequirements(random)}
		if random.IntN(2) == 0 {
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	if random.IntN(4) == 0 {
		level := qosRequirements(random)
		delete(level.Limits, "example.com/gpu") // the API server refuses it at pod level
		delete(level.Requests, "example.com/gpu")
		pod.Spec.Resources = &level
	}
	if random.IntN(4) == 0 {
		pod.Spec.Overhead = qosList(random)
	}
	if random.IntN(10) == 0 {
		priority := int32(2_000_001_000)
		pod.Spec.Priority, pod.Spec.PriorityClassName = &priority, "system-node-critical"
	}
	return pod
}

func qosRequirements(random *rand.Rand) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Requests: qosList(random), Limits: qosList(random)}
	if random.IntN(2) == 0 {
		r.Requests = r.Limits.DeepCopy()
	}
	return r
}

func qosList(random *rand.Rand) corev1.ResourceList {
	list := corev1.ResourceList{}
	// Round amounts are frequent enough that containers agree; other amounts test the arithmetic.
	if random.IntN(3) > 0 {
		cpu := pick(random, 0, 1, 5, 100, 250, 500, 1000, 3000, 300_000, random.Int64N(1<<random.IntN(20)))
		list[corev1.ResourceCPU] = *resource.NewMilliQuantity(cpu, resource.DecimalSI)
	}
	if random.IntN(3) > 0 {
		memory := pick(random, 0, 1, 1<<20, 128<<20, 1<<30, 5<<30, random.Int64N(1<<random.IntN(42)))
		list[corev1.ResourceMemory] = *resource.NewQuantity(memory, resource.BinarySI)
	}
	if random.IntN(6) == 0 {
		list["hugepages-2Mi"] = *resource.NewQuantity(int64(random.IntN(4))<<21, resource.BinarySI)
	}
	if random.IntN(6) == 0 {
		list["example.com/gpu"] = *resource.NewQuantity(1, resource.DecimalSI)
	}
	return list
}
