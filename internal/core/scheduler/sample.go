package scheduler

import "iter"

// Upstream's minFeasibleNodesToFind and minFeasibleNodesPercentageToFind: so many feasible nodes are looked for at least.
const (
	sampleNodesMin   = 100
	samplePercentMin = 5
)

// A Sample is for those who want upstream's percentageOfNodesToScore: the search ends when that part of the cluster's nodes has
// been found feasible, and goes on from there for the next pod. It makes placements worse and, since nothing is remembered of
// nodes that were not looked at, dearer; it is there to compare with, and to change over in steps.
type Sample struct {
	On      bool
	Percent int // of all nodes; 0: half of them, less in clusters of more than 125
}

// sampleOf is after how many feasible nodes a search ends.
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

// around goes through candidates from where the last search ended.
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
