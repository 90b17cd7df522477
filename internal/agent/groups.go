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

// groups keeps the cgroups of the node, its tiers and its pods at the values that core/qos says. It implements
// pods.Groups.
type groups struct {
	tree   *cgroup.Tree
	layout qos.Layout
	policy qos.Policy
	tiers  qos.TierPolicy
	limits *limits
	memory unit.Bytes // of the machine, against which OOM scores are set
	// unmanaged says that pods have no groups of ours (cgroupsPerQOS: false): the runtime puts them where it likes.
	unmanaged bool
	// pageSizes are those of huge pages that the kernel limits for containers; nil where it does not.
	pageSizes []unit.Bytes
	// groupOOM has the kernel end a whole container when one of its processes runs out of memory (v2 only).
	groupOOM    bool
	held        func() []*corev1.Pod // pods that hold resources here
	assignments *numa.Manager        // set before the first pod
	pods        qosPods
	// took measures an operation on a pod's group: create, update, destroy. Optional.
	took func(operation string, d time.Duration)

	mu      sync.Mutex
	made    map[types.UID]string  // group, by pod, as made by this process
	written map[string]qos.Values // to the groups above the pods', last
	found   map[string]string     // where pods have no groups of ours: group, by container id, as there was when one was last looked for
}

// prepare makes the node's group and its tiers, before the first pod.
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
	// The group above may have fewer CPUs than the machine, and the kernel of v1 lets no group have more than that. On v2
	// what a group has more does not count, and one that is offline is its own again when it comes back, though no agent
	// should run then.
	if g.tree.Mode() != cgroup.V2 {
		cpus, err := g.tree.CPUs(above)
		if err != nil {
			return err
		}
		node.CPUs = node.CPUs.Intersect(cpus)
	}
	if err := g.hold(g.layout.Node(), node); err != nil {
		return err
	}
	for _, class := range []qos.Class{qos.Burstable, qos.BestEffort} {
		tier := g.layout.Tier(class)
		if g.tree.Exists(tier) {
			continue // an agent before us weighed it for pods that we do not know yet
		}
		if err := g.hold(tier, qos.TierValues(class, qos.Requested{}, g.tiers)); err != nil {
			return err
		}
	}
	return nil
}

// weighEvery is how often the tiers are looked at although no pod came or went, for one that was resized or a weight
// that somebody else changed. Upstream's only way to follow pods.
const weighEvery = time.Minute

// follow keeps the tiers at what the pods here request, once all of those are known.
func (g *groups) follow(ctx context.Context, known func() bool) error {
	for pause := time.Second; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause):
		}
		if g.unmanaged || !known() {
			continue
		}
		pause = weighEvery
		g.mu.Lock()
		clear(g.written)
		err := g.weighHeld()
		g.mu.Unlock()
		if err != nil {
			slog.Warn("groups of QoS classes not set", "err", err)
		}
	}
}

// hold applies v to group, its memory limit only as fast as what runs there allows.
func (g *groups) hold(group string, v qos.Values) error {
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

// Ensure makes the pod's group and returns its name, which is what the runtime takes as parent.
func (g *groups) Ensure(pod *corev1.Pod) (string, error) {
	if g.unmanaged {
		return "", nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if group := g.made[pod.UID]; group != "" {
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
	g.made[pod.UID] = group
	return group, g.weighHeld()
}

// measure measures an operation that began then, until now.
func (g *groups) measure(operation string, begun time.Time) {
	if g.took != nil {
		g.took(operation, time.Since(begun))
	}
}

// weighHeld lets the tiers follow what the pods here request: at once, where upstream takes up to a minute. Caller
// holds mu.
func (g *groups) weighHeld() error {
	var sum qos.Requested
	here := map[types.UID]bool{}
	for _, pod := range g.held() {
		here[pod.UID] = true
		sum.Add(g.pods.of(pod).Pod)
	}
	g.pods.keep(func(uid types.UID) bool { return here[uid] || g.made[uid] != "" })
	return g.weigh(sum)
}

// weigh writes what changed. Caller holds mu.
func (g *groups) weigh(sum qos.Requested) error {
	values := map[string]qos.Values{g.layout.Node(): qos.NodeProtection(sum, g.tiers.Memory)}
	for _, class := range []qos.Class{qos.Burstable, qos.BestEffort} {
		values[g.layout.Tier(class)] = qos.TierValues(class, sum, g.tiers)
	}
	for group, v := range values {
		if last, ok := g.written[group]; ok && reflect.DeepEqual(last, v) {
			continue
		}
		begun := time.Now()
		if err := g.hold(group, v); err != nil {
			return err
		}
		g.measure("update", begun)
		g.written[group] = v
	}
	return nil
}

// How long the group of a pod that has gone may stay busy: strayWait for what is on its way out (the runtime's shim
// leaves a moment after the last container: below 100 ms, at load 30 some hundred), then removeWait for what is killed.
const (
	strayWait  = time.Second
	removeWait = 2 * time.Second
)

// Remove removes the groups of a pod that has gone, whichever tier they are in. It does not ask whether there is one:
// what an attempt before left is in some hierarchies only. What still runs there is killed: nobody else would. A
// runtime that is killed while it makes a sandbox may forget that it did.
func (g *groups) Remove(ctx context.Context, uid types.UID) error {
	if g.unmanaged {
		return nil
	}
	defer g.measure("destroy", time.Now())
	for _, class := range []qos.Class{qos.Guaranteed, qos.Burstable, qos.BestEffort} {
		group := g.layout.Pod(class, string(uid))
		err := g.removeWithin(ctx, strayWait, group)
		if errors.Is(err, cgroup.ErrBusy) {
			var k cgroup.Killing
			if k, err = g.tree.Kill(group); err == nil {
				slog.Warn("killed what ran in the cgroup of a pod that is gone", "cgroup", group, "processes", k.Processes)
				k.FreeMemory()
				err = g.removeWithin(ctx, removeWait, group)
			}
		}
		if err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.made, uid)
	g.assignments.Gone(string(uid))
	return g.weighHeld()
}

// removeWithin tries to remove a group until nothing is in it.
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
		case <-time.After(10 * time.Millisecond):
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

// Sizes returns what the pod's group and its containers' are to be set to.
func (g *groups) Sizes(pod *corev1.Pod) (group resize.Size, of func(*corev1.Container) resize.Size) {
	p := g.pods.of(pod).Pod
	if !g.unmanaged {
		group = resize.SizeOf(g.podValues(pod))
	}
	return group, func(c *corev1.Container) resize.Size {
		return resize.SizeOf(g.containerValues(pod, c, p, translate.QoSContainer(c, false))) // c as it is given, not as the pod has it
	}
}

// podValues are those of core/qos, without a CFS quota where one of the containers has CPUs of its own: it could not
// use them whole.
func (g *groups) podValues(pod *corev1.Pod) qos.Values {
	v := qos.PodValues(g.pods.of(pod).Pod, g.policy)
	if g.assignments.Exclusive(string(pod.UID), "") {
		v.CPUQuota = unit.Unlimited[time.Duration]()
	}
	return v
}

// containerValues are those of core/qos, without a CFS quota where the container has CPUs of its own.
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
	return "", fmt.Errorf("find cgroup of container %s: none below %s is named for it", id, group)
}

// Resize takes a step that is about the pod's own group.
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
		return g.weighHeld()
	}
	return nil
}

