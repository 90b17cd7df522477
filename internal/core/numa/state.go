package numa

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/memory"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// State is what is free on a machine, and what is assigned to which pod. It depends only on the assignments and the
// plugins' devices, and not on the order in which they came. A State is for one goroutine at a time. Fork makes an
// independent copy.
type State struct {
	// The Layout, which all States of the node share.
	l           *Layout
	shared      bitset.Set    // CPUs that are not exclusive to a container
	memory      memory.Table  // which memory is assigned
	pools       []pool        // sorted by resource
	assignments []*Assignment // sorted by pod; an Assignment is never changed, only replaced
	revision    uint64        // incremented by every change, so that Commit recognizes offers from before it
}

// NewState returns the State of a machine without pods and plugins.
func (l *Layout) NewState() *State {
	s := &State{l: l, shared: l.cpu.CPUs.Clone(), memory: l.memory.Unused()}
	if l.config.CPU.StrictReservation {
		s.shared.Drop(l.reserved)
	}
	return s
}

// Fork returns an independent copy of s.
func (s *State) Fork() *State {
	f := *s
	f.shared = s.shared.Clone()
	f.memory = s.memory.Fork()
	f.assignments = slices.Clone(s.assignments)
	f.pools = slices.Clone(s.pools)
	for i := range f.pools {
		f.pools[i].taken = f.pools[i].taken.Clone()
	}
	return &f
}

// SetPlugin records a plugin's devices, new or changed. Devices that are assigned to pods stay assigned, also if the
// plugin no longer lists them.
func (s *State) SetPlugin(p Plugin) {
	s.revision++
	i, found := s.pool(p.Resource)
	if !found {
		s.pools = slices.Insert(s.pools, i, pool{})
	}
	s.pools[i] = s.poolOf(p.Resource, &p)
}

// poolOf returns the devices of a resource: those that the plugin lists, and those that are assigned to pods. plugin
// may be nil.
func (s *State) poolOf(resource string, plugin *Plugin) pool {
	all := Plugin{Resource: resource, Gone: true}
	if plugin != nil {
		all = *plugin
	}
	named := map[string]bool{}
	for _, d := range all.Devices {
		named[d.ID] = true
	}
	held := s.devicesOfPods(resource)
	unnamed := 0
	for _, id := range held {
		if !named[id] {
			all.Devices = append(slices.Clip(all.Devices), Device{ID: id})
			unnamed++
		}
	}
	t := s.l.table(all)
	t.plugin, t.unnamed = plugin, unnamed > 0
	out := pool{t, bitset.New(len(t.ids))}
	out.mark(held)
	return out
}

func (s *State) pool(resource string) (int, bool) {
	return slices.BinarySearchFunc(s.pools, resource, func(p pool, resource string) int {
		return cmp.Compare(p.resource, resource)
	})
}

func (s *State) devicesOfPods(resource string) []string {
	var ids []string
	for _, a := range s.assignments {
		for _, h := range a.Containers {
			for _, d := range h.Devices {
				if d.Resource == resource {
					ids = append(ids, d.IDs...)
				}
			}
		}
	}
	return ids
}

func (p *pool) mark(ids []string) {
	for _, id := range ids {
		if i, ok := slices.BinarySearch(p.ids, id); ok {
			p.taken.Add(i)
		}
	}
}

// Adopt assigns to a pod what a says: an offer, or what the pod was found to have after a restart. It leaves out what
// is impossible (CPUs that are offline or exclusive to another pod), and returns a message about each. It assigns the
// rest, because a running pod keeps its resources.
func (s *State) Adopt(a Assignment) []string {
	i, found := s.find(a.Pod)
	if found {
		return []string{fmt.Sprintf("pod %s: is known already", a.Pod)}
	}
	var problems []string
	own := Assignment{Pod: a.Pod}
	cpus := s.l.cpu.None()
	for _, h := range a.Containers {
		h.CPUs = s.adoptCPUs(a.Pod, h, cpus, &problems)
		h.Memory = s.adoptMemory(a.Pod, h, &problems)
		h.Devices = s.adoptDevices(a.Pod, h, own.Containers, &problems)
		own.Containers = append(own.Containers, h)
	}
	s.shared.Drop(cpus)
	s.assignments = slices.Insert(s.assignments, i, &own)
	s.revision++
	return problems
}

