package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"reflect"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/host/cgroup"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// groups keeps the cgroups of all pods, of the QoS classes (the tiers) and of each pod at the values that core/qos
// computes. In this file a group is a cgroup. It implements pods.Groups.
type groups struct {
	tree   *cgroup.Tree
	layout qos.Layout
	policy qos.Policy
	tiers  qos.TierPolicy
	limits *limits
	memory unit.Bytes // of the machine; OOM scores depend on it
	// unmanaged means that the agent creates no groups for pods (cgroupsPerQOS: false): the runtime chooses where they
	// are.
	unmanaged bool
	// pageSizes are the sizes of huge pages that the kernel can limit for containers; nil if it limits none.
	pageSizes []unit.Bytes
	// groupOOM has the kernel kill a whole container when one of its processes runs out of memory (v2 only).
	groupOOM    bool
	holders     func() []*corev1.Pod // returns the pods that have resources of the node
	assignments *numa.Manager        // set before the first pod
	pods        qosPods
	// took measures an operation on a pod's group: create, update, destroy. Optional.
	took func(operation string, d time.Duration)

	mu      sync.Mutex            // guards everything that follows
	created map[types.UID]string  // the groups that this process created or updated, by pod
	written map[string]qos.Values // what was last written to the groups above those of pods, by group
	// found are the groups of containers by container ID, as of the last search. Only if unmanaged.
	found map[string]string
}

// prepare creates the group of all pods and the tiers, before the first pod.
func (g *groups) prepare(node qos.Values) error {
	if g.unmanaged {
		return nil
	}
	above := g.layout.Above()
	if above != "/" {
		if err := g.tree.Create(above); err != nil {
			return err
		}
	}
	// The group above may have fewer CPUs than the machine. On v1 the kernel refuses a group that has more CPUs than the
	// one above it. On v2 it ignores the excess, and a CPU that was offline belongs to the group again when it comes
	// online, even while no agent runs.
	if g.tree.Mode() != cgroup.V2 {
		cpus, err := g.tree.CPUs(above)
		if err != nil {
			return err
		}
		node.CPUs = node.CPUs.Intersect(cpus)
	}
	if err := g.apply(g.layout.Node(), node); err != nil {
		return err
	}
	for _, class := range []qos.Class{qos.Burstable, qos.BestEffort} {
		tier := g.layout.Tier(class)
		if g.tree.Exists(tier) {
			continue // an earlier agent set its shares, for pods that this one does not know yet
		}
		if err := g.apply(tier, qos.TierValues(class, qos.Requested{}, g.tiers)); err != nil {
			return err
		}
	}
	return nil
}

// tierResync is the interval of the periodic resync of the tiers, in case another program changed their values. The
// kubelet has the same interval, and only this way to follow the pods' requests.
const tierResync = time.Minute

// tierRetry is how often follow checks whether all pods are known (chosen).
const tierRetry = time.Second

// follow keeps the tiers at what the node's pods request, as soon as known reports that all of those pods are known.
func (g *groups) follow(ctx context.Context, known func() bool) error {
	for pause := tierRetry; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if g.unmanaged || !known() {
			continue
		}
		pause = tierResync
		g.mu.Lock()
		clear(g.written)
		err := g.setTiers()
		g.mu.Unlock()
		if err != nil {
			slog.Warn("groups of QoS classes not set", "err", err)
		}
	}
}

// apply creates group if it is missing and sets v. It lowers the memory limit only as fast as the group's processes
// allow (limits).
func (g *groups) apply(group string, v qos.Values) error {
	memory, limited := v.Memory.Get()
	if limited {
		v.Memory = unit.Limit[unit.Bytes]{}
	}
	if err := g.tree.Apply(group, v); err != nil {
		return err
	}
	if limited {
		return g.limits.lower(group, memory)
	}
	return nil
}

