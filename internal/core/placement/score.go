package placement

import "math"

// scoreMax is the best score a scorer gives a node, before its weight. Upstream's MaxNodeScore.
const scoreMax = 100

// A scorer rates feasible nodes. raw is its value for one row; normalize turns the raw values of all feasible rows, in
// place, into 0..scoreMax, larger being better. It looks only at which values there are, not at how many rows have
// each.
type scorer struct {
	plugin  string
	reads   podFields
	applies func(d *demand) bool // false: every node would score the same
	raw     func(c *cluster, d *demand, r row) int64
	// normalize is nil where raw is the score.
	normalize func(scores []int64)
	// key appends what raw depends on besides the counters and the other feasible rows, as for a filter. nil: raw looks
	// at the row alone, and needs no normalizing.
	key func(c *cluster, d *demand, r row, key []int32) []int32
	// split moves the rows in m of which raw is out of the ordinary to groups of their own.
	split func(c *cluster, d *demand, m mask, g *grouping)
	// prepare is told the feasible rows before raw is asked, each standing for so many alike.
	prepare func(c *cluster, d *demand, rows []row, alike []int32)
}

var scorers = []scorer{
	{plugin: "TaintToleration", reads: podFields{"Tolerations"}, applies: anyDemand, raw: softTaintsAgainst, normalize: normalizeReversed, key: keySoftTaints, split: splitSoftTaints},
	{plugin: "NodeAffinity", reads: podFields{"Preferred"}, applies: prefersNodes, raw: preferredWeight, normalize: normalizeByMax, key: keyPreferred, split: splitPreferred},
	{plugin: "NodeResourcesFit", reads: podFields{"Requests", "Asked", "Held"}, applies: anyDemand, raw: resourceScore},
	{
		plugin: "PodTopologySpread", reads: podFields{"Spread", "Namespace", "Labels", "Owner", "NodeSelector", "NodeAffinity", "Tolerations"}, applies: spreadsSoftly, raw: spreadScore, normalize: normalizeSpread, key: keySoftSpread, split: splitSoftSpread,
		prepare: weighSpread,
	},
	{plugin: "InterPodAffinity", reads: podFields{"PreferredAffinity", "PreferredAntiAffinity", "Affinity", "Namespace", "Labels"}, applies: isDrawn, raw: podAffinityWeight, normalize: normalizeByRange, key: keyDrawn, split: splitDrawn},
	{plugin: "NodeResourcesBalancedAllocation", reads: podFields{"Requests"}, applies: takesBalanced, raw: balanceScore},
	{plugin: "ImageLocality", reads: podFields{"Images", "Containers"}, applies: runsImages, raw: imageScore, key: keyImages, split: splitImages},
}

func anyDemand(*demand) bool { return true }

// normalizeByMax scales so that the largest becomes scoreMax. All zero stays all zero.
func normalizeByMax(scores []int64) {
	if top := maxOf(scores); top > 0 {
		for i := range scores {
			scores[i] = scoreMax * scores[i] / top
		}
	}
}

// normalizeReversed scales likewise and turns round: the largest becomes 0, zero becomes scoreMax.
func normalizeReversed(scores []int64) {
	normalizeByMax(scores)
	for i := range scores {
		scores[i] = scoreMax - scores[i]
	}
}

// normalizeByRange scales so that the smallest becomes 0 and the largest scoreMax. All equal become 0. In floating
// point, as upstream does.
func normalizeByRange(scores []int64) {
	low, high := int64(math.MaxInt64), int64(math.MinInt64)
	for _, s := range scores {
		low, high = min(low, s), max(high, s)
	}
	for i := range scores {
		if high == low {
			scores[i] = 0
			continue
		}
		scores[i] = int64(scoreMax * (float64(scores[i]-low) / float64(high-low)))
	}
}

func maxOf(scores []int64) int64 {
	top := int64(0)
	for _, s := range scores {
		top = max(top, s)
	}
	return top
}