func (s *State) adoptCPUs(pod string, h Assigned, own bitset.Set, problems *[]string) idset.Set {
	if h.CPUs.IsEmpty() {
		return h.CPUs
	}
	var bad []int
	for cpu := range h.CPUs.All() {
		if cpu >= len(s.shared)*64 || !s.shared.Has(cpu) || s.l.reserved.Has(cpu) {
			bad = append(bad, cpu)
			continue
		}
		own.Add(cpu)
	}
	if bad == nil {
		return h.CPUs
	}
	gone := idset.Of(bad...)
	*problems = append(*problems,
		fmt.Sprintf("pod %s: container %s: CPUs %v: offline, reserved or assigned to another pod", pod, h.Container, gone))
	return h.CPUs.Minus(gone)
}

func (s *State) adoptMemory(pod string, h Assigned, problems *[]string) []Block {
	var out []Block
	for _, b := range h.Memory {
		nodes, kind := s.l.places(b.Nodes), s.l.memory.Kind(b.PageSize)
		if nodes.IsEmpty() || kind < 0 || nodes.Count() != len(b.Nodes) {
			*problems = append(*problems, fmt.Sprintf("pod %s: container %s: %v of %s on nodes %v: this machine has no such "+
				"memory", pod, h.Container, b.Bytes, KindName(b.PageSize), b.Nodes))
			continue
		}
		s.memory.Change(s.l.memory, nodes, kind, 1, int64(b.Bytes))
		out = append(out, b)
	}
	return out
}

func (s *State) adoptDevices(pod string, h Assigned, before []Assigned, problems *[]string) []Devices {
	var out []Devices
	for _, d := range h.Devices {
		i, found := s.pool(d.Resource)
		if !found { // the plugin has not connected yet: only devices assigned to pods are known
			s.pools = slices.Insert(s.pools, i, s.poolOf(d.Resource, nil))
		}
		var mine, bad []string
		for _, id := range d.IDs {
			place, known := slices.BinarySearch(s.pools[i].ids, id)
			if known && s.pools[i].taken.Has(place) && !holds(before, d.Resource, id) {
				bad = append(bad, id)
				continue
			}
			if !known {
				s.pools[i] = s.l.extend(s.pools[i], id)
			}
			mine = append(mine, id)
			s.pools[i].mark(mine)
		}
		if bad != nil {
			*problems = append(*problems, fmt.Sprintf("pod %s: container %s: %s %s: assigned to another pod", pod, h.Container,
				d.Resource, strings.Join(bad, ",")))
		}
		out = append(out, Devices{d.Resource, mine})
	}
	return out
}

// extend returns the pool with one more device, of which only the id is known.
func (l *Layout) extend(p pool, id string) pool {
	t := *p.deviceTable
	at, _ := slices.BinarySearch(t.ids, id)
	t.ids = slices.Insert(slices.Clone(t.ids), at, id)
	t.places = slices.Insert(slices.Clone(t.places), at, bitset.New(len(l.nodeID)))
	t.somewhere = slices.Insert(slices.Clone(t.somewhere), at, false)
	t.unnamed, t.healthy = true, bitset.New(len(t.ids))
	for i := range p.healthy.All {
		if i >= at {
			i++
		}
		t.healthy.Add(i)
	}
	out := pool{&t, bitset.New(len(t.ids))}
	out.mark(p.names(p.taken))
	return out
}

func holds(given []Assigned, resource, id string) bool {
	for _, h := range given {
		for _, d := range h.Devices {
			if d.Resource == resource && slices.Contains(d.IDs, id) {
				return true
			}
		}
	}
	return false
}

func (s *State) find(pod string) (int, bool) {
	return slices.BinarySearchFunc(s.assignments, pod, func(a *Assignment, pod string) int {
		return cmp.Compare(a.Pod, pod)
	})
}

// Assignment returns what is assigned to a pod.
func (s *State) Assignment(pod string) (Assignment, bool) {
	i, found := s.find(pod)
	if !found {
		return Assignment{}, false
	}
	return *s.assignments[i], true
}

// Assignments returns what is assigned to all pods, sorted by pod.
func (s *State) Assignments() []Assignment {
	out := make([]Assignment, len(s.assignments))
	for i, a := range s.assignments {
		out[i] = *a
	}
	return out
}

