package numa

import (
	"fmt"
	"slices"
)

// picker chooses CPUs, whole sockets and nodes before whole cores before single threads, and always from the group that
// has the fewest CPUs left, so that what is whole stays whole.
type picker struct {
	l     *Layout
	free  set // still to be had
	taken set
	need  int
	// free CPUs by place
	nodes, sockets, caches, cores []int
}

func (l *Layout) pick(free set, need int) *picker {
	counts := make([]int, len(l.nodes)+len(l.sockets)+len(l.caches)+len(l.cores))
	p := &picker{l: l, free: free.clone(), taken: newSet(len(free) * 64), need: need}
	for _, level := range []struct {
		counts *[]int
		groups []cpuGroup
	}{{&p.nodes, l.nodes}, {&p.sockets, l.sockets}, {&p.caches, l.caches}, {&p.cores, l.cores}} {
		*level.counts, counts = counts[:len(level.groups)], counts[len(level.groups):]
	}
	for cpu := range free.all {
		p.count(cpu, 1)
	}
	return p
}

func (p *picker) count(cpu, by int) {
	p.nodes[p.l.nodeOf[cpu]] += by
	p.sockets[p.l.socketOf[cpu]] += by
	p.caches[p.l.cacheOf[cpu]] += by
	p.cores[p.l.coreOf[cpu]] += by
}

func (p *picker) take(cpu int) {
	p.free.remove(cpu)
	p.taken.add(cpu)
	p.count(cpu, -1)
	p.need--
}

// choose picks need CPUs out of free by the configured rules.
func (l *Layout) choose(free set, need int) (set, error) {
	if have := free.count(); need > have {
		return nil, fmt.Errorf("not enough cpus available to satisfy request: requested=%d, available=%d", need, have)
	}
	if need <= 0 {
		return newSet(len(free) * 64), nil
	}
	if l.config.CPU.DistributeNUMA {
		unit := 1
		if l.config.CPU.FullPCPUsOnly {
			unit = l.threads
		}
		return l.distribute(free, need, unit), nil
	}
	return l.pack(free, need, l.config.CPU.PreferAlignByCache), nil
}

// pack picks need CPUs out of free, which has as many.
func (l *Layout) pack(free set, need int, byCache bool) set {
	p := l.pick(free, need)
	if l.nodesFirst {
		p.takeWhole(p.nodesInOrder(), l.nodes, p.nodes)
		p.takeSockets()
	} else {
		p.takeSockets()
		p.takeWhole(p.nodesInOrder(), l.nodes, p.nodes)
	}
	if byCache {
		p.takeCaches()
	}
	if !l.config.CPU.DistributeCores {
		p.takeWhole(p.coresInOrder(), l.cores, p.cores)
	}
	p.takeThreads()
	return p.taken
}

// counts returns the free CPUs of the outer and the inner level.
func (p *picker) counts() (outer, inner []int) {
	if p.l.nodesFirst {
		return p.nodes, p.sockets
	}
	return p.sockets, p.nodes
}

// order appends the groups at places (nil: all) that have free CPUs, those with fewer first, then by id.
func order(out, places []int, groups []cpuGroup, free []int) []int {
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
	slices.SortStableFunc(out[start:], func(a, b int) int { return free[a] - free[b] }) // places are in the order of ids
	return out
}

func (p *picker) innerInOrder() []int {
	outer, inner := p.counts()
	var out []int
	for _, o := range order(nil, nil, p.l.outer, outer) {
		out = order(out, p.l.outer[o].inside, p.l.inner, inner)
	}
	return out
}

func (p *picker) coresInOrder() []int {
	out := make([]int, 0, len(p.l.cores))
	for _, i := range p.innerInOrder() {
		out = order(out, p.l.inner[i].inside, p.l.cores, p.cores)
	}
	return out
}

// nodesInOrder returns the nodes with free CPUs; those in the socket with fewer come first where a socket has several.
func (p *picker) nodesInOrder() []int {
	if p.l.nodesFirst {
		return order(nil, nil, p.l.nodes, p.nodes)
	}
	return p.innerInOrder()
}

// takeWhole takes groups that are entirely free and not larger than what is needed.
func (p *picker) takeWhole(places []int, groups []cpuGroup, free []int) {
	whole := places[:0]
	for _, i := range places {
		if free[i] == len(groups[i].members) {
			whole = append(whole, i)
		}
	}
	for _, i := range whole {
		if p.need == 0 {
			return
		}
		if p.need >= len(groups[i].members) && free[i] == len(groups[i].members) {
			for _, cpu := range groups[i].members {
				p.take(cpu)
			}
		}
	}
}

// takeSockets takes whole sockets. Where they differ, the larger come first, so that few are enough; upstream compares each
// with their average, and may so give away what is another's.
func (p *picker) takeSockets() {
	places := p.socketsInOrder()
	slices.SortStableFunc(places, func(a, b int) int { return len(p.l.sockets[b].members) - len(p.l.sockets[a].members) })
	p.takeWhole(places, p.l.sockets, p.sockets)
}

func (p *picker) cachesInOrder() []int {
	var out []int
	for _, n := range p.nodesInOrder() {
		out = order(out, p.l.cachesIn[n], p.l.caches, p.caches)
	}
	return out
}

// takeCaches takes whole groups of a last-level cache, then the rest from one group where it fits.
func (p *picker) takeCaches() {
	for _, cache := range p.cachesInOrder() {
		if p.need >= p.l.cacheCPUs {
			p.takeWhole(p.cachesInOrder(), p.l.caches, p.caches)
		}
		if p.need == 0 {
			return
		}
		if p.takePart(cache); p.need == 0 {
			return
		}
	}
}

// takePart takes all that is needed from the lowest cores of one cache, or nothing.
func (p *picker) takePart(cache int) {
	wanted := (p.need + p.l.threads - 1) / p.l.threads
	var cpus []int
	for _, core := range p.l.caches[cache].inside {
		if p.cores[core] == 0 {
			continue
		}
		if wanted--; wanted < 0 {
			break
		}
		for _, thread := range p.l.cores[core].members {
			if p.free.has(thread) {
				cpus = append(cpus, thread)
			}
		}
	}
	slices.Sort(cpus)
	if p.need%2 != 0 && p.l.threads > 1 && len(cpus) > p.need {
		cpus = cpus[:len(cpus)-1]
	}
	if len(cpus) == p.need {
		for _, cpu := range cpus {
			p.take(cpu)
		}
	}
}

// takeThreads takes single CPUs: core by core, or, to spread over cores, socket by socket in the order of ids.
func (p *picker) takeThreads() {
	if p.need == 0 {
		return
	}
	places, groups := p.coresInOrder, p.l.cores
	if p.l.config.CPU.DistributeCores {
		places, groups = p.socketsInOrder, p.l.sockets
	}
	for _, i := range places() {
		for _, cpu := range groups[i].members {
			if p.need == 0 {
				return
			}
			if p.free.has(cpu) {
				p.take(cpu)
			}
		}
	}
}

func (p *picker) socketsInOrder() []int {
	if p.l.nodesFirst {
		return p.innerInOrder()
	}
	return order(nil, nil, p.l.sockets, p.sockets)
}
