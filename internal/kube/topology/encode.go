package topology

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/machinefile"
)

// Encoder writes the objects of one node. Its fields do not change after NewEncoder: a node's machine and configuration
// are fixed.
type Encoder struct {
	node    string
	machine machine.Machine
	config  numa.Config
	whole   []numa.NodeFree // what can be assigned to pods while nothing is assigned
	fixed   []Attribute     // the attributes that do not change: policies, machine, configuration
}

// NewEncoder prepares the object of a node.
func NewEncoder(node string, m machine.Machine, c numa.Config) (*Encoder, error) {
	layout, err := numa.New(m, c)
	if err != nil {
		return nil, err
	}
	e := &Encoder{node: node, machine: m, config: c, whole: layout.NewState().Free()}
	scope := scopeContainer
	if c.Topology.PodScope {
		scope = scopePod
	}
	bare := m
	bare.Devices, bare.PCIDevices = nil, nil // the device plugins report devices
	e.fixed = []Attribute{
		{attributePolicy, c.Topology.Policy.String()},
		{attributeScope, scope},
		{attributeMachine, compact(machinefile.File{Machine: bare}.JSON())},
		{attributeConfig, text(configToWire(c))},
	}
	return e, nil
}

func compact(document []byte) string {
	var out bytes.Buffer
	if err := json.Compact(&out, document); err != nil {
		panic(fmt.Sprintf("topology: %v", err)) // impossible: machinefile writes JSON
	}
	return out.String()
}

func text(v any) string {
	document, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("topology: %v", err)) // impossible: strings, numbers and lists of them
	}
	return string(document)
}

// Encode returns the object for what is free and assigned now.
func (e *Encoder) Encode(s *numa.State) *Object {
	o := &Object{}
	o.APIVersion, o.Kind = GroupVersion.String(), "NodeResourceTopology"
	o.Name = e.node
	o.TopologyPolicies = []string{e.policyName()}
	free := s.Free()
	devices := e.devices(s)
	for i, n := range e.machine.NUMANodes {
		o.Zones = append(o.Zones, e.zone(n, e.whole[i], free[i], devices))
	}
	plugins := []wirePlugin{}
	for _, p := range s.Plugins() {
		plugins = append(plugins, pluginToWire(p))
	}
	pods := []wirePod{}
	for _, a := range s.Assignments() {
		if w, owns := podToWire(a); owns {
			pods = append(pods, w)
		}
	}
	o.Attributes = append(slices.Clone(e.fixed), Attribute{attributePlugins, text(plugins)}, Attribute{attributePods,
		text(pods)})
	return o
}

// policyName returns policy and scope as one name, the form of the deprecated field topologyPolicies.
func (e *Encoder) policyName() string {
	scope := "ContainerLevel"
	if e.config.Topology.PodScope {
		scope = "PodLevel"
	}
	switch e.config.Topology.Policy {
	case numa.PolicySingleNUMANode:
		return "SingleNUMANode" + scope
	case numa.PolicyRestricted:
		return "Restricted" + scope
	case numa.PolicyBestEffort:
		return "BestEffort" + scope
	}
	return "None"
}

func zoneName(id machine.NUMAID) string { return fmt.Sprintf("node-%d", id) }

func (e *Encoder) zone(n machine.NUMANode, whole, free numa.NodeFree, devices []nearby) Zone {
	z := Zone{Name: zoneName(n.ID), Type: "Node"}
	for _, to := range e.machine.NUMANodes {
		z.Costs = append(z.Costs, Cost{zoneName(to.ID), int64(n.Distances[to.ID])})
	}
	count := func(name string, capacity, allocatable, available int64, form resource.Format) {
		if capacity > 0 {
			z.Resources = append(z.Resources, ResourceInfo{Name: name,
				Capacity: *resource.NewQuantity(capacity, form), Allocatable: *resource.NewQuantity(allocatable,
					form), Available: *resource.NewQuantity(available, form)})
		}
	}
	count("cpu", int64(n.CPUs.Len()), int64(whole.CPUs.Len()), int64(free.CPUs.Len()), resource.DecimalSI)
	for k, m := range whole.Memory {
		capacity := n.Memory
		if m.PageSize > 0 {
			capacity = m.PageSize * unit.Bytes(n.HugePages[m.PageSize])
		}
		count(numa.KindName(m.PageSize), int64(capacity), int64(m.Bytes), int64(free.Memory[k].Bytes), resource.BinarySI)
	}
	for _, d := range devices {
		count(d.resource, d.all[n.ID], d.healthy[n.ID], d.free[n.ID], resource.DecimalSI)
	}
	return z
}

// nearby counts the devices of a resource by the NUMA nodes that they are near.
type nearby struct {
	resource           string
	all, healthy, free map[machine.NUMAID]int64
}

func (e *Encoder) devices(s *numa.State) []nearby {
	free := map[string][]string{}
	for _, d := range s.FreeDevices() {
		free[d.Resource] = d.IDs
	}
	var out []nearby
	for _, p := range s.Plugins() {
		n := nearby{resource: p.Resource, all: map[machine.NUMAID]int64{}, healthy: map[machine.NUMAID]int64{},
			free: map[machine.NUMAID]int64{}}
		for _, d := range devicesOf(p) {
			_, isFree := slices.BinarySearch(free[p.Resource], d.ID)
			for _, node := range slices.Compact(slices.Sorted(slices.Values(d.Nodes))) {
				n.all[node]++
				if d.Healthy && !p.Gone {
					n.healthy[node]++
				}
				if isFree {
					n.free[node]++
				}
			}
		}
		out = append(out, n)
	}
	return out
}
