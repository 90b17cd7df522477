package source

import (
	"errors"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/top"
)

// numaMachine is a node's machine, and what its NUMA nodes have free.
type numaMachine struct {
	machine machine.Machine
	policy  string
	memory  []top.NUMANode // without CPUs
}

// readNUMA reads a NodeResourceTopology object, or says why it has no map of CPUs.
func readNUMA(o *topology.Object) (*topology.Node, *numaMachine, string) {
	found, err := topology.Decode(o, nil)
	if errors.Is(err, topology.ErrForeign) {
		return nil, nil, "the node's agent publishes sums only, and not which CPU a container has"
	} else if err != nil {
		return nil, nil, err.Error()
	}
	m, err := topology.MachineOf(o)
	if err != nil {
		return nil, nil, err.Error()
	}
	out := &numaMachine{machine: m}
	if len(o.TopologyPolicies) > 0 {
		out.policy = o.TopologyPolicies[0]
	}
	for i, n := range m.NUMANodes {
		one := top.NUMANode{ID: int(n.ID), Memory: n.Memory}
		if i < len(o.Zones) {
			one.Free = unit.Bytes(quantity(&o.Zones[i], "memory",
				func(r topology.ResourceInfo) resource.Quantity { return r.Available }))
		}
		out.memory = append(out.memory, one)
	}
	return found, out, ""
}

// numaMap says who has which CPU. nameOf returns the name of a pod with a UID.
func (d *detail) numaMap(nameOf func(uid string) string) []top.NUMANode {
	if d.machine == nil {
		return nil
	}
	owner := map[int]string{}
	for _, a := range d.numa.State.Assignments() {
		for _, c := range a.Containers {
			for cpu := range c.CPUs.All() {
				owner[cpu] = nameOf(a.Pod) + "/" + c.Container
			}
		}
	}
	free := map[machine.NUMAID]map[int]bool{}
	for _, f := range d.numa.State.Free() {
		free[f.Node] = map[int]bool{}
		for cpu := range f.CPUs.All() {
			free[f.Node][cpu] = true
		}
	}
	var out []top.NUMANode
	for i, n := range d.machine.machine.NUMANodes {
		one := d.machine.memory[i]
		for cpu := range n.CPUs.All() {
			one.CPUs = append(one.CPUs, top.CPU{ID: cpu, Owner: owner[cpu], Kept: owner[cpu] == "" && !free[n.ID][cpu]})
		}
		out = append(out, one)
	}
	return out
}
