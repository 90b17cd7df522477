package agent

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/kube"
)

// groups keeps the cgroups of the node, its tiers and its pods at the values that core/qos says. It implements
// pods.Groups.
type groups struct {
	tree   *cgroup.Tree
	layout qos.Layout
	policy qos.Policy
	memory unit.Bytes // of the machine, against which OOM scores are set
	// groupOOM has the kernel end a whole container when one of its processes runs out of memory (v2 only).
	groupOOM bool
	held     func() []*corev1.Pod // pods that hold resources here

	mu        sync.Mutex
	made      map[types.UID]string // group, by pod, as made by this process
	burstable qos.Shares           // as written last
}

// prepare makes the node's group and its tiers, before the first pod.
func (g *groups) prepare(node qos.Values) error {
	if err := g.tree.Apply(g.layout.Node(), node); err != nil {
		return err
	}
	for _, tier := range []qos.Class{qos.Burstable, qos.BestEffort} {
		if err := g.tree.Apply(g.layout.Tier(tier), qos.TierValues(tier, 0)); err != nil {
			return err
		}
	}
	return nil
}

// Ensure makes the pod's group and returns its name, which is what the runtime takes as parent.
func (g *groups) Ensure(pod *corev1.Pod) (string, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if group := g.made[pod.UID]; group != "" {
		return group, nil
	}
	p := kube.QoSPod(pod)
	class := qos.ClassOf(p)
	group := g.layout.Pod(class, string(pod.UID))
	if err := g.tree.Apply(group, qos.PodValues(p, g.policy)); err != nil {
		return "", err
	}
	g.made[pod.UID] = group
	if class == qos.Burstable {
		return group, g.weighBurstable()
	}
	return group, nil
}

// weighBurstable keeps the Burstable tier's weight at the sum of its pods' requests: at once, where upstream takes up to
// a minute. Caller holds mu.
func (g *groups) weighBurstable() error {
	var sum unit.MilliCPU
	for _, pod := range g.held() {
		if p := kube.QoSPod(pod); qos.ClassOf(p) == qos.Burstable {
			sum += qos.Requests(p).CPU.OrZero()
		}
	}
	values := qos.TierValues(qos.Burstable, sum)
	shares, _ := values.CPUShares.Get()
	if shares == g.burstable {
		return nil
	}
	if err := g.tree.Apply(g.layout.Tier(qos.Burstable), values); err != nil {
		return err
	}
	g.burstable = shares
	return nil
}

// removeWait is how long a group may stay busy after its last container went: the runtime's shim leaves it a moment
// later (measured: below 100 ms).
const removeWait = 2 * time.Second

// Remove removes the groups of a pod that has gone, whichever tier they are in. It does not ask whether there is one: what an
// attempt before left is in some hierarchies only.
func (g *groups) Remove(ctx context.Context, uid types.UID) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, removeWait)
	defer cancel()
	for _, class := range []qos.Class{qos.Guaranteed, qos.Burstable, qos.BestEffort} {
		group := g.layout.Pod(class, string(uid))
		for {
			err := g.tree.Remove(group)
			if err == nil {
				break
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("%w (still busy after %s)", err, removeWait)
			case <-time.After(10 * time.Millisecond):
			}
		}
	}
	delete(g.made, uid)
	return g.weighBurstable()
}

// Pods returns the pods that have a group, in any tier and any hierarchy.
func (g *groups) Pods() ([]types.UID, error) {
	var uids []types.UID
	for _, class := range []qos.Class{qos.Guaranteed, qos.Burstable, qos.BestEffort} {
		names, err := g.tree.Children(g.layout.Tier(class))
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if uid, ok := g.layout.UID(name); ok {
				uids = append(uids, types.UID(uid))
			}
		}
	}
	return uids, nil
}

// Sizes returns what the pod's group and its containers' are to be set to.
func (g *groups) Sizes(pod *corev1.Pod) (group resize.Size, of func(*corev1.Container) resize.Size) {
	p := kube.QoSPod(pod)
	return resize.SizeOf(qos.PodValues(p, g.policy)), func(c *corev1.Container) resize.Size {
		return resize.SizeOf(qos.ContainerValues(p, qosContainer(p, pod, c), g.policy))
	}
}

// Has reads what a container's group is set to, or with an empty id the pod's.
func (g *groups) Has(pod *corev1.Pod, id string) (resize.Size, error) {
	group, err := g.groupOf(pod, id)
	if err != nil {
		return resize.Size{}, err
	}
	v, err := g.tree.Values(group)
	if err != nil {
		return resize.Size{}, err
	}
	size := resize.Size{Shares: v.CPUShares, Quota: v.CPUQuota, Memory: v.Memory}
	if _, bounded := v.CPUQuota.Get(); bounded {
		size.Period = v.CPUPeriod
	}
	return size, nil
}

