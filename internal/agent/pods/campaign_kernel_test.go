package pods

import (
	"context"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/agent/allocation"
	"github.com/plimsoll-dev/plimsoll/internal/core/admission"
	"github.com/plimsoll-dev/plimsoll/internal/core/qos"
	"github.com/plimsoll-dev/plimsoll/internal/core/resize"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// Sizes are core/qos's.
func (g fakeGroups) Sizes(pod *corev1.Pod) (resize.Size, func(*corev1.Container) resize.Size) {
	if !asksFor(pod) {
		return resize.Size{}, func(*corev1.Container) resize.Size { return resize.Size{} }
	}
	p, policy := translate.QoSPod(pod), qos.DefaultPolicy()
	return resize.SizeOf(qos.PodValues(p, policy)), func(c *corev1.Container) resize.Size {
		return resize.SizeOf(qos.ContainerValues(p, translate.QoSContainer(c, false), policy))
	}
}

// Has returns what the kernel reports; v2 has no shares.
func (g fakeGroups) Has(pod *corev1.Pod, id string) (resize.Size, error) {
	w := g.l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	size, there := w.kernel[groupKey(pod, id)]
	if !there || w.fails("read group") {
		return resize.Size{}, os.ErrNotExist
	}
	has := resize.Size{Shares: size.Shares, Quota: size.Quota, Period: size.Period, Memory: size.Memory}
	if w.v2 {
		has.Shares = unit.Amount[qos.Shares]{}
	}
	return has, nil
}

func groupKey(pod *corev1.Pod, id string) string {
	if id == "" {
		return string(pod.UID)
	}
	return id
}

// Resize writes the pod's own group.
func (g fakeGroups) Resize(pod *corev1.Pod, step resize.Step) error {
	w := g.l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.life != g.l || w.down || w.fails("write group") {
		return outage
	}
	key := string(pod.UID)
	if err := w.write(key, step.After(w.kernel[key])); err != nil {
		return err
	}
	if w.fails("write group half") {
		return outage
	}
	return nil
}

// Update returns every known value.
func (g fakeGroups) Update(
	_ *corev1.Pod, _ *corev1.Container, step resize.Step, has resize.Size,
) *runtimeapi.LinuxContainerResources {
	return inCRI(step.After(has))
}

// MemoryInUse returns the memory in use now.
func (g fakeGroups) MemoryInUse(pod *corev1.Pod, id string) (unit.Bytes, error) {
	w := g.l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fails("read usage") {
		return 0, outage
	}
	key := groupKey(pod, id)
	w.read[key] = time.Now()
	used, _ := w.inUse(key)
	return used, nil
}

// Resources returns the resources with which a container is created.
func (g fakeGroups) Resources(pod *corev1.Pod, c *corev1.Container) *runtimeapi.LinuxContainerResources {
	_, of := g.Sizes(pod)
	return inCRI(of(c))
}

// SandboxResources returns nothing: the runtime does not start a virtual machine for each pod.
func (g fakeGroups) SandboxResources(*corev1.Pod) (overhead, resources *runtimeapi.LinuxContainerResources) {
	return nil, nil
}

// inCRI translates a size for the runtime: 0 means not set, -1 no limit.
func inCRI(size resize.Size) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{}
	if shares, ok := size.Shares.Get(); ok {
		out.CpuShares = int64(shares)
	}
	if quota, ok := size.Quota.Get(); ok {
		out.CpuQuota, out.CpuPeriod = quota.Microseconds(), size.Period.Microseconds()
	} else if size.Quota.IsUnlimited() {
		out.CpuQuota = -1
	}
	if memory, ok := size.Memory.Get(); ok {
		out.MemoryLimitInBytes = int64(memory)
	} else if size.Memory.IsUnlimited() {
		out.MemoryLimitInBytes = -1
	}
	return out
}

