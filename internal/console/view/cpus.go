package view

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
)

// Map is who owns what on the NUMA nodes of a machine.
type Map struct {
	Nodes  []MapNode `json:"nodes"`
	Owners []string  `json:"owners"` // pods, as namespace/name; others refer to them by their index
}

// MapNode is a NUMA node.
type MapNode struct {
	ID        int         `json:"id"`
	Memory    int64       `json:"memory"`
	Free      int64       `json:"free"` // memory that can still be assigned
	Assigned  []MapMemory `json:"assigned,omitempty"`
	Distances []int       `json:"distances"` // to each node, in their order
	Cores     []MapCore   `json:"cores"`
	Devices   []MapDevice `json:"devices,omitempty"`
}

// MapMemory is memory of a NUMA node that a pod has for itself. Memory on several nodes together is listed on each of
// them, with Nodes.
type MapMemory struct {
	Owner int   `json:"owner"`
	Bytes int64 `json:"bytes"`
	Nodes []int `json:"nodes,omitempty"`
}

// MapCore is a core: one or more CPUs.
type MapCore struct {
	Socket int      `json:"socket"`
	CPUs   []MapCPU `json:"cpus"`
}

// MapCPU is a CPU.
type MapCPU struct {
	ID  int `json:"id"`
	Use Use `json:"use"`
	// Owners are the pods that have it for themselves: one, unless something is wrong.
	Owners []int `json:"owners,omitempty"`
}

// MapDevice is a device near a NUMA node.
type MapDevice struct {
	Resource string `json:"resource"`
	ID       string `json:"id"`
	Owner    int    `json:"owner"` // -1: it is free
}

// Use is what a CPU is used for.
type Use string

// The uses.
const (
	Own    Use = "own"    // a container has it for itself
	Free   Use = "free"   // in the shared pool, and can be assigned
	Shared Use = "shared" // never assigned: it is reserved, or the node assigns no CPUs
)

// MapOf returns the map of a machine in a state. nameOf returns the name of a pod; empty: it is not known.
func MapOf(m machine.Machine, s *numa.State, nameOf func(uid string) string) Map {
	out := Map{Nodes: []MapNode{}, Owners: []string{}}
	ownerOf := map[int][]int{} // by CPU
	memory := map[machine.NUMAID][]MapMemory{}
	devices := map[[2]string]int{}
	for i, a := range s.Assignments() {
		name := nameOf(a.Pod)
		if name == "" {
			name = "pod " + a.Pod
		}
		out.Owners = append(out.Owners, name)
		for _, c := range a.Containers {
			for cpu := range c.CPUs.All() {
				if !slices.Contains(ownerOf[cpu], i) {
					ownerOf[cpu] = append(ownerOf[cpu], i)
				}
			}
			for _, b := range c.Memory {
				for _, node := range b.Nodes {
					memory[node] = addMemory(memory[node], i, b)
				}
			}
			for _, d := range c.Devices {
				for _, id := range d.IDs {
					devices[[2]string{d.Resource, id}] = i
				}
			}
		}
	}
	free := map[machine.NUMAID]numa.NodeFree{} // what can be assigned
	cpus, blocks := s.Layout().Assigns()
	for _, f := range s.Free() {
		if !cpus {
			f.CPUs = idset.Set{}
		}
		if !blocks {
			f.Memory = nil
		}
		free[f.Node] = f
	}
	for _, n := range m.NUMANodes {
		f := free[n.ID]
		one := MapNode{ID: int(n.ID), Memory: int64(n.Memory), Assigned: memory[n.ID], Cores: []MapCore{}}
		for _, b := range f.Memory {
			if b.PageSize == 0 {
				one.Free = int64(b.Bytes)
			}
		}
		for _, to := range m.NUMANodes {
			one.Distances = append(one.Distances, n.Distances[to.ID])
		}
		for _, core := range m.Cores {
			if cpus := core.Intersect(n.CPUs); !cpus.IsEmpty() {
				one.Cores = append(one.Cores, coreOf(m, cpus, f.CPUs, ownerOf))
			}
		}
		one.Devices = devicesNear(s.Plugins(), n.ID, devices)
		out.Nodes = append(out.Nodes, one)
	}
	return out
}

// addMemory adds a block of ordinary memory; several of one owner on the same nodes are one.
func addMemory(list []MapMemory, owner int, b numa.Block) []MapMemory {
	if b.PageSize != 0 {
		return list
	}
	var nodes []int
	if len(b.Nodes) > 1 {
		for _, n := range b.Nodes {
			nodes = append(nodes, int(n))
		}
	}
	for i := range list {
		if list[i].Owner == owner && slices.Equal(list[i].Nodes, nodes) {
			list[i].Bytes += int64(b.Bytes)
			return list
		}
	}
	return append(list, MapMemory{Owner: owner, Bytes: int64(b.Bytes), Nodes: nodes})
}

func coreOf(m machine.Machine, cpus, free idset.Set, ownerOf map[int][]int) MapCore {
	out := MapCore{}
	for id, of := range m.Sockets {
		if of.Has(cpus.Lowest()) {
			out.Socket = int(id)
		}
	}
	for id := range cpus.All() {
		c := MapCPU{ID: id, Use: Shared, Owners: ownerOf[id]}
		switch {
		case len(c.Owners) > 0:
			c.Use = Own
		case free.Has(id):
			c.Use = Free
		}
		out.CPUs = append(out.CPUs, c)
	}
	return out
}

func devicesNear(plugins []numa.Plugin, node machine.NUMAID, owners map[[2]string]int) (out []MapDevice) {
	for _, p := range plugins {
		for _, d := range p.Devices {
			if !slices.Contains(d.Nodes, node) {
				continue
			}
			one := MapDevice{Resource: p.Resource, ID: d.ID, Owner: -1}
			if owner, has := owners[[2]string{p.Resource, d.ID}]; has {
				one.Owner = owner
			}
			out = append(out, one)
		}
	}
	slices.SortFunc(out, func(a, b MapDevice) int {
		return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// String returns the map as text: a line for each NUMA node.
func (m Map) String() string {
	text := ""
	for _, n := range m.Nodes {
		text += fmt.Sprintf("node %d:", n.ID)
		for _, core := range n.Cores {
			text += " "
			for _, c := range core.CPUs {
				mark := map[Use]string{Own: "", Free: ".", Shared: "-"}[c.Use]
				for _, owner := range c.Owners {
					mark += string(rune('A' + owner%26))
				}
				text += mark
			}
		}
		text += "\n"
	}
	return text
}