// groupOf finds the group of a container by its id, of which each driver makes a name of its own.
func (g *groups) groupOf(pod *corev1.Pod, id string) (string, error) {
	group := g.layout.Pod(qos.ClassOf(kube.QoSPod(pod)), string(pod.UID))
	if id == "" {
		return group, nil
	}
	names, err := g.tree.Children(group)
	if err != nil {
		return "", err
	}
	for _, name := range names {
		if strings.Contains(name, id) {
			return path.Join(group, name), nil
		}
	}
	return "", fmt.Errorf("find cgroup of container %s: none below %s is named for it", id, group)
}

// Resize takes a step that is about the pod's own group.
func (g *groups) Resize(pod *corev1.Pod, step resize.Step) error {
	p := kube.QoSPod(pod)
	class := qos.ClassOf(p)
	to := step.After(resize.Size{})
	g.mu.Lock()
	defer g.mu.Unlock()
	values := qos.Values{CPUShares: to.Shares, CPUQuota: to.Quota, CPUPeriod: to.Period, Memory: to.Memory}
	if err := g.tree.Apply(g.layout.Pod(class, string(pod.UID)), values); err != nil {
		return err
	}
	if class == qos.Burstable && step.Request {
		return g.weighBurstable()
	}
	return nil
}

// Update is a step that is about a container, in the runtime's form: what it does not name stays as it is.
func (g *groups) Update(pod *corev1.Pod, c *corev1.Container, step resize.Step) *runtimeapi.LinuxContainerResources {
	out, to := &runtimeapi.LinuxContainerResources{}, step.After(resize.Size{})
	if step.Resource == resize.Memory {
		out.Unified = g.Resources(pod, c).Unified // what follows from memory on v2
	}
	if shares, ok := to.Shares.Get(); ok {
		out.CpuShares = int64(shares)
	}
	if quota, ok := to.Quota.Get(); ok {
		out.CpuQuota, out.CpuPeriod = quota.Microseconds(), to.Period.Microseconds()
	} else if to.Quota.IsUnlimited() {
		out.CpuQuota = -1
	}
	if memory, ok := to.Memory.Get(); ok {
		out.MemoryLimitInBytes = int64(memory)
	} else if to.Memory.IsUnlimited() {
		out.MemoryLimitInBytes = -1
	}
	return out
}

// MemoryInUse is what the kernel cannot drop at once of a container's memory, or with an empty id of the pod's.
func (g *groups) MemoryInUse(pod *corev1.Pod, id string) (unit.Bytes, error) {
	group, err := g.groupOf(pod, id)
	if err != nil {
		return 0, err
	}
	usage, err := g.tree.Usage(group)
	if err != nil {
		return 0, err
	}
	used, known := usage.WorkingSet.Get()
	if !known {
		return 0, fmt.Errorf("read usage of cgroup %s: memory is not accounted for on this machine", group)
	}
	return used, nil
}

// Resources returns what the runtime is asked to set for a container.
func (g *groups) Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	p := kube.QoSPod(pod)
	qc := qosContainer(p, pod, c)
	out := runtimeResources(qos.ContainerValues(p, qc, g.policy))
	out.OomScoreAdj = int64(qos.OOMScoreAdj(p, qc, g.memory))
	if g.groupOOM {
		out.Unified = map[string]string{"memory.oom.group": "1"}
	}
	return out
}

// qosContainer finds c among p's containers, which QoSPod keeps in the order of the pod's lists.
func qosContainer(p qos.Pod, pod *corev1.Pod, c *corev1.Container) qos.Container {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return p.Init[i]
		}
	}
	for i := range pod.Spec.Containers {
		if pod.Spec.Containers[i].Name == c.Name {
			return p.Containers[i]
		}
	}
	return kube.QoSContainer(c, false)
}

// SandboxResources returns the pod's overhead and the sum of what its containers get; runtimes that size a machine for
// the pod (Kata) read them, runc does not.
func (g *groups) SandboxResources(pod *corev1.Pod) (overhead, resources *runtimeapi.LinuxContainerResources) {
	p := kube.QoSPod(pod)
	alone := p
	alone.Overhead = qos.Amounts{}
	return runtimeResources(qos.PodValues(qos.Pod{Overhead: p.Overhead}, g.policy)), runtimeResources(qos.PodValues(alone, g.policy))
}

// runtimeResources translates values into CRI's form, where 0 means "not set".
func runtimeResources(v qos.Values) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{}
	if shares, ok := v.CPUShares.Get(); ok {
		out.CpuShares = int64(shares)
	}
	if quota, ok := v.CPUQuota.Get(); ok {
		out.CpuQuota = quota.Microseconds()
	}
	out.CpuPeriod = v.CPUPeriod.Microseconds()
	if memory, ok := v.Memory.Get(); ok {
		out.MemoryLimitInBytes = int64(memory)
	}
	for size, limit := range v.HugePages {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: hugePageName(size), Limit: uint64(limit)})
	}
	return out
}

// hugePageName is a page size as the kernel's hugetlb files name it: 2MB, 1GB.
func hugePageName(size unit.Bytes) string {
	if size >= unit.GiB {
		return fmt.Sprintf("%dGB", size/unit.GiB)
	}
	if size >= unit.MiB {
		return fmt.Sprintf("%dMB", size/unit.MiB)
	}
	return fmt.Sprintf("%dKB", size/unit.KiB)
}
