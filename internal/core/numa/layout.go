package numa

import (
	"fmt"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/cpus"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/memory"
)

// Layout is what does not change while the agent runs: the machine, prepared for fast decisions, and its configuration.
// All States of the node share it. Inside the package a NUMA node is identified by its place, its index in the order of
// node ids, and a CPU by its id.
type Layout struct {
	config Config

	nodeID   []machine.NUMAID       // by place
	place    map[machine.NUMAID]int // the reverse of nodeID
	distance [][]int                // by place and place

	cpu           *cpus.Topology
	reserved      bitset.Set // CPUs that are never exclusive
	reservedCores bitset.Set // all threads of cores with a reserved CPU

	memory *memory.Capacity // how much memory can be assigned
}

// New prepares a machine that passed its Check. The error names everything in c that is wrong or contradicts m.
func New(m machine.Machine, c Config) (*Layout, error) {
	if err := c.check(m); err != nil {
		return nil, err
	}
	l := &Layout{config: c, place: map[machine.NUMAID]int{}}
	for i, n := range m.NUMANodes {
		l.nodeID = append(l.nodeID, n.ID)
		l.place[n.ID] = i
	}
	for _, n := range m.NUMANodes {
		row := make([]int, len(m.NUMANodes))
		for to, d := range n.Distances {
			if i, ok := l.place[to]; ok {
				row[i] = d
			}
		}
		l.distance = append(l.distance, row)
	}
	l.cpu = cpus.New(m, c.CPU.options())
	l.memory = memory.NewCapacity(m, c.Memory.Reserved)
	if err := l.reserve(); err != nil {
		return nil, err
	}
	return l, nil
}

// Assigns reports whether the configuration assigns CPUs, and memory, to containers.
func (l *Layout) Assigns() (cpus, memory bool) { return l.config.CPU.Static, l.config.Memory.Static }

// reserve decides which CPUs are never exclusive.
func (l *Layout) reserve() error {
	l.reserved, l.reservedCores = l.cpu.None(), l.cpu.None()
	if !l.config.CPU.Static {
		return nil
	}
	for cpu := range l.config.CPU.Reserved.All() {
		if l.cpu.Online(cpu) {
			l.reserved.Add(cpu)
		}
	}
	if l.reserved.IsEmpty() {
		taken, err := l.cpu.Choose(l.cpu.CPUs, l.config.CPU.ReservedCount)
		if err != nil {
			return fmt.Errorf("reserve %d CPUs: %w", l.config.CPU.ReservedCount, err)
		}
		l.reserved = taken
	}
	for cpu := range l.reserved.All {
		l.reservedCores.Unite(l.cpu.Cores[l.cpu.CoreOf[cpu]].CPUs)
	}
	return nil
}

// ids translates places to node ids.
func (l *Layout) ids(nodes bitset.Set) []machine.NUMAID {
	out := make([]machine.NUMAID, 0, nodes.Count())
	for i := range nodes.All {
		out = append(out, l.nodeID[i])
	}
	return out
}

// places translates node ids to places; ids that the machine does not have are left out.
func (l *Layout) places(ids []machine.NUMAID) bitset.Set {
	s := bitset.New(len(l.nodeID))
	for _, id := range ids {
		if i, ok := l.place[id]; ok {
			s.Add(i)
		}
	}
	return s
}
