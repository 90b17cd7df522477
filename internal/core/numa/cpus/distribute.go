package cpus

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// distribute picks need CPUs out of free, which must have as many, in units of unit CPUs. It spreads them evenly over
// as few nodes as can give equal shares. Among sets of equally many nodes it chooses the one that leaves the numbers of
// free CPUs on all nodes most equal.
//
// Upstream tries every combination of nodes, and for each every subset that could take the remainder. That is not
// necessary. Most equal means the least sum of squares, because the mean is given. Taking t CPUs from a node with a
// free ones changes the sum by t*(t-2a). So of two nodes the one with more free CPUs is always the better choice, and
// it can give whatever the other could. Therefore the combination consists of the nodes with the most free CPUs, in
// upstream's order among equals, and the remainder is tried on the largest 1, 2, 3... of them.
func (t *Topology) distribute(free bitset.Set, need, unit int) bitset.Set {
	if need%unit == 0 {
		p := t.pick(free, need)
		nodes := p.nodesInOrder()
		least, most := p.nodesNeeded(unit, len(nodes))
		for k := max(1, least); k <= min(most, len(nodes)); k++ {
			if shares := p.shares(nodes, k, unit); shares != nil {
				return p.takeShares(nodes, shares, unit)
			}
		}
	}
	return t.pack(free, need, false)
}

// nodesNeeded returns the fewest nodes to consider (as if all CPUs were free and evenly spread), and the most (one unit
// from each).
func (p *picker) nodesNeeded(unit, available int) (least, most int) {
	up := func(n, by int) int { return (n-1)/by + 1 }
	perNode := up(up(p.t.CPUs.Count(), unit), p.t.NodesWithCPUs.Count())
	units := up(p.need, unit)
	return up(units, perNode), min(units, available)
}

// shares returns how many CPUs each of nodes gives when k of them give equal shares; nil when that is impossible.
func (p *picker) shares(nodes []int, k, unit int) []int {
	even := p.need / k / unit * unit
	largest := slices.Clone(nodes)
	slices.SortStableFunc(largest, func(a, b int) int { return cmp.Compare(p.nodes[b], p.nodes[a]) })
	units := 0
	for _, n := range largest[:k] {
		if p.nodes[n] < even {
			return nil
		}
		units += p.nodes[n] / unit
	}
	if units*unit < p.need {
		return nil
	}
	shares := make([]int, len(nodes))
	for i, n := range nodes {
		if slices.Contains(largest[:k], n) {
			shares[i] = even
		}
	}
	return p.withRemainder(nodes, shares, p.need-even*k, unit)
}

// withRemainder adds rest to the shares: one unit in turn to some of the nodes that have a share and can give more,
// such that what is left is most equal. It returns nil when that is impossible.
func (p *picker) withRemainder(nodes, shares []int, rest, unit int) []int {
	if rest == 0 {
		return shares
	}
	var able []int // indexes in nodes
	for i, n := range nodes {
		if shares[i] > 0 && p.nodes[n]-shares[i] >= unit {
			able = append(able, i)
		}
	}
	var best []int
	bestUneven := 0
	for k := len(able); k > 0; k-- {
		some := slices.Clone(able)
		slices.SortStableFunc(some, func(a, b int) int { return cmp.Compare(p.nodes[nodes[b]], p.nodes[nodes[a]]) })
		some = some[:k]
		slices.Sort(some)
		with := p.inTurn(nodes, shares, some, rest, unit)
		if with == nil {
			continue
		}
		if uneven := p.uneven(nodes, with); best == nil || uneven < bestUneven {
			best, bestUneven = with, uneven
		}
	}
	return best
}

// inTurn adds rest to the shares of some, one unit to each in turn; nil when they cannot give that much.
func (p *picker) inTurn(nodes, shares, some []int, rest, unit int) []int {
	with := slices.Clone(shares)
	for rest > 0 {
		before := rest
		for _, i := range some {
			if rest > 0 && p.nodes[nodes[i]]-with[i] >= unit {
				with[i] += unit
				rest -= unit
			}
		}
		if rest == before {
			return nil
		}
	}
	return with
}

// uneven is the sum of squares of the numbers of CPUs that each node has left.
func (p *picker) uneven(nodes, shares []int) int {
	sum := 0
	for i, n := range nodes {
		left := p.nodes[n] - shares[i]
		sum += left * left
	}
	return sum
}

// takeShares takes each node's share: the equal part at once, the rest one unit at a time.
func (p *picker) takeShares(nodes, shares []int, unit int) bitset.Set {
	even := 0
	for _, s := range shares {
		if s > 0 && (even == 0 || s < even) {
			even = s
		}
	}
	for i, n := range nodes {
		for amount := even; shares[i] > 0; amount = unit {
			own := p.free.Clone()
			own.Keep(p.t.Nodes[n].CPUs)
			for cpu := range p.t.pack(own, amount, false).All {
				p.take(cpu)
			}
			shares[i] -= amount
		}
	}
	return p.taken
}