// Release takes back everything assigned to a pod. It reports whether the pod was known.
func (s *State) Release(pod string) bool {
	i, found := s.find(pod)
	if !found {
		return false
	}
	a := s.assignments[i]
	s.assignments = slices.Delete(s.assignments, i, i+1)
	s.revision++
	for _, h := range a.Containers {
		for cpu := range h.CPUs.All() {
			s.shared.Add(cpu)
		}
		s.dropMemory(h.Memory)
		for _, d := range h.Devices {
			s.dropDevices(d)
		}
	}
	return true
}

func (s *State) dropDevices(d Devices) {
	i, ok := s.pool(d.Resource)
	switch {
	case !ok: // it was dropped with the devices of another container
	case !s.pools[i].unnamed:
		for _, id := range d.IDs {
			if place, ok := slices.BinarySearch(s.pools[i].ids, id); ok {
				s.pools[i].taken.Remove(place)
			}
		}
	default: // a device that is known from pods only is dropped with the last of them
		if s.pools[i] = s.poolOf(d.Resource, s.pools[i].plugin); s.pools[i].plugin == nil && len(s.pools[i].ids) == 0 {
			s.pools = slices.Delete(s.pools, i, i+1)
		}
	}
}

func (s *State) dropMemory(blocks []Block) {
	for _, b := range blocks {
		s.memory.Change(s.l.memory, s.l.places(b.Nodes), s.l.memory.Kind(b.PageSize), -1, -int64(b.Bytes))
	}
}

// Finish takes back the memory of a pod's init containers that have ended, except what they have passed on. CPUs and
// devices stay assigned, as in upstream.
func (s *State) Finish(pod string) {
	i, found := s.find(pod)
	if !found {
		return
	}
	a := *s.assignments[i]
	a.Containers = slices.Clone(a.Containers)
	for j, h := range a.Containers {
		if h.Init && h.Memory != nil {
			s.dropMemory(h.Memory)
			a.Containers[j].Memory = nil
		}
	}
	s.assignments[i] = &a
	s.revision++
}

// SharedCPUs returns the shared pool: the CPUs of all containers without exclusive CPUs.
func (s *State) SharedCPUs() idset.Set { return s.shared.IDs() }

// NodeFree is what is free on a NUMA node.
type NodeFree struct {
	Node   machine.NUMAID
	CPUs   idset.Set // CPUs that can become exclusive
	Memory []MemoryRequest
}

// Free returns what is free on each node.
func (s *State) Free() []NodeFree {
	out := make([]NodeFree, len(s.l.nodeID))
	available := s.available()
	for i, id := range s.l.nodeID {
		cpus := available.Clone()
		cpus.Keep(s.l.cpu.Nodes[i].CPUs)
		out[i] = NodeFree{Node: id, CPUs: cpus.IDs()}
		for k, size := range s.l.memory.Kinds {
			out[i].Memory = append(out[i].Memory, MemoryRequest{size, unit.Bytes(s.memory.Free(s.l.memory, k)[i])})
		}
	}
	return out
}

// Excess is memory assigned beyond what its nodes have, because machine or configuration changed while the pods ran.
type Excess struct {
	Nodes    []machine.NUMAID
	PageSize unit.Bytes // 0: ordinary memory
	// How much is assigned, and how much the nodes have.
	Owned, Has unit.Bytes
}

// Excess returns the memory that is assigned beyond what there is.
func (s *State) Excess() []Excess {
	var out []Excess
	add := func(nodes bitset.Set, kind int, owned, has int64) {
		e := Excess{PageSize: s.l.memory.Kinds[kind], Owned: unit.Bytes(owned), Has: unit.Bytes(has)}
		for i := range nodes.All {
			e.Nodes = append(e.Nodes, s.l.nodeID[i])
		}
		out = append(out, e)
	}
	s.memory.Excess(s.l.memory, add)
	return out
}

// FreeDevices returns the healthy devices that are not assigned, by resource.
func (s *State) FreeDevices() []Devices {
	var out []Devices
	for i := range s.pools {
		out = append(out, Devices{s.pools[i].resource, s.pools[i].names(s.pools[i].free())})
	}
	return out
}

// Plugins returns what SetPlugin last got, sorted by resource. Resources that are known from pods only are left out.
func (s *State) Plugins() []Plugin {
	var out []Plugin
	for i := range s.pools {
		if s.pools[i].plugin != nil {
			out = append(out, *s.pools[i].plugin)
		}
	}
	return out
}

// available returns the CPUs that can become exclusive.
func (s *State) available() bitset.Set {
	free := s.shared.Clone()
	free.Drop(s.l.reserved)
	return free
}
