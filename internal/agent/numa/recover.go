package numa

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
)

// Remains is what an earlier agent left of a pod.
type Remains struct {
	Pod   string
	Group string // its cgroup; empty: it has none
	// Note's result when the pod's newest sandbox or container was created, or NoteOf what a kubelet's checkpoint says;
	// empty: nothing was assigned
	Note    string
	Ready   bool              // the sandbox is running
	Booted  bool              // the machine booted after the sandbox was created, so nothing of the pod can run
	Created int64             // when the sandbox was created, to order sandboxes by age
	Running map[string]string // the cgroups of running containers, by name
}

// Note returns what must be stored with a pod's sandbox for Recover; empty: nothing.
func (k *Manager) Note(pod string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	a, has := k.state.Assignment(pod)
	if !has {
		return ""
	}
	a.Containers = slices.Clone(a.Containers)
	for i := range a.Containers {
		a.Containers[i].CPUs = a.Containers[i].CPUs.Union(k.unrecorded[pod][a.Containers[i].Container])
	}
	return topology.EncodePod(a)
}

// NoteOf returns the note about an assignment that a kubelet made; empty: nothing is assigned.
func NoteOf(a numa.Assignment) string { return topology.EncodePod(a) }

// Recover restores what earlier agents assigned to pods. What contradicts the machine or the configuration is logged,
// and running containers keep what they have. It must be called once, before all other methods.
func (k *Manager) Recover(all []Remains) {
	// Running pods come first: what was assigned to a pod that has ended may be another pod's by now.
	all = slices.SortedFunc(slices.Values(all), func(a, b Remains) int {
		return cmp.Or(-compareBool(len(a.Running) > 0, len(b.Running) > 0), -compareBool(a.Ready, b.Ready),
			-cmp.Compare(a.Created, b.Created), cmp.Compare(a.Pod, b.Pod))
	})
	k.mu.Lock()
	owners := 0
	for _, r := range all {
		if r.Group != "" {
			k.groups[r.Pod] = group{name: r.Group}
		}
		if r.Note != "" && k.adopt(r) {
			owners++
		}
	}
	shared := k.shared()
	for _, e := range k.state.Excess() {
		slog.Warn("more memory is assigned to pods than NUMA nodes have; the pods keep it", "numaNodes", e.Nodes,
			"type", numa.KindName(e.PageSize), "assigned", e.Owned, "has", e.Has)
	}
	k.mu.Unlock()
	slog.Info("assignments of pods recovered", "pods", len(all), "withAssignments", owners, "sharedCPUs", shared)
	k.publishSoon()
	if err := k.confineAll(); err != nil {
		slog.Warn("the shared pool was not set for all pods; trying again before CPUs are assigned to a container",
			"err", err)
	}
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}

// adopt restores the assignment of one pod. The caller holds mu.
func (k *Manager) adopt(r Remains) bool {
	a, err := topology.DecodePod(r.Note)
	if err == nil && a.Pod != r.Pod {
		err = fmt.Errorf("it is about pod %.80q", a.Pod)
	}
	if err != nil {
		slog.Warn("assignment of a pod not recovered: its containers keep what they have, "+
			"and nothing counts as assigned to it", "uid", r.Pod, "err", err)
		return false
	}
	if len(r.Running) == 0 && !r.Ready && !r.Booted {
		// the pod has ended, or it will be admitted again: what it had may be assigned to another pod by now
		k.readmit[r.Pod] = true
		return false
	}
	if len(r.Running) == 0 {
		if problems := k.state.Fork().Adopt(a); problems != nil {
			logProblems("a pod without running containers lost its assignment, and is admitted again", problems)
			k.readmit[r.Pod] = true
			return false
		}
	}
	logProblems("a running pod has an assignment that would not be made now; it keeps it", k.state.Adopt(a))
	for _, h := range a.Containers {
		if _, runs := r.Running[h.Container]; runs {
			k.setUnrecorded(r.Pod, h)
		}
	}
	for _, h := range a.Containers {
		if inner := r.Running[h.Container]; inner != "" {
			k.compare(r.Pod, h, inner)
		}
	}
	return true
}

// setUnrecorded records the CPUs that a running container was given and that State cannot record as its own. Offline
// CPUs are among them: the kernel gives them back to the container when they come online. The caller holds mu.
func (k *Manager) setUnrecorded(pod string, given numa.Assigned) {
	lost := given.CPUs.Minus(k.assigned(pod, given.Container).CPUs)
	if lost.IsEmpty() {
		return
	}
	if k.unrecorded[pod] == nil {
		k.unrecorded[pod] = map[string]idset.Set{}
	}
	k.unrecorded[pod][given.Container] = lost
}

// compare logs where the kernel's values differ from the recorded assignment.
func (k *Manager) compare(pod string, h numa.Assigned, inner string) {
	for _, err := range []error{
		differs(h.Container, inner, "CPUs", h.CPUs, k.Cgroups.CPUs),
		differs(h.Container, inner, "memory of NUMA nodes", setOf(memoryNodes(h)), k.Cgroups.MemoryNodes),
	} {
		if err != nil {
			slog.Warn("a running container's cgroup differs from its assignment", "uid", pod, "err", err)
		}
	}
}

func cpusOf(a numa.Assignment) idset.Set {
	var cpus idset.Set
	for _, h := range a.Containers {
		cpus = cpus.Union(h.CPUs)
	}
	return cpus
}