// Ensure creates the pod's group and returns its name, which the runtime takes as the parent of the pod's containers.
func (g *groups) Ensure(pod *corev1.Pod) (string, error) {
	if g.unmanaged {
		return "", nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if group := g.created[pod.UID]; group != "" {
		return group, nil
	}
	defer g.measure("create", time.Now())
	group := g.layout.Pod(g.class(pod), string(pod.UID))
	if err := g.tree.Apply(group, g.podValues(pod)); err != nil {
		return "", err
	}
	if err := g.assignments.Place(string(pod.UID), group); err != nil {
		return "", err
	}
	g.created[pod.UID] = group
	return group, g.setTiers()
}

// measure measures an operation that began at begun and ends now.
func (g *groups) measure(operation string, begun time.Time) {
	if g.took != nil {
		g.took(operation, time.Since(begun))
	}
}

// setTiers sets the tiers to what the node's pods request. It is called whenever pods change; the kubelet takes up to a
// minute. The caller holds mu.
func (g *groups) setTiers() error {
	var sum qos.Requested
	here := map[types.UID]bool{}
	for _, pod := range g.holders() {
		here[pod.UID] = true
		sum.Add(g.pods.of(pod).Pod)
	}
	g.pods.keep(func(uid types.UID) bool { return here[uid] || g.created[uid] != "" })
	return g.writeTiers(sum)
}

// writeTiers writes the values that differ from what was written last. The caller holds mu.
func (g *groups) writeTiers(sum qos.Requested) error {
	values := map[string]qos.Values{g.layout.Node(): qos.NodeProtection(sum, g.tiers.Memory)}
	for _, class := range []qos.Class{qos.Burstable, qos.BestEffort} {
		values[g.layout.Tier(class)] = qos.TierValues(class, sum, g.tiers)
	}
	for group, v := range values {
		if last, ok := g.written[group]; ok && reflect.DeepEqual(last, v) {
			continue
		}
		begun := time.Now()
		if err := g.apply(group, v); err != nil {
			return err
		}
		g.measure("update", begun)
		g.written[group] = v
	}
	return nil
}

const (
	// exitWait is how long the group of a pod that is gone may have processes that are just exiting. The runtime's shim
	// exits a moment after the last container: in less than 100 ms, and in some hundred at a load of 30 (measured).
	exitWait = time.Second
	// killWait is how long the group may then have processes that were killed (chosen).
	killWait = 2 * time.Second
	// removeRetry is the pause between two attempts to remove a group (chosen).
	removeRetry = 10 * time.Millisecond
)

// Remove removes the groups of a pod that is gone, in whichever tier they are. It does not check whether there is one,
// since an interrupted attempt may have left groups in some hierarchies only. Processes that still run there are
// killed, since nothing else would end them: a runtime that is killed while it creates a sandbox may forget that it
// did.
func (g *groups) Remove(ctx context.Context, uid types.UID) error {
	if g.unmanaged {
		return nil
	}
	defer g.measure("destroy", time.Now())
	for _, class := range []qos.Class{qos.Guaranteed, qos.Burstable, qos.BestEffort} {
		group := g.layout.Pod(class, string(uid))
		err := g.removeWithin(ctx, exitWait, group)
		if errors.Is(err, cgroup.ErrBusy) {
			var k cgroup.Killing
			if k, err = g.tree.Kill(group); err == nil {
				slog.Warn("processes in the cgroup of a pod that is gone were killed", "cgroup", group, "processes", k.Processes)
				k.FreeMemory()
				err = g.removeWithin(ctx, killWait, group)
			}
		}
		if err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.created, uid)
	g.assignments.Gone(string(uid))
	return g.setTiers()
}

// removeWithin removes a group, and waits up to limit for its processes to exit.
func (g *groups) removeWithin(ctx context.Context, limit time.Duration, group string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := g.tree.Remove(group)
		if err == nil || !errors.Is(err, cgroup.ErrBusy) {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (still busy after %s)", err, limit)
		case <-time.After(removeRetry):
		}
	}
}

