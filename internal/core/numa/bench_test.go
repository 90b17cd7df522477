package numa

import (
	"fmt"
	"testing"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// eightNodes is 2 sockets of 4 nodes of 32 cores with 2 threads: 512 CPUs.
func eightNodes() machine.Machine {
	m := machine.Machine{Sockets: map[machine.SocketID]idset.Set{}}
	for n := range 8 {
		node := machine.NUMANode{ID: machine.NUMAID(n), Memory: 128 * unit.GiB}
		var cpus []int
		for core := range 32 {
			a, b := n*32+core, 256+n*32+core
			m.Cores = append(m.Cores, idset.Of(a, b))
			cpus = append(cpus, a, b)
		}
		node.CPUs = idset.Of(cpus...)
		m.Sockets[machine.SocketID(n/4)] = m.Sockets[machine.SocketID(n/4)].Union(node.CPUs)
		m.NUMANodes = append(m.NUMANodes, node)
	}
	m.NodeFS.Capacity = unit.GiB
	return m.Complete()
}

// BenchmarkOffer: a pod is offered, committed and released on a machine that is half full.
func BenchmarkOffer(b *testing.B) {
	for _, policy := range []Policy{PolicyBestEffort, PolicySingleNUMANode} {
		b.Run(policy.String(), func(b *testing.B) {
			l, err := New(eightNodes(), Config{
				CPU:      CPUConfig{Static: true, ReservedCount: 2},
				Memory:   MemoryConfig{Static: true, Reserved: map[machine.NUMAID]map[unit.Bytes]unit.Bytes{0: {0: unit.GiB}}},
				Topology: TopologyConfig{Policy: policy, PodScope: true},
			})
			if err != nil {
				b.Fatal(err)
			}
			s := l.NewState()
			pod := func(i int) Pod {
				return Pod{
					UID:        fmt.Sprint(i),
					Guaranteed: true,
					Containers: []Container{{Name: "c", CPU: 4 * unit.CPU, Memory: []MemoryRequest{{Bytes: unit.GiB}}}},
				}
			}
			for i := range 60 {
				o, r := s.Offer(pod(i), nil)
				if r != nil {
					b.Fatal(r.Message())
				}
				if err := s.Commit(o); err != nil {
					b.Fatal(err)
				}
			}
			p := pod(1000)
			b.ReportAllocs()
			for b.Loop() {
				o, _ := s.Offer(p, nil)
				if err := s.Commit(o); err != nil {
					b.Fatal(err)
				}
				s.Release(p.UID)
			}
		})
	}
}
