package oracle

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"reflect"
	"testing"
	"time"
	"unsafe"

	"github.com/go-logr/logr"
	cadvisorapi "github.com/google/cadvisor/info/v1"
	libcontainercgroups "github.com/opencontainers/cgroups"
	"go.opentelemetry.io/otel/trace/noop"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	critesting "k8s.io/cri-api/pkg/apis/testing"
	"k8s.io/kubernetes/pkg/features"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubelet/kuberuntime"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

var (
	valuesCases = flag.Int("values.cases", 20_000,
		"random pods whose containers' values are judged, and random nodes whose tiers' values are")
	valuesSeed = flag.Uint64("values.seed", 1, "seed of the random pods and nodes")
)

// upstreamUnified is upstream's own variable: whether this machine has cgroup v2 only.
//
//go:linkname upstreamUnified github.com/opencontainers/cgroups.isUnified
var upstreamUnified bool

//go:linkname upstreamResources k8s.io/kubernetes/pkg/kubelet/kuberuntime.(*kubeGenericRuntimeManager).generateLinuxContainerResources
func upstreamResources(manager unsafe.Pointer, ctx context.Context, pod *corev1.Pod, c *corev1.Container,
	memoryQoS bool) *runtimeapi.LinuxContainerResources

// believeUnified makes upstream use cgroup v2, or v1, until the test ends.
func believeUnified(t *testing.T, unified bool) {
	t.Helper()
	found := libcontainercgroups.IsCgroup2UnifiedMode() // it detects the version only once
	t.Cleanup(func() { upstreamUnified = found })
	upstreamUnified = unified
	if libcontainercgroups.IsCgroup2UnifiedMode() != unified {
		t.Fatal("upstream keeps elsewhere what it has found of cgroups")
	}
}

// valuesCase is a random node, with what matters to the values of containers and QoS cgroups.
type valuesCase struct {
	memory, swap, allocatable int64
	factor                    float64
	behavior                  string
	tiered                    bool
	quota                     bool
	period                    time.Duration
	accounted                 bool
}

func drawValues(random *rand.Rand) valuesCase {
	c := valuesCase{
		memory: 1 + random.Int64N(1<<(20+random.IntN(26))), factor: pick(random, 0.9, 1, 0.5, 0.1, random.Float64()),
		behavior: pick(random, "LimitedSwap", "LimitedSwap", "NoSwap", ""), tiered: random.IntN(2) == 0,
		quota: random.IntN(5) > 0, period: pick(random, 100*time.Millisecond,
			5*time.Millisecond), accounted: random.IntN(8) > 0,
	}
	c.swap = pick(random, 0, c.memory, random.Int64N(1<<(20+random.IntN(26))))
	c.allocatable = pick(random, 0, c.memory, random.Int64N(c.memory+1))
	return c
}

func (c valuesCase) policy(unified, memoryQoS bool) qos.Policy {
	return qos.Policy{
		CFSQuota: c.quota, CFSPeriod: c.period,
		Memory: qos.MemoryPolicy{On: memoryQoS, Tiered: c.tiered, Factor: c.factor, NoLimit: unit.Bytes(c.allocatable),
			PageSize: unit.Bytes(os.Getpagesize())},
		Swap: qos.SwapPolicy{Accounted: c.accounted, Unified: unified, Limited: c.behavior == "LimitedSwap",
			Machine: unit.Bytes(c.memory), Total: unit.Bytes(c.swap)},
	}
}

func (c valuesCase) reservation() kubeletconfig.MemoryReservationPolicy {
	if c.tiered {
		return kubeletconfig.TieredReservationMemoryReservationPolicy
	}
	return kubeletconfig.NoneMemoryReservationPolicy
}

