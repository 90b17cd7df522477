package memory

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa/hints"
)

// Pick chooses the nodes to take memory from: the nodes of the hint; more nodes if these do not have enough; the best
// nodes for memory alone if the hint allows any. among restricts the families that may be used. If nodes is nil, why is
// the reason in upstream's words.
func (m *Table) Pick(
	c *Capacity, asked []Amount, again Reusable, at hints.Hint, among func([]*hints.Family) []*hints.Family,
) (nodes bitset.Set, why string) {
	finder := hints.NewMerger(c.nodes)
	best := func(around bitset.Set) (bitset.Set, bool) {
		families := among(m.Families(c, asked, again))
		return finder.NarrowestAround(families, around, c.Width(asked))
	}
	nodes, preferred := at.Nodes, at.Preferred
	if nodes == nil {
		found, good := best(bitset.New(c.nodes))
		switch {
		case found == nil:
			return nil, "[memorymanager] failed to get the default NUMA affinity, no NUMA nodes with enough memory is available"
		case preferred && !good:
			return nil, "[memorymanager] failed to find the default preferred hint"
		}
		nodes, preferred = found, good
	}
	if !m.fits(c, nodes, asked) {
		found, good := best(nodes)
		switch {
		case found == nil:
			return nil, "[memorymanager] failed to find NUMA nodes to extend the current topology hint"
		case preferred && !good:
			return nil, "[memorymanager] failed to find the extended preferred hint"
		}
		nodes = found
	}
	if m.mixes(nodes) {
		return nil, "[memorymanager] preferred hint violates NUMA node allocation"
	}
	return nodes, ""
}