// Pods returns the pods that have a group, in any tier and any hierarchy.
func (g *groups) Pods() ([]types.UID, error) {
	if g.unmanaged {
		return nil, nil
	}
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

// Sizes returns the desired sizes of the pod's group and of its containers' groups.
func (g *groups) Sizes(pod *corev1.Pod) (group resize.Size, of func(*corev1.Container) resize.Size) {
	p := g.pods.of(pod).Pod
	if !g.unmanaged {
		group = resize.SizeOf(g.podValues(pod))
	}
	return group, func(c *corev1.Container) resize.Size {
		// c may differ from the pod's own container of that name.
		return resize.SizeOf(g.containerValues(pod, c, p, translate.QoSContainer(c, false)))
	}
}

// podValues returns core/qos's values for the pod's group. If a container has assigned CPUs, there is no CFS quota:
// with one, the container could not use those CPUs fully.
func (g *groups) podValues(pod *corev1.Pod) qos.Values {
	v := qos.PodValues(g.pods.of(pod).Pod, g.policy)
	if g.assignments.Exclusive(string(pod.UID), "") {
		v.CPUQuota = unit.Unlimited[time.Duration]()
	}
	return v
}

// containerValues returns core/qos's values for a container, without a CFS quota if the container has assigned CPUs.
func (g *groups) containerValues(pod *corev1.Pod, c *corev1.Container, p qos.Pod, qc qos.Container) qos.Values {
	v := qos.ContainerValues(p, qc, g.policy)
	if g.assignments.Exclusive(string(pod.UID), c.Name) {
		v.CPUQuota = unit.Unlimited[time.Duration]()
	}
	return v
}

// swaps reports whether a container of the pod may use swap.
func (g *groups) swaps(pod *corev1.Pod, c *corev1.Container) bool {
	p := g.pods.of(pod).Pod
	swap, limited := qos.ContainerValues(p, qosContainer(p, pod, c), g.policy).Swap.Get()
	return g.policy.Swap.Unified && limited && swap > 0
}

// Has reads the actual size of a container's group, or of the pod's group if id is empty.
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

// groupOf finds the group of a container by its ID. Each cgroup driver makes another name of the ID. If id is empty, it
// returns the pod's group.
func (g *groups) groupOf(pod *corev1.Pod, id string) (string, error) {
	if g.unmanaged {
		return g.find(id)
	}
	group := g.group(pod)
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
	return "", fmt.Errorf("find cgroup of container %s: no cgroup below %s has this ID in its name", id, group)
}

// Resize takes a step of a resize that changes the pod's own group.
func (g *groups) Resize(pod *corev1.Pod, step resize.Step) error {
	defer g.measure("update", time.Now())
	to := step.After(resize.Size{})
	g.mu.Lock()
	defer g.mu.Unlock()
	values := qos.Values{
		CPUShares: to.Shares, CPUQuota: to.Quota, CPUPeriod: to.Period,
		Memory: to.Memory, MemoryMin: to.Soft.Min, MemoryLow: to.Soft.Low,
	}
	if err := g.tree.Apply(g.layout.Pod(g.class(pod), string(pod.UID)), values); err != nil {
		return err
	}
	if step.Request {
		return g.setTiers()
	}
	return nil
}

// Update translates a step of a resize that changes a container for the runtime. has is the container's actual size.
// The result contains every known value, not only the changed ones. containerd takes the others from its own record and
// writes them too, and if an agent died in the middle of an update, that record is older than the kernel's values.
func (g *groups) Update(
	pod *corev1.Pod, c *corev1.Container, step resize.Step, has resize.Size,
) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{}
	to := step.After(has)
	if step.Resource == resize.Memory {
		out.Unified = g.Resources(pod, c).Unified // on v2 these files depend on memory
	}
	if shares, ok := to.Shares.Get(); ok {
		out.CpuShares = int64(shares)
	}
	if quota, ok := to.Quota.Get(); ok {
		out.CpuQuota = quota.Microseconds()
		out.CpuPeriod = to.Period.Microseconds()
	} else if to.Quota.IsUnlimited() {
		out.CpuQuota = -1
	}
	if memory, ok := to.Memory.Get(); ok {
		out.MemoryLimitInBytes = int64(memory)
	} else if to.Memory.IsUnlimited() {
		out.MemoryLimitInBytes = -1
	}
	if g.policy.Swap.Accounted && g.tree.Mode() != cgroup.V2 {
		// On v1 this limit counts memory and swap together, so it must not be below the memory limit.
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes
	}
	return out
}

// MemoryInUse returns the working set of a container, or of the pod if id is empty: memory that the kernel cannot
// reclaim at once.
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

// group returns the name of a pod's group; empty if unmanaged.
func (g *groups) group(pod *corev1.Pod) string {
	if g.unmanaged {
		return ""
	}
	return g.layout.Pod(g.class(pod), string(pod.UID))
}