// runtimeManager is upstream's, used only for the values of containers.
func runtimeManager(t *testing.T) kuberuntime.KubeGenericRuntime {
	t.Helper()
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
		features.KubeletEnsureSecretPulledImages, false)
	together := true
	m, _, err := kuberuntime.NewKubeGenericRuntimeManager(t.Context(), nil, nil, nil, nil, t.TempDir(), "",
		&cadvisorapi.MachineInfo{}, nil, 0, nil, nil, nil, nil, true, nil, 0, 0, "", nil, "", "",
		&together, true, metav1.Duration{}, critesting.NewFakeRuntimeService(), critesting.NewFakeImageService(),
		cm.NewFakeContainerManager(), nil, nil, false, "", nil, 0, "",
		nil, noop.NewTracerProvider(), nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestContainerValues compares the resources that the runtime must set for a container with the kubelet's, on cgroup v1
// and v2: shares, quota, memory, swap, huge pages, memory protection and throttling.
func TestContainerValues(t *testing.T) {
	for name, unified := range map[string]bool{"v1": false, "v2": true} {
		t.Run(name, func(t *testing.T) {
			believeUnified(t, unified)
			random := rand.New(rand.NewPCG(*valuesSeed, 0))
			manager := runtimeManager(t)
			seen := map[string]int{}
			for n := range *valuesCases {
				c, pod := drawValues(random), qosPod(random)
				if random.IntN(10) == 0 {
					pod.Annotations = map[string]string{"kubernetes.io/config.source": "file"} // a static pod
				}
				memoryQoS := unified && random.IntN(2) == 0
				setField(manager, "machineInfo", &cadvisorapi.MachineInfo{MemoryCapacity: uint64(c.memory),
					SwapCapacity: uint64(c.swap)})
				setField(manager, "memorySwapBehavior", c.behavior)
				setField(manager, "memoryThrottlingFactor", c.factor)
				setField(manager, "memoryReservationPolicy", c.reservation())
				setField(manager, "cpuCFSQuota", c.quota)
				setField(manager, "cpuCFSQuotaPeriod", metav1.Duration{Duration: c.period})
				setField(manager, "getSwapControllerAvailable", func() bool { return c.accounted })
				setField(manager, "getNodeAllocatable", func() corev1.ResourceList {
					return corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(c.allocatable, resource.BinarySI)}
				})
				p := translate.QoSPod(pod)
				judge := func(container *corev1.Container, ours qos.Container) {
					want := upstreamResources(reflect.ValueOf(manager).UnsafePointer(), t.Context(), pod, container, memoryQoS)
					for file, text := range want.Unified {
						if text != "0" {
							seen[file]++
						}
					}
					if diff := differ(qos.ContainerValues(p, ours, c.policy(unified, memoryQoS)), want); diff != "" {
						t.Fatalf("seed %d, case %d: container %s: %s\n%+v\n%+v", *valuesSeed, n, container.Name, diff, c, pod.Spec)
					}
				}
				for i := range pod.Spec.Containers {
					judge(&pod.Spec.Containers[i], p.Containers[i])
				}
				for i := range pod.Spec.InitContainers {
					judge(&pod.Spec.InitContainers[i], p.Init[i])
				}
			}
			t.Logf("seed %d: %d pods; not zero: %v", *valuesSeed, *valuesCases, seen)
		})
	}
}

// differ returns how ours differs from what the kubelet requests of the runtime, where 0 means nothing.
func differ(ours qos.Values, want *runtimeapi.LinuxContainerResources) string {
	quota, _ := ours.CPUQuota.Get()
	memory, _ := ours.Memory.Get()
	swap, _ := ours.Swap.Get()
	high, throttled := ours.MemoryHigh.Get()
	unified := map[string]string{}
	put := func(file string, bytes unit.Bytes, set bool) {
		if set {
			unified[file] = fmt.Sprint(int64(bytes))
		}
	}
	put(cm.Cgroup2MemoryMin, ours.MemoryMin.OrZero(), ours.MemoryMin.IsSet())
	put(cm.Cgroup2MemoryLow, ours.MemoryLow.OrZero(), ours.MemoryLow.IsSet())
	put(cm.Cgroup2MemoryHigh, high, throttled)
	if upstreamUnified {
		put(cm.Cgroup2MaxSwapFilename, swap, !ours.Swap.IsKept())
		swap = 0
	}
	wantUnified := maps.Clone(want.Unified)
	delete(wantUnified, "memory.oom.group") // always the agent's
	switch {
	case int64(ours.CPUShares.OrZero()) != want.CpuShares:
		return fmt.Sprintf("shares %v, want %d", ours.CPUShares, want.CpuShares)
	case quota.Microseconds() != want.CpuQuota || ours.CPUPeriod.Microseconds() != want.CpuPeriod:
		return fmt.Sprintf("quota %v of %v, want %d of %d microseconds", quota, ours.CPUPeriod, want.CpuQuota, want.CpuPeriod)
	case int64(memory) != want.MemoryLimitInBytes || int64(swap) != want.MemorySwapLimitInBytes:
		return fmt.Sprintf("memory %d, with swap %d, want %d and %d", memory, swap, want.MemoryLimitInBytes,
			want.MemorySwapLimitInBytes)
	case !maps.Equal(unified, wantUnified):
		return fmt.Sprintf("%v, want %v", unified, wantUnified)
	}
	return ""
}

