package oracle

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	cadvisorapi "github.com/google/cadvisor/info/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cadvisor"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	"k8s.io/kubernetes/pkg/kubelet/nodestatus"
	"k8s.io/mount-utils"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/kubeletconfig"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

var (
	nodeCount = flag.Int("allocatable.nodes", 100_000, "random machines and configurations whose allocatable is compared")
	nodeSeed  = flag.Uint64("allocatable.seed", 1, "seed of the random machines and configurations")
)

// containerManager has the fields of the kubelet's containerManagerImpl, in their order, up to the last one that the
// methods below read. The kubelet creates one only together with all of its managers. TestAllocatable begins with an
// example whose result is known, so that a different layout in another version is detected.
type containerManager struct {
	sync.RWMutex
	cadvisor cadvisor.Interface
	mount    mount.Interface
	cm.NodeConfig
	status           cm.Status
	systemContainers []*struct{}
	periodicTasks    []func()
	subsystems       *cm.CgroupSubsystems
	nodeInfo         *corev1.Node
	cgroupManager    cm.CgroupManager
	capacity         corev1.ResourceList
	internalCapacity corev1.ResourceList
	rest             [64]unsafe.Pointer // later fields, which are not read
}

//go:linkname upstreamReservation k8s.io/kubernetes/pkg/kubelet/cm.(*containerManagerImpl).GetNodeAllocatableReservation
func upstreamReservation(*containerManager) corev1.ResourceList

//go:linkname upstreamAbsolute k8s.io/kubernetes/pkg/kubelet/cm.(*containerManagerImpl).getNodeAllocatableInternalAbsolute
func upstreamAbsolute(*containerManager) corev1.ResourceList

//go:linkname upstreamValidate k8s.io/kubernetes/pkg/kubelet/cm.(*containerManagerImpl).validateNodeAllocatable
func upstreamValidate(*containerManager) error

//go:linkname upstreamCgroup k8s.io/kubernetes/pkg/kubelet/cm.getCgroupConfigInternal
func upstreamCgroup(rl corev1.ResourceList, compressibleOnly bool) *cm.ResourceConfig

// lineConfig is a random configuration, with the values of a configuration file.
type lineConfig struct {
	system, kube, hard map[string]string
	reservedCPUs       string
	maxPods, perCore   int32
	enforce            bool
	isolation          bool
}

// TestAllocatable compares a node's published allocatable, and the limits of its pods' cgroup, with the kubelet's own
// functions, starting from the strings of the configuration: which are refused, and every resource.
func TestAllocatable(t *testing.T) {
	random := rand.New(rand.NewPCG(*nodeSeed, 0))
	judgeExample(t)
	refused := map[string]int{}
	for n := range *nodeCount {
		m, c := lineMachine(random), drawConfig(random)
		ours, err := ourLine(m, c)
		theirs, wantErr := theirLine(m, c)
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("seed %d, node %d: error %v, want %v\n%+v\n%+v", *nodeSeed, n, err, wantErr, c, m)
		}
		if err != nil {
			refused[strings.Fields(wantErr.Error())[0]]++
			continue
		}
		if diff := ours.differs(theirs); diff != "" {
			t.Fatalf("seed %d, node %d: %s\n%+v\n%+v", *nodeSeed, n, diff, c, m)
		}
	}
	t.Logf("seed %d: %d nodes, of them refused: %v", *nodeSeed, *nodeCount, refused)
}

