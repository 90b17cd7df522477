package kubeletconfig

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	kubeletconfigv1beta1 "k8s.io/kubelet/config/v1beta1"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// nodesAllowedMin is the least value of max-allowable-numa-nodes that upstream accepts, and its default
// (pkg/kubelet/cm/topologymanager). We do not need this bound; the option is read and has no effect.
const nodesAllowedMin = 8

// NUMA translates the parts of a loaded configuration that concern the assignment of CPUs, memory and devices to
// containers. resources is what the node has allocatable.
func NUMA(c *kubeletconfigv1beta1.KubeletConfiguration, resources allocatable.Resources) (numa.Config, error) {
	var p problems
	out := numa.Config{
		CPU:    cpuManager(c, resources, &p),
		Memory: memoryManager(c, resources, &p),
		Topology: numa.TopologyConfig{
			Policy:   policies[c.TopologyManagerPolicy],
			PodScope: c.TopologyManagerScope == kubeletconfigv1beta1.PodTopologyManagerScope,
		},
	}
	parseOptions("topologyManagerPolicyOptions", c.TopologyManagerPolicyOptions, map[string]*bool{
		"prefer-closest-numa-nodes": &out.Topology.PreferClosest,
		"max-allowable-numa-nodes":  nil,
	}, &p)
	if text, ok := c.TopologyManagerPolicyOptions["max-allowable-numa-nodes"]; ok {
		if n, err := strconv.Atoi(text); err != nil || n < nodesAllowedMin {
			p.add("topologyManagerPolicyOptions.max-allowable-numa-nodes", text, fmt.Sprintf("want a number of %d or more",
				nodesAllowedMin))
		}
	}
	if len(p) > 0 {
		return numa.Config{}, p.err()
	}
	return out, nil
}

var policies = map[string]numa.Policy{
	kubeletconfigv1beta1.NoneTopologyManagerPolicy:           numa.PolicyNone,
	kubeletconfigv1beta1.BestEffortTopologyManagerPolicy:     numa.PolicyBestEffort,
	kubeletconfigv1beta1.RestrictedTopologyManagerPolicy:     numa.PolicyRestricted,
	kubeletconfigv1beta1.SingleNumaNodeTopologyManagerPolicy: numa.PolicySingleNUMANode,
}

func cpuManager(c *kubeletconfigv1beta1.KubeletConfiguration, resources allocatable.Resources,
	p *problems) numa.CPUConfig {
	out := numa.CPUConfig{Static: c.CPUManagerPolicy == "static"}
	parseOptions("cpuManagerPolicyOptions", c.CPUManagerPolicyOptions, out.Options(), p)
	if len(c.CPUManagerPolicyOptions) > 0 && !out.Static {
		p.add("cpuManagerPolicyOptions", len(c.CPUManagerPolicyOptions), "need cpuManagerPolicy: static")
	}
	cpus, err := idset.Parse(c.ReservedSystemCPUs)
	if err != nil {
		p.add("reservedSystemCPUs", nil, err.Error())
	}
	out.Reserved = cpus
	out.ReservedCount = int((resources.CPU.System + resources.CPU.Kube + unit.CPU - 1) / unit.CPU)
	return out
}

// memoryManager translates reservedMemory. Its sum must be the memory that the node does not make allocatable.
func memoryManager(c *kubeletconfigv1beta1.KubeletConfiguration, resources allocatable.Resources,
	p *problems) numa.MemoryConfig {
	out := numa.MemoryConfig{Static: c.MemoryManagerPolicy == kubeletconfigv1beta1.StaticMemoryManagerPolicy}
	if !out.Static {
		return out
	}
	out.Reserved = map[machine.NUMAID]map[unit.Bytes]unit.Bytes{}
	sums := map[unit.Bytes]unit.Bytes{}
	for i, r := range c.ReservedMemory {
		node := machine.NUMAID(r.NumaNode)
		if out.Reserved[node] == nil {
			out.Reserved[node] = map[unit.Bytes]unit.Bytes{}
		}
		for name, quantity := range r.Limits {
			size, err := pageSize(name)
			if err != nil {
				p.add(fmt.Sprintf("reservedMemory[%d].limits.%s", i, name), quantity.String(), err.Error())
				continue
			}
			out.Reserved[node][size] += unit.Bytes(quantity.Value())
			sums[size] += unit.Bytes(quantity.Value())
		}
	}
	kept := resources.Memory.System + resources.Memory.Kube + resources.Memory.Eviction
	if kept == 0 {
		p.add("memoryManagerPolicy", c.MemoryManagerPolicy,
			"needs reserved memory: set systemReserved, kubeReserved or evictionHard, and reservedMemory")
	}
	if sums[0] != kept {
		p.add("reservedMemory", sums[0],
			fmt.Sprintf("want memory of %v on all nodes together: systemReserved %v + kubeReserved %v + evictionHard %v",
				kept, resources.Memory.System, resources.Memory.Kube, resources.Memory.Eviction))
	}
	for _, size := range slices.Sorted(maps.Keys(sums)) {
		if size != 0 {
			p.add("reservedMemory", sums[size], numa.KindName(size)+" cannot be reserved: no other setting reserves huge pages")
		}
	}
	return out
}

// pageSize reads memory or hugepages-2Mi. Ordinary memory has page size 0.
func pageSize(name corev1.ResourceName) (unit.Bytes, error) {
	if name == corev1.ResourceMemory {
		return 0, nil
	}
	quantity, err := resource.ParseQuantity(strings.TrimPrefix(string(name), corev1.ResourceHugePagesPrefix))
	if err != nil {
		return 0, fmt.Errorf("want memory or hugepages-<size>: %w", err)
	}
	return unit.Bytes(quantity.Value()), nil
}

// parseOptions reads options that are on or off into known. An option whose pointer is nil is known and not read.
func parseOptions(path string, given map[string]string, known map[string]*bool, p *problems) {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		on, ok := known[name]
		if !ok {
			p.add(path+"."+name, given[name], "is not an option: want one of "+strings.Join(slices.Sorted(maps.Keys(known)),
				", "))
			continue
		}
		if on == nil {
			continue
		}
		value, err := strconv.ParseBool(given[name])
		if err != nil {
			p.add(path+"."+name, given[name], "want true or false")
		}
		*on = value
	}
}