// tierWrites is upstream's cgroup manager; it records what it is given.
type tierWrites struct {
	cm.CgroupManager
	told map[string]*cm.ResourceConfig
}

func (w tierWrites) Update(_ logr.Logger, c *cm.CgroupConfig) error {
	w.told[c.Name[len(c.Name)-1]] = c.ResourceParameters
	return nil
}

// TestTierValues compares the cgroups of QoS classes, and the memory protection of the node's cgroup, with the
// kubelet's manager of these cgroups: weights, qosReserved, memory protection.
func TestTierValues(t *testing.T) {
	believeUnified(t, true)
	featuregatetesting.SetFeatureGatesDuringTest(t, utilfeature.DefaultFeatureGate,
		featuregatetesting.FeatureOverrides{features.MemoryQoS: true, features.QOSReserved: true})
	random := rand.New(rand.NewPCG(*valuesSeed, 1))
	root := cm.NewCgroupName(cm.RootCgroupName, "kubepods")
	info := cm.QOSContainersInfo{Guaranteed: root, Burstable: cm.NewCgroupName(root, "burstable"),
		BestEffort: cm.NewCgroupName(root, "besteffort")}
	for n := range *valuesCases {
		c := drawValues(random)
		var pods []*corev1.Pod
		var requested qos.Requested
		for range random.IntN(4) {
			pod := qosPod(random)
			pods = append(pods, pod)
			requested.Add(translate.QoSPod(pod))
		}
		policy := qos.TierPolicy{Memory: c.policy(true, true).Memory, Allocatable: unit.Bytes(c.allocatable)}
		config := cm.NodeConfig{CgroupsPerQOS: true, MemoryReservationPolicy: c.reservation()}
		if random.IntN(2) == 0 {
			percent := pick(random, 0, 50, 100, random.Int64N(101))
			config.QOSReserved = map[corev1.ResourceName]int64{corev1.ResourceMemory: percent}
			policy.ReservedPercent, policy.ReservesMemory = percent, c.allocatable > 0
		}
		written := tierWrites{told: map[string]*cm.ResourceConfig{}}
		manager, err := cm.NewQOSContainerManager(nil, root, config, written)
		if err != nil {
			t.Fatal(err)
		}
		setField(manager, "qosContainersInfo", info)
		setField(manager, "activePods", cm.ActivePodsFunc(func() []*corev1.Pod { return pods }))
		setField(manager, "getNodeAllocatable", func() corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(c.allocatable, resource.BinarySI)}
		})
		if err := manager.UpdateCgroups(logr.Discard()); err != nil {
			t.Fatal(err)
		}
		for group, ours := range map[string]qos.Values{
			"kubepods":   qos.NodeProtection(requested, policy.Memory),
			"burstable":  qos.TierValues(qos.Burstable, requested, policy),
			"besteffort": qos.TierValues(qos.BestEffort, requested, policy),
		} {
			if diff := tierDiffers(ours, written.told[group]); diff != "" {
				t.Fatalf("seed %d, case %d: %s: %s\n%+v\n%+v", *valuesSeed, n, group, diff, c, pods)
			}
		}
	}
}

func tierDiffers(ours qos.Values, want *cm.ResourceConfig) string {
	unified := map[string]string{}
	for file, bytes := range map[string]unit.Amount[unit.Bytes]{cm.Cgroup2MemoryMin: ours.MemoryMin,
		cm.Cgroup2MemoryLow: ours.MemoryLow} {
		if b, ok := bytes.Get(); ok {
			unified[file] = fmt.Sprint(int64(b))
		}
	}
	if !maps.Equal(unified, want.Unified) {
		return fmt.Sprintf("%v, want %v", unified, want.Unified)
	}
	if shares, ok := ours.CPUShares.Get(); ok != (want.CPUShares != nil) || ok && uint64(shares) != *want.CPUShares {
		return fmt.Sprintf("shares %v, want %v", ours.CPUShares, want.CPUShares)
	}
	memory, bound := ours.Memory.Get()
	// If requests exceed allocatable, less than nothing remains, which upstream writes.
	if bound != (want.Memory != nil) || bound && int64(memory) != max(0, *want.Memory) {
		return fmt.Sprintf("memory %v, want %v", ours.Memory, want.Memory)
	}
	return ""
}
