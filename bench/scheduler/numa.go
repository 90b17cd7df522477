package main

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/internal/kube/topology"
	"github.com/plimsoll-dev/plimsoll/internal/kube/translate"
)

// pin makes a pod Guaranteed, with exclusive CPUs and memory.
func pin(p *corev1.Pod, cpus int) {
	own := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(cpus), resource.DecimalSI),
		corev1.ResourceMemory: resource.MustParse("2Gi")}
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: own, Limits: own}
}

// report is the report of the agent of node i, as the scheduler's shell reads it: two sockets with 16 CPUs, the policy
// single-numa-node, and the pods on the node.
func (s *scenario) report(i int, d *topology.Decoder) agentReport {
	m := machine.Machine{}
	m.NodeFS.Capacity = unit.GiB
	for n := range 2 {
		node := machine.NUMANode{ID: machine.NUMAID(n), Memory: 128 * unit.GiB}
		for core := 8 * n; core < 8*n+8; core++ {
			node.CPUs = node.CPUs.Union(idset.Of(core, core+16))
			m.Cores = append(m.Cores, idset.Of(core, core+16))
		}
		m.NUMANodes = append(m.NUMANodes, node)
	}
	m = m.Complete()
	config := numa.Config{
		CPU:      numa.CPUConfig{Static: true, Reserved: idset.Of(0)},
		Memory:   numa.MemoryConfig{Static: true, Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: unit.GiB}}},
		Topology: numa.TopologyConfig{Policy: numa.PolicySingleNUMANode},
	}
	layout, err := numa.New(m, config)
	if err != nil {
		panic(err)
	}
	state := layout.NewState()
	for k := range s.perNode {
		offer, refusal := state.Offer(translate.NUMAPod(s.existing(i, k)), nil)
		if refusal != nil {
			panic(refusal.Message())
		}
		if err := state.Commit(offer); err != nil {
			panic(err)
		}
	}
	encoder, err := topology.NewEncoder(s.node(i).Name, m, config)
	if err != nil {
		panic(err)
	}
	said, err := d.Decode(encoder.Encode(state))
	if err != nil {
		panic(err)
	}
	return agentReport{s.node(i).Name, said.State}
}
