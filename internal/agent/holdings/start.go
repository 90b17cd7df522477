package holdings

import (
	"fmt"
	"log/slog"
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
)

// Start fills in where a container may run and where its memory is to be, once nobody else runs on CPUs of its own. The
// caller starts the container and then calls done. An error says that it must not be started now.
func (k *Keeper) Start(pod, container string, r *runtimeapi.LinuxContainerResources) (done func(), err error) {
	k.mu.Lock()
	h := k.holding(pod, container)
	k.mu.Unlock()
	if nodes := memoryNodes(h); len(nodes) > 0 {
		r.CpusetMems = list(nodes)
	}
	if h.CPUs.IsEmpty() {
		return k.Update(pod, container, r), nil
	}
	k.mu.Lock()
	if g, here := k.groups[pod]; here {
		k.groups[pod] = group{name: g.name} // its sandbox started where the group may run: it moves aside
	}
	k.mu.Unlock()
	if err := k.settle(); err != nil {
		return nil, fmt.Errorf("make room on CPUs %v: %w", h.CPUs, err)
	}
	r.CpusetCpus = h.CPUs.String()
	return func() {}, nil
}

// Update fills in the pool where it goes through the runtime: for a shared container of a pod that has CPUs of its own, whose
// cpuset of former times the runtime would write back with any other resource. The pool does not change until done is called.
func (k *Keeper) Update(pod, container string, r *runtimeapi.LinuxContainerResources) (done func()) {
	k.mu.Lock()
	mixed := k.holding(pod, container).CPUs.IsEmpty() && !k.own(pod).IsEmpty()
	k.mu.Unlock()
	if !mixed {
		return func() {}
	}
	k.moving.RLock()
	r.CpusetCpus = k.SharedCPUs().String()
	return k.moving.RUnlock
}

// Check compares where a container with CPUs of its own runs, by its cgroup, with what it was given.
func (k *Keeper) Check(pod, container, group string) error {
	k.mu.Lock()
	want := k.holding(pod, container).CPUs
	k.mu.Unlock()
	if want.IsEmpty() {
		return nil
	}
	has, err := k.Cgroups.CPUs(group)
	if err != nil {
		return err
	}
	if !has.Equal(want) {
		return fmt.Errorf("check CPUs of container %s in %s: the kernel has it run on %v, it was given %v", container, group, has, want)
	}
	return nil
}

// memoryNodes returns the NUMA nodes of a container's own memory.
func memoryNodes(h numa.Holding) []machine.NUMAID {
	var nodes []machine.NUMAID
	for _, b := range h.Memory {
		nodes = append(nodes, b.Nodes...)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func list(nodes []machine.NUMAID) string {
	var ids []int
	for _, n := range nodes {
		ids = append(ids, int(n))
	}
	return idset.Of(ids...).String()
}

// logProblems tells what was found to be different, each with its numbers.
func logProblems(what string, problems []string) {
	for _, p := range problems {
		slog.Warn(what, "difference", p)
	}
}
