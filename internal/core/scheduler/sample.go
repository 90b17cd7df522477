package scheduler

import "iter"

// The search finds at least this many nodes: upstream's minFeasibleNodesToFind and minFeasibleNodesPercentageToFind.
const (
	sampleNodesMin   = 100
	samplePercentMin = 5
)

// A Sample is upstream's percentageOfNodesToScore: the search ends when this share of the nodes has been found
// feasible, and the search for the next pod starts where it ended. Sampling makes placements worse. It also makes them
// slower, because nothing is kept about nodes that were not examined. It exists for comparison with kube-scheduler, and
// for replacing kube-scheduler in steps.
type Sample struct {
	On      bool
	Percent int // of all nodes; 0: 50, less one for each 125 nodes, but at least samplePercentMin
}

// sampleOf returns after how many feasible nodes a search ends.
func (c *cluster) sampleOf(d *demand) int {
	n, percent := c.seenCount, d.profile.Sample.Percent
	if !d.profile.Sample.On || n < sampleNodesMin {
		return n
	}
	if percent == 0 {
		percent = max(50-n/125, samplePercentMin)
	}
	return max(n*percent/100, sampleNodesMin)
}

// around yields the candidates, starting where the last search ended.
func (c *cluster) around(d *demand) iter.Seq[row] {
	if d.onlyNames != nil {
		return c.candidates(d)
	}
	return func(yield func(row) bool) {
		n := len(c.name)
		from := c.searched
		for i := range n {
			r := row((from + i) % n)
			c.searched = (int(r) + 1) % n
			if !yield(r) {
				return
			}
		}
	}
}