// judgeExample checks this comparison with the worked example of the issue on allocatable.
func judgeExample(t *testing.T) {
	t.Helper()
	m := machine.Machine{CPUs: idset.Of(0, 1), Memory: 4039556 * unit.KiB,
		NodeFS: machine.Filesystem{Capacity: 64800356 * unit.KiB}, PIDs: 32768}
	judged, err := theirLine(m, lineConfig{
		system: map[string]string{"cpu": "250m", "memory": "500Mi"}, kube: map[string]string{"cpu": "500m", "memory": "1Gi"},
		hard: map[string]string{"memory.available": "200Mi",
			"nodefs.available": "20Gi"}, maxPods: 110, enforce: true, isolation: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[corev1.ResourceName]string{"cpu": "1250m", "memory": "2274180Ki",
		"ephemeral-storage": "43828836Ki", "pods": "110"} {
		if got := judged.allocatable[name]; got.String() != want {
			t.Fatalf("the judge says %v of %s, the example %s: has upstream's containerManagerImpl another layout?",
				got.String(), name, want)
		}
	}
}

// nodeLine is the result of either side.
type nodeLine struct {
	capacity, allocatable corev1.ResourceList
	shares                uint64
	memory, pids          int64
	huge                  map[int64]int64
	system, kube, cpuOnly reservedValues // cpuOnly: the system's values if only CPU is enforced
}

// reservedValues are the values of a reserved cgroup; 0: not changed.
type reservedValues struct {
	shares       uint64
	memory, pids int64
}

func (a nodeLine) differs(b nodeLine) string {
	for what, lists := range map[string][2]corev1.ResourceList{"capacity": {a.capacity, b.capacity},
		"allocatable": {a.allocatable, b.allocatable}} {
		if len(lists[0]) != len(lists[1]) {
			return fmt.Sprintf("%s of %v, want %v", what, lists[0], lists[1])
		}
		for name, want := range lists[1] {
			if got := lists[0][name]; got.Cmp(want) != 0 || got.String() != want.String() {
				return fmt.Sprintf("%s %s: %v, want %v", what, name, got.String(), want.String())
			}
		}
	}
	if a.shares != b.shares || a.memory != b.memory || a.pids != b.pids || !maps.Equal(a.huge, b.huge) {
		return fmt.Sprintf("enforced: shares %d, memory %d, pids %d, huge pages %v, want %d, %d, %d, %v", a.shares, a.memory,
			a.pids, a.huge, b.shares, b.memory, b.pids, b.huge)
	}
	if a.system != b.system || a.kube != b.kube || a.cpuOnly != b.cpuOnly {
		return fmt.Sprintf("reserved groups: %+v, %+v, %+v, want %+v, %+v, %+v", a.system, a.kube, a.cpuOnly, b.system,
			b.kube, b.cpuOnly)
	}
	return ""
}

func ourLine(m machine.Machine, c lineConfig) (nodeLine, error) {
	config := *defaultConfig()
	config.SystemReserved = c.system
	config.KubeReserved = c.kube
	config.EvictionHard = c.hard
	config.ReservedSystemCPUs = c.reservedCPUs
	config.MaxPods = c.maxPods
	config.PodsPerCore = c.perCore
	config.LocalStorageCapacityIsolation = &c.isolation
	if !c.enforce {
		config.EnforceNodeAllocatable = []string{"none"}
	}
	settings, err := kubeletconfig.Allocatable(&config)
	if err != nil {
		return nodeLine{}, err
	}
	line, err := allocatable.Compute(m, settings)
	if err != nil {
		return nodeLine{}, err
	}
	out := nodeLine{huge: map[int64]int64{}}
	out.capacity, out.allocatable = translate.NodeResources(line)
	values := line.Enforced()
	out.shares = uint64(values.CPUShares.OrZero())
	memory, _ := values.Memory.Get()
	out.memory = int64(memory)
	out.pids, _ = values.PIDs.Get()
	for size, limit := range values.HugePages {
		out.huge[int64(size)] = int64(limit)
	}
	reserved := func(g allocatable.Group, compressible bool) (r reservedValues) {
		v := line.EnforcedOn(g, compressible, false)
		memory, _ := v.Memory.Get()
		r.shares, r.memory = uint64(v.CPUShares.OrZero()), int64(memory)
		r.pids, _ = v.PIDs.Get()
		return r
	}
	out.system = reserved(allocatable.SystemReserved, false)
	out.kube = reserved(allocatable.KubeReserved, false)
	out.cpuOnly = reserved(allocatable.SystemReserved, true)
	return out, nil
}

var defaultConfig = sync.OnceValue(func() *kubeletconfigv1beta1.KubeletConfiguration {
	c, _, err := kubeletconfig.Parse(nil, "/")
	if err != nil {
		panic(err)
	}
	return c
})

// theirLine does what the kubelet does between its file and the Node: reservedSystemCPUs replaces reserved CPU, strings
// are parsed, the container manager subtracts, the node status is published. Only the code between upstream's functions
// is here.
func theirLine(m machine.Machine, c lineConfig) (nodeLine, error) {
	system, kubeReserved := maps.Clone(c.system), maps.Clone(c.kube)
	if c.reservedCPUs != "" {
		delete(kubeReserved, "cpu")
		if system == nil {
			system = map[string]string{}
		}
		cpus, err := idset.Parse(c.reservedCPUs)
		if err != nil {
			return nodeLine{}, err
		}
		system["cpu"] = strconv.Itoa(cpus.Len())
	}
	manager := &containerManager{}
	var err, err2, err3 error
	manager.SystemReserved, err = reservedList(system)
	manager.KubeReserved, err2 = reservedList(kubeReserved)
	manager.HardEvictionThresholds, err3 = eviction.ParseThresholdConfig(nil, c.hard, nil, nil, nil)
	if err := errors.Join(err, err2, err3); err != nil {
		return nodeLine{}, fmt.Errorf("configuration: %w", err)
	}
	info := &cadvisorapi.MachineInfo{NumCores: m.CPUs.Len(), MemoryCapacity: uint64(m.Memory)}
	for size, count := range m.HugePages {
		info.HugePages = append(info.HugePages, cadvisorapi.HugePagesInfo{PageSize: uint64(size / unit.KiB),
			NumPages: uint64(count)})
	}
	manager.capacity = cadvisor.CapacityFromMachineInfo(info)
	manager.internalCapacity = maps.Clone(manager.capacity)
	manager.internalCapacity["pid"] = *resource.NewQuantity(m.PIDs, resource.DecimalSI)
	if c.isolation {
		manager.capacity[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(m.NodeFS.Capacity), resource.BinarySI)
	}
	if err := upstreamValidate(manager); err != nil {
		return nodeLine{}, fmt.Errorf("capacity: %w", err)
	}
	return published(manager, info, c)
}

func published(manager *containerManager, info *cadvisorapi.MachineInfo, c lineConfig) (nodeLine, error) {
	node := &corev1.Node{}
	setter := nodestatus.MachineInfo("n", int(c.maxPods), int(c.perCore),
		func() (*cadvisorapi.MachineInfo, error) { return info, nil },
		func(bool) corev1.ResourceList { return manager.capacity },
		func() (corev1.ResourceList, corev1.ResourceList, []string) { return nil, nil, nil },
		func() corev1.ResourceList { return upstreamReservation(manager) },
		func(_, _, _ string) {}, c.isolation)
	if err := setter(context.Background(), node); err != nil {
		return nodeLine{}, err
	}
	enforced := manager.internalCapacity
	if c.enforce {
		enforced = upstreamAbsolute(manager)
	}
	group := upstreamCgroup(enforced, false)
	return nodeLine{
		node.Status.Capacity, node.Status.Allocatable, *group.CPUShares, *group.Memory, *group.PidsLimit, group.HugePageLimit,
		reservedBy(manager.SystemReserved, false), reservedBy(manager.KubeReserved, false), reservedBy(manager.SystemReserved,
			true),
	}, nil
}

// reservedBy returns what upstream writes to a reserved cgroup, except for resources without a reservation.
func reservedBy(list corev1.ResourceList, compressible bool) (r reservedValues) {
	group := upstreamCgroup(list, compressible)
	if q := list[corev1.ResourceCPU]; group.CPUShares != nil && !q.IsZero() {
		r.shares = *group.CPUShares
	}
	r.memory, r.pids = positive(group.Memory), positive(group.PidsLimit)
	return r
}

// reservedList parses as the kubelet does.
func reservedList(list map[string]string) (corev1.ResourceList, error) {
	out := corev1.ResourceList{}
	for name, text := range list {
		q, err := resource.ParseQuantity(text)
		if err != nil || q.Sign() < 0 {
			return nil, fmt.Errorf("%s %q: %w", name, text, errors.Join(err, errors.New("or negative")))
		}
		out[corev1.ResourceName(name)] = q
	}
	return out, nil
}

func lineMachine(random *rand.Rand) machine.Machine {
	m := machine.Machine{Memory: unit.Bytes(1 + random.Int64N(1<<(28+random.IntN(18)))), PIDs: 1 << (15 + random.IntN(8))}
	for cpu := range 1 + random.IntN(1<<random.IntN(11)) {
		m.CPUs = m.CPUs.Union(idset.Of(2 * cpu)) // IDs with holes
	}
	m.NodeFS.Capacity = unit.Bytes(1 + random.Int64N(1<<(32+random.IntN(18))))
	m.HugePages = map[unit.Bytes]int64{}
	for _, size := range []unit.Bytes{64 * unit.KiB, 2 * unit.MiB, unit.GiB} {
		if random.IntN(3) == 0 {
			m.HugePages[size] = random.Int64N(1 + 2*int64(m.Memory/size))
		}
		if random.IntN(2) == 0 && m.HugePages[size] > 0 {
			m.HugePages[size] /= 8
		}
	}
	return m
}

func drawConfig(random *rand.Rand) lineConfig {
	reserve := func() map[string]string {
		out := map[string]string{}
		for name, texts := range map[string][]string{
			"cpu": {"0", "1m", "80m", "0.5", "250m", "1", "1.25", "2", "64", "1e1"}, "memory": {"0", "1", "1000", "500Mi", "1Gi",
				"1.5Gi", "0.5Ki", "100M", "1e9", "2Ti"},
			"ephemeral-storage": {"0", "1Gi", "10G", "1Ti"}, "pid": {"0", "100", "1k", "10k"},
		} {
			if random.IntN(3) == 0 {
				out[name] = pick(random, texts...)
			}
		}
		return out
	}
	c := lineConfig{system: reserve(), kube: reserve(), hard: map[string]string{}, maxPods: int32(1 + random.IntN(500)),
		enforce: random.IntN(4) > 0, isolation: random.IntN(8) > 0}
	for _, signal := range []string{"memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available",
		"pid.available"} {
		switch random.IntN(12) {
		case 0, 1, 2, 3:
			c.hard[signal] = strconv.FormatFloat(random.Float64()*100, 'f', random.IntN(4), 32) + "%"
		case 4, 5, 6:
			c.hard[signal] = pick(random, "1", "100Mi", "200Mi", "1.5Gi", "5G", "20Gi", "1Ti", "7Ei")
		case 7:
			c.hard[signal] = pick(random, "0%", "100%", "0.0%", "99.999%", "5%", "10%", "15%", "1e1%", "33.3333%")
		}
	}
	if random.IntN(50) == 0 {
		c.hard["memory.available"] = pick(random, "101%", "-1%", "x%", "0", "-5Mi", "%", "100.1%", "ten")
	}
	if random.IntN(100) == 0 {
		c.hard["memory.free"] = "1Gi"
	}
	if random.IntN(4) == 0 {
		c.reservedCPUs = pick(random, "0", "0-1", "0,2,4-5")
	} else if random.IntN(50) == 0 { // the kubelet ignores a bad amount that reservedSystemCPUs replaces
		c.kube["cpu"] = pick(random, "-1", "x", "1 ", "1Xi", "")
	}
	if random.IntN(3) == 0 {
		c.perCore = int32(random.IntN(30))
	}
	return c
}