// aboveThePods returns the groups above those of pods: of all pods, and of the QoS classes. There are none if
// unmanaged.
func (g *groups) aboveThePods() []string {
	if g.unmanaged {
		return nil
	}
	return []string{g.layout.Node(), g.layout.Tier(qos.Burstable), g.layout.Tier(qos.BestEffort)}
}

// class returns a pod's QoS class.
func (g *groups) class(pod *corev1.Pod) qos.Class { return g.pods.of(pod).class }

// Killed returns how many processes of a container the kernel has killed because memory ran out.
func (g *groups) Killed(pod *corev1.Pod, id string) (int64, error) {
	group, err := g.groupOf(pod, id)
	if err != nil {
		return 0, err
	}
	return g.tree.Killed(group)
}

// Resources returns the resources with which the runtime creates a container.
func (g *groups) Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	p := g.pods.of(pod).Pod
	qc := qosContainer(p, pod, c)
	v := g.containerValues(pod, c, p, qc)
	out := runtimeResources(v, g.tree.Mode() == cgroup.V2)
	if v.CPUQuota.IsUnlimited() {
		out.CpuQuota = -1
	}
	for _, size := range g.pageSizes {
		if _, limited := v.HugePages[size]; !limited { // a container without a request may use none
			out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: hugePageName(size)})
		}
	}
	out.OomScoreAdj = int64(qos.OOMScoreAdj(p, qc, g.memory))
	if g.groupOOM {
		setUnified(out, "memory.oom.group", "1")
	}
	return out
}

// qosContainer finds c among p's containers. translate.QoSPod keeps them in the order of the pod's lists.
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
	return translate.QoSContainer(c, false)
}

// SandboxResources returns the pod's overhead, and the sum of its containers' resources without it. Runtimes that start
// a virtual machine for each pod (Kata) read them; runc does not.
func (g *groups) SandboxResources(pod *corev1.Pod) (overhead, resources *runtimeapi.LinuxContainerResources) {
	p := g.pods.of(pod).Pod
	unified := g.tree.Mode() == cgroup.V2
	overhead = runtimeResources(qos.PodValues(qos.Pod{Overhead: p.Overhead}, g.policy), unified)
	p.Overhead = qos.Amounts{}
	resources = runtimeResources(qos.PodValues(p, g.policy), unified)
	return overhead, resources
}

// runtimeResources translates values for CRI, where 0 means "not set". Values that CRI has no field for are passed by
// the name of the kernel's file, which runtimes support on v2 only.
func runtimeResources(v qos.Values, unified bool) *runtimeapi.LinuxContainerResources {
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
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{
			PageSize: hugePageName(size),
			Limit:    uint64(limit),
		})
	}
	swap, swapLimited := v.Swap.Get()
	if !unified {
		if swapLimited {
			out.MemorySwapLimitInBytes = int64(swap)
		}
		return out
	}
	high, highLimited := v.MemoryHigh.Get()
	for _, f := range []struct {
		file  string
		bytes unit.Bytes
		set   bool
	}{
		{"memory.min", v.MemoryMin.OrZero(), v.MemoryMin.IsSet()},
		{"memory.low", v.MemoryLow.OrZero(), v.MemoryLow.IsSet()},
		{"memory.high", high, highLimited},
		{"memory.swap.max", swap, swapLimited},
	} {
		if f.set {
			setUnified(out, f.file, fmt.Sprint(int64(f.bytes)))
		}
	}
	return out
}

func setUnified(r *runtimeapi.LinuxContainerResources, file, value string) {
	if r.Unified == nil {
		r.Unified = map[string]string{}
	}
	r.Unified[file] = value
}

// hugePageName returns a page size as the names of the kernel's hugetlb files spell it: 2MB, 1GB.
func hugePageName(size unit.Bytes) string {
	if size >= unit.GiB {
		return fmt.Sprintf("%dGB", size/unit.GiB)
	}
	if size >= unit.MiB {
		return fmt.Sprintf("%dMB", size/unit.MiB)
	}
	return fmt.Sprintf("%dKB", size/unit.KiB)
}

// Container returns the name of a container's group; empty if it is not known.
func (g *groups) Container(pod *corev1.Pod, id string) string {
	group := g.group(pod)
	if group == "" {
		return ""
	}
	if found, err := g.groupOf(pod, id); err == nil {
		return found
	}
	return ""
}