// onto returns the size of a group that had size, after the runtime wrote r.
func onto(size resize.Size, r *runtimeapi.LinuxContainerResources) resize.Size {
	if r.GetCpuShares() != 0 {
		size.Shares = unit.Of(qos.Shares(r.CpuShares))
	}
	switch quota := r.GetCpuQuota(); {
	case quota > 0:
		size.Quota = unit.LimitTo(time.Duration(quota) * time.Microsecond)
		size.Period = time.Duration(r.CpuPeriod) * time.Microsecond
	case quota < 0:
		size.Quota, size.Period = unit.Unlimited[time.Duration](), 0
	}
	switch memory := r.GetMemoryLimitInBytes(); {
	case memory > 0:
		size.Memory = unit.LimitTo(unit.Bytes(memory))
	case memory < 0:
		size.Memory = unit.Unlimited[unit.Bytes]()
	}
	return size
}

// sameSize compares the parts of sizes that are written to the kernel.
func sameSize(a, b resize.Size) bool {
	return a.Shares == b.Shares && a.Quota == b.Quota && a.Period == b.Period && a.Memory == b.Memory
}

// inUse returns how much memory a group uses, and since when. The caller holds mu.
func (w *world) inUse(key string) (used unit.Bytes, since time.Time) {
	if b := w.containers[key]; b != nil {
		return b.used, b.usedSince
	}
	for _, b := range w.containers {
		if string(b.uid) == key && b.alive {
			used, since = used+b.used, later(since, b.usedSince)
		}
	}
	return used, since
}

// write sets a pod's or a container's group, unless the kernel refuses. The caller holds mu.
func (w *world) write(key string, to resize.Size) error {
	if _, there := w.kernel[key]; !there {
		return os.ErrNotExist
	}
	b := w.containers[key]
	for _, o := range w.containers {
		switch {
		case w.v2 || !o.alive:
		case b == o && wider(to, w.kernel[string(o.uid)]), string(o.uid) == key && wider(w.kernel[o.id], to):
			return unix.EINVAL // v1 refuses a quota above that of the group above
		}
	}
	if limit, bounded := to.Memory.Get(); bounded && to.Memory != w.kernel[key].Memory {
		used, since := w.inUse(key)
		if used >= limit && since.Before(w.read[key]) {
			w.judged("%s gets a limit of %s, which is less than it was known to use", key, limit)
		}
		if used >= limit && !w.v2 {
			return unix.EBUSY
		}
		if used >= limit && b != nil {
			w.end(b, 137)
			return nil
		}
	}
	w.judgeWrite(key, to)
	w.kernel[key] = to
	return nil
}

// sizeAtStart gives a container that starts the size with which it was created. The caller holds mu.
func (w *world) sizeAtStart(b *box) {
	if w.sizings[b.uid] == nil {
		return
	}
	b.record = onto(resize.Size{}, b.config.GetLinux().GetResources())
	w.judgeWrite(b.id, b.record)
	w.kernel[b.id] = b.record
}

// wider compares quotas.
func wider(a, b resize.Size) bool {
	x, bounded := a.CPULimit()
	y, bound := b.CPULimit()
	return bound && (!bounded || x > y)
}

// judgeWrite checks that each value that is set was allocated at some time. The caller holds mu.
func (w *world) judgeWrite(key string, to resize.Size) {
	b := w.containers[key]
	if b == nil || w.sizings[b.uid] == nil {
		return
	}
	shares := false
	quota := false
	memory := false
	for _, wish := range w.sizings[b.uid].wishes {
		c := translate.ContainerNamed(wish.pod, b.name)
		if !w.sizings[b.uid].wasAllocated(wish) || c == nil {
			continue
		}
		least := *c // a limit that was allocated and not set when an agent died may be as low as the request
		least.Resources.Limits = least.Resources.Requests
		_, of := fakeGroups{}.Sizes(wish.pod)
		for _, size := range []resize.Size{of(c), of(&least)} {
			shares = shares || size.Shares == to.Shares
			quota = quota || size.Quota == to.Quota
			memory = memory || size.Memory == to.Memory
		}
	}
	if !shares || !quota || !memory {
		w.judged("%s %s#%d is set to %s, which it was not allocated", b.uid, b.name, b.attempt, to)
	}
}

