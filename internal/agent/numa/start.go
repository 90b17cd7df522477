package numa

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
)

// Start sets where a container may run and from which NUMA nodes it gets memory, as soon as no other container runs on
// its assigned CPUs. The caller starts the container and then calls done. An error means that the container must not be
// started now.
func (k *Manager) Start(pod, container string, r *runtimeapi.LinuxContainerResources) (done func(), err error) {
	k.mu.Lock()
	h := k.assigned(pod, container)
	k.mu.Unlock()
	if k.dropUnrecorded(pod, container) {
		if err := k.confineAll(); err != nil {
			return nil, err
		}
	}
	if nodes := memoryNodes(h); len(nodes) > 0 {
		r.CpusetMems = setOf(nodes).String()
	}
	if h.CPUs.IsEmpty() {
		return k.Update(pod, container, r), nil
	}
	k.mu.Lock()
	if g, here := k.groups[pod]; here {
		// the pod's sandbox started on all CPUs of the cgroup: confineAll must confine it again
		k.groups[pod] = group{name: g.name}
	}
	k.mu.Unlock()
	if err := k.confineAll(); err != nil {
		return nil, fmt.Errorf("remove other containers from CPUs %v: %w", h.CPUs, err)
	}
	r.CpusetCpus = h.CPUs.String()
	return func() {}, nil
}

// dropUnrecorded drops CPUs that only an earlier run of a container had. It returns whether there were any.
func (k *Manager) dropUnrecorded(pod, container string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	_, had := k.unrecorded[pod][container]
	delete(k.unrecorded[pod], container)
	if len(k.unrecorded[pod]) == 0 {
		delete(k.unrecorded, pod)
	}
	return had
}

// Update sets the pool where it is passed through the runtime: for a shared container of a pod with assigned CPUs.
// Otherwise the runtime would write back the container's earlier cpuset with any other resource. The pool does not
// change until done is called.
func (k *Manager) Update(pod, container string, r *runtimeapi.LinuxContainerResources) (done func()) {
	k.mu.Lock()
	mixed := k.cpus(pod, container).IsEmpty() && !k.own(pod).IsEmpty()
	k.mu.Unlock()
	if !mixed {
		return func() {}
	}
	k.moving.RLock()
	r.CpusetCpus = k.SharedCPUs().String()
	return k.moving.RUnlock
}

// Check compares what is assigned to a container with what its cgroup allows.
func (k *Manager) Check(pod, container, group string) error {
	k.mu.Lock()
	h := k.assigned(pod, container)
	k.mu.Unlock()
	return errors.Join(
		differs(container, group, "CPUs", h.CPUs, k.Cgroups.CPUs),
		differs(container, group, "memory of NUMA nodes", setOf(memoryNodes(h)), k.Cgroups.MemoryNodes),
	)
}

// differs compares what a container was given with what the kernel has. If nothing was given, any value is right.
func differs(container, group, what string, given idset.Set, kernel func(string) (idset.Set, error)) error {
	if given.IsEmpty() {
		return nil
	}
	has, err := kernel(group)
	if err != nil {
		return err
	}
	var off []string
	if lost := given.Minus(has); !lost.IsEmpty() {
		off = append(off, fmt.Sprintf("missing %v", lost))
	}
	if more := has.Minus(given); !more.IsEmpty() {
		off = append(off, fmt.Sprintf("more %v", more))
	}
	if off != nil {
		return fmt.Errorf("check container %s in %s: %s: the kernel has %v, %v is assigned: %s", container, group, what, has,
			given, strings.Join(off, ", "))
	}
	return nil
}

// memoryNodes returns the NUMA nodes of the memory that is assigned to a container.
func memoryNodes(h numa.Assigned) []machine.NUMAID {
	var nodes []machine.NUMAID
	for _, b := range h.Memory {
		nodes = append(nodes, b.Nodes...)
	}
	slices.Sort(nodes)
	return slices.Compact(nodes)
}

func setOf(nodes []machine.NUMAID) idset.Set {
	var ids []int
	for _, n := range nodes {
		ids = append(ids, int(n))
	}
	return idset.Of(ids...)
}

// logProblems logs each difference with its numbers.
func logProblems(what string, problems []string) {
	for _, p := range problems {
		slog.Warn(what, "difference", p)
	}
}