// Update is a step that is about a container of size has, in the runtime's form. It names all that is known, not only
// what changes: containerd fills in the rest from its own record, which is behind the kernel if an agent died in the
// middle of an update, and writes that, too.
func (g *groups) Update(pod *corev1.Pod, c *corev1.Container, step resize.Step, has resize.Size) *runtimeapi.LinuxContainerResources {
	out, to := &runtimeapi.LinuxContainerResources{}, step.After(has)
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
	if g.policy.Swap.Accounted && g.tree.Mode() != cgroup.V2 {
		out.MemorySwapLimitInBytes = out.MemoryLimitInBytes // of v1, which counts both: it is never below the other
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

// group names the group of a pod; empty if it has none that we know.
func (g *groups) group(pod *corev1.Pod) string {
	if g.unmanaged {
		return ""
	}
	return g.layout.Pod(g.class(pod), string(pod.UID))
}

// aboveThePods returns the groups above the pods': of all pods, and of QoS classes. None where the agent makes none.
func (g *groups) aboveThePods() []string {
	if g.unmanaged {
		return nil
	}
	return []string{g.layout.Node(), g.layout.Tier(qos.Burstable), g.layout.Tier(qos.BestEffort)}
}

// class is a pod's QoS class.
func (g *groups) class(pod *corev1.Pod) qos.Class { return g.pods.of(pod).class }

// Killed is how many processes of a container the kernel has killed for memory.
func (g *groups) Killed(pod *corev1.Pod, id string) (int64, error) {
	group, err := g.groupOf(pod, id)
	if err != nil {
		return 0, err
	}
	return g.tree.Killed(group)
}

// Resources returns what the runtime is asked to set for a container.
func (g *groups) Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	p := g.pods.of(pod).Pod
	qc := qosContainer(p, pod, c)
	v := g.containerValues(pod, c, p, qc)
	out := runtimeResources(v, g.tree.Mode() == cgroup.V2)
	if v.CPUQuota.IsUnlimited() {
		out.CpuQuota = -1
	}
	for _, size := range g.pageSizes {
		if _, stated := v.HugePages[size]; !stated { // none for who asked for none
			out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: hugePageName(size)})
		}
	}
	out.OomScoreAdj = int64(qos.OOMScoreAdj(p, qc, g.memory))
	if g.groupOOM {
		setUnified(out, "memory.oom.group", "1")
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
	return translate.QoSContainer(c, false)
}

// SandboxResources returns the pod's overhead and the sum of what its containers get; runtimes that size a machine for
// the pod (Kata) read them, runc does not.
func (g *groups) SandboxResources(pod *corev1.Pod) (overhead, resources *runtimeapi.LinuxContainerResources) {
	p := g.pods.of(pod).Pod
	alone := p
	alone.Overhead = qos.Amounts{}
	unified := g.tree.Mode() == cgroup.V2
	return runtimeResources(qos.PodValues(qos.Pod{Overhead: p.Overhead}, g.policy), unified), runtimeResources(qos.PodValues(alone, g.policy), unified)
}

// runtimeResources translates values into CRI's form, where 0 means "not set". What CRI has no field for goes by the
// name of its file, which runtimes understand on v2 only.
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
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: hugePageName(size), Limit: uint64(limit)})
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

// Container names a container's group.
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
