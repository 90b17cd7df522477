package cpus

import (
	"fmt"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// picker chooses CPUs: whole sockets and nodes before whole cores before single threads. It always takes from the group
// with the fewest free CPUs, so that other groups stay completely free.
type picker struct {
	t     *Topology
	free  bitset.Set // CPUs that can still be taken
	taken bitset.Set // CPUs that were taken
	need  int        // how many more CPUs are needed
	// Number of free CPUs of each group, by index in the lists of Topology.
	nodes, sockets, caches, cores []int
}

func (t *Topology) pick(free bitset.Set, need int) *picker {
	counts := make([]int, len(t.Nodes)+len(t.Sockets)+len(t.caches)+len(t.Cores))
	p := &picker{t: t, free: free.Clone(), taken: bitset.New(len(free) * 64), need: need}
	for _, level := range []struct {
		counts *[]int
		groups []Group
	}{{&p.nodes, t.Nodes}, {&p.sockets, t.Sockets}, {&p.caches, t.caches}, {&p.cores, t.Cores}} {
		*level.counts, counts = counts[:len(level.groups)], counts[len(level.groups):]
	}
	for cpu := range free.All {
		p.count(cpu, 1)
	}
	return p
}

func (p *picker) count(cpu, by int) {
	p.nodes[p.t.nodeOf[cpu]] += by
	p.sockets[p.t.SocketOf[cpu]] += by
	p.caches[p.t.cacheOf[cpu]] += by
	p.cores[p.t.CoreOf[cpu]] += by
}

func (p *picker) take(cpu int) {
	p.free.Remove(cpu)
	p.taken.Add(cpu)
	p.count(cpu, -1)
	p.need--
}

// Choose picks need CPUs out of free by the configured Options.
func (t *Topology) Choose(free bitset.Set, need int) (bitset.Set, error) {
	if have := free.Count(); need > have {
		return nil, fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", need, have)
	}
	if need <= 0 {
		return bitset.New(len(free) * 64), nil
	}
	if t.options.DistributeNUMA {
		unit := 1
		if t.options.FullCores {
			unit = t.Threads
		}
		return t.distribute(free, need, unit), nil
	}
	return t.pack(free, need, t.options.PreferAlignByCache), nil
}

// pack picks need CPUs out of free, which must have as many, without spreading them over nodes.
func (t *Topology) pack(free bitset.Set, need int, byCache bool) bitset.Set {
	p := t.pick(free, need)
	if t.nodesFirst {
		p.takeWhole(p.nodesInOrder(), t.Nodes, p.nodes)
		p.takeSockets()
	} else {
		p.takeSockets()
		p.takeWhole(p.nodesInOrder(), t.Nodes, p.nodes)
	}
	if byCache {
		p.takeCaches()
	}
	if !t.options.DistributeCores {
		p.takeWhole(p.coresInOrder(), t.Cores, p.cores)
	}
	p.takeThreads()
	return p.taken
}

// counts returns the numbers of free CPUs of the outer and of the inner groups.
func (p *picker) counts() (outer, inner []int) {
	if p.t.nodesFirst {
		return p.nodes, p.sockets
	}
	return p.sockets, p.nodes
}

// order appends the groups at places (nil: all groups) that have free CPUs, those with fewer free CPUs first, then by
// id.
func order(out, places []int, groups []Group, free []int) []int {
	start := len(out)
	if places == nil {
		for i := range groups {
			if free[i] > 0 {
				out = append(out, i)
			}
		}
	} else {
		for _, i := range places {
			if free[i] > 0 {
				out = append(out, i)
			}
		}
	}
	slices.SortStableFunc(out[start:], func(a, b int) int { return free[a] - free[b] }) // places are sorted by id
	return out
}

func (p *picker) innerInOrder() []int {
	outer, inner := p.counts()
	var out []int
	for _, o := range order(nil, nil, p.t.outer, outer) {
		out = order(out, p.t.outer[o].inside, p.t.inner, inner)
	}
	return out
}

func (p *picker) coresInOrder() []int {
	out := make([]int, 0, len(p.t.Cores))
	for _, i := range p.innerInOrder() {
		out = order(out, p.t.inner[i].inside, p.t.Cores, p.cores)
	}
	return out
}

// nodesInOrder returns the nodes with free CPUs, those with fewer first. Where a socket has several nodes, the sockets
// are sorted first.
func (p *picker) nodesInOrder() []int {
	if p.t.nodesFirst {
		return order(nil, nil, p.t.Nodes, p.nodes)
	}
	return p.innerInOrder()
}

// takeWhole takes groups that are completely free and not larger than what is still needed.
func (p *picker) takeWhole(places []int, groups []Group, free []int) {
	whole := places[:0]
	for _, i := range places {
		if free[i] == len(groups[i].Members) {
			whole = append(whole, i)
		}
	}
	for _, i := range whole {
		if p.need == 0 {
			return
		}
		if p.need >= len(groups[i].Members) && free[i] == len(groups[i].Members) {
			for _, cpu := range groups[i].Members {
				p.take(cpu)
			}
		}
	}
}

// takeSockets takes whole sockets. If sockets differ in size, the larger come first, so that fewer are needed. Upstream
// compares the free CPUs of each with the average size of a socket, and so may take CPUs that are assigned to another
// container.
func (p *picker) takeSockets() {
	places := p.socketsInOrder()
	slices.SortStableFunc(places, func(a, b int) int { return len(p.t.Sockets[b].Members) - len(p.t.Sockets[a].Members) })
	p.takeWhole(places, p.t.Sockets, p.sockets)
}

func (p *picker) cachesInOrder() []int {
	var out []int
	for _, n := range p.nodesInOrder() {
		out = order(out, p.t.cachesIn[n], p.t.caches, p.caches)
	}
	return out
}

// takeCaches takes whole groups of CPUs with one last-level cache, then the rest from a single group where it fits.
func (p *picker) takeCaches() {
	for _, cache := range p.cachesInOrder() {
		if p.need >= p.t.cacheCPUs {
			p.takeWhole(p.cachesInOrder(), p.t.caches, p.caches)
		}
		if p.need == 0 {
			return
		}
		if p.takePart(cache); p.need == 0 {
			return
		}
	}
}

// takePart takes all CPUs that are still needed from the lowest cores of one cache, or none.
func (p *picker) takePart(cache int) {
	wanted := (p.need + p.t.Threads - 1) / p.t.Threads
	var cpus []int
	for _, core := range p.t.caches[cache].inside {
		if p.cores[core] == 0 {
			continue
		}
		if wanted--; wanted < 0 {
			break
		}
		for _, thread := range p.t.Cores[core].Members {
			if p.free.Has(thread) {
				cpus = append(cpus, thread)
			}
		}
	}
	slices.Sort(cpus)
	if p.need%2 != 0 && p.t.Threads > 1 && len(cpus) > p.need {
		cpus = cpus[:len(cpus)-1]
	}
	if len(cpus) == p.need {
		for _, cpu := range cpus {
			p.take(cpu)
		}
	}
}

// takeThreads takes single CPUs: core by core, or with DistributeCores socket by socket in the order of ids.
func (p *picker) takeThreads() {
	if p.need == 0 {
		return
	}
	places, groups := p.coresInOrder, p.t.Cores
	if p.t.options.DistributeCores {
		places, groups = p.socketsInOrder, p.t.Sockets
	}
	for _, i := range places() {
		for _, cpu := range groups[i].Members {
			if p.need == 0 {
				return
			}
			if p.free.Has(cpu) {
				p.take(cpu)
			}
		}
	}
}

func (p *picker) socketsInOrder() []int {
	if p.t.nodesFirst {
		return p.innerInOrder()
	}
	return order(nil, nil, p.t.Sockets, p.sockets)
}