// UpdateContainerResources writes the values of the request, and for those that are not set the last ones it got.
func (f fakeRuntime) UpdateContainerResources(
	ctx context.Context, in *runtimeapi.UpdateContainerResourcesRequest, _ ...grpc.CallOption,
) (*runtimeapi.UpdateContainerResourcesResponse, error) {
	w := f.l.w
	out := &runtimeapi.UpdateContainerResourcesResponse{}
	return out, f.l.call(ctx, "update", w.owner(in.ContainerId), func() error {
		b := w.containers[in.ContainerId]
		if b == nil {
			return notFound(in.ContainerId)
		}
		if b.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
			return status.Error(codes.FailedPrecondition, "it does not run")
		}
		record := onto(b.record, in.Linux)
		if err := w.write(b.id, record); err != nil {
			return fmt.Errorf("write cgroup of %s: %w", b.id, err)
		}
		w.say("  %s %s#%d is set to %s", b.uid, b.name, b.attempt, record)
		if w.fails("record") {
			return outage
		}
		b.record = record
		return nil
	})
}

// UpdatePodSandboxResources is a call that not every runtime implements.
func (f fakeRuntime) UpdatePodSandboxResources(
	ctx context.Context, in *runtimeapi.UpdatePodSandboxResourcesRequest, _ ...grpc.CallOption,
) (*runtimeapi.UpdatePodSandboxResourcesResponse, error) {
	if !f.l.w.evented { // an old runtime
		return nil, status.Error(codes.Unimplemented, "no such call")
	}
	out := &runtimeapi.UpdatePodSandboxResourcesResponse{}
	return out, f.l.call(ctx, "update sandbox", f.l.w.owner(in.PodSandboxId), func() error { return nil })
}

// Admit rejects some pods, the same for every agent, and others by core/admission or because there is no room.
func (a fakeAdmission) Admit(pod *corev1.Pod, others []*corev1.Pod) *Rejection {
	w := a.l.w
	if room := w.room; room > 0 { // set before the agent began
		if len(others) < room {
			return nil
		}
		return &Rejection{Reason: "OutOfpods", Message: "no room"}
	}
	if w.dice("admit", pod.UID).IntN(12) == 0 {
		return &Rejection{Reason: "OutOfcpu", Message: "no room"}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if r := w.nodeWith(others).Check(translate.SchedulerPod(pod)); r != nil {
		return &Rejection{Reason: r.Reason, Message: r.Message, Room: r.Room}
	}
	w.allocate(pod)
	return nil
}

// node returns what the node offers. The caller holds mu.
func (w *world) node() scheduler.Node {
	return scheduler.Node{Name: "node-1", PodsMax: 110, Allocatable: []scheduler.Amount{
		{Resource: "cpu", Value: w.milli}, {Resource: "memory", Value: 6 << 30},
	}}
}

// nodeWith returns the node with pods on it. The caller holds mu.
func (w *world) nodeWith(all []*corev1.Pod) *admission.Node {
	n := admission.NewNode(w.node())
	for _, pod := range all {
		n.Set(translate.SchedulerPod(pod))
	}
	return n
}

// Resize returns core/admission's verdicts. Some resizes are infeasible, the same for every agent.
func (a fakeAdmission) Resize(requests []allocation.Request, held []*corev1.Pod) (verdicts []allocation.Verdict) {
	w := a.l.w
	w.mu.Lock()
	defer w.mu.Unlock()
	var asked []admission.Resize
	for _, request := range requests {
		wants := *request.Desired
		wants.Status = corev1.PodStatus{}
		never := ""
		if w.dice("never", wants.UID, wants.Generation).IntN(12) == 0 && !sameRequests(&wants, request.Allocated) {
			never = "not on this node"
		}
		asked = append(asked, admission.Resize{
			Want: translate.SchedulerPod(&wants), Has: translate.SchedulerPod(request.Allocated), Class: qos.Burstable,
			Since: request.Since, Never: never,
		})
	}
	for i, v := range w.nodeWith(held).Resizes(asked) {
		verdicts = append(verdicts, allocation.Verdict(v))
		if v.Allocated && w.life == a.l && !w.down {
			w.allocate(requests[i].Desired)
		}
	}
	return verdicts
}
