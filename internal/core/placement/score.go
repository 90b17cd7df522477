package placement

// scoreMax is the best score a scorer gives a node, before its weight. Upstream's MaxNodeScore.
const scoreMax = 100

// A scorer rates feasible nodes. raw is its value for one row; normalize turns the raw values of all feasible rows, in
// place, into 0..scoreMax, larger being better. Weights are upstream's defaults.
type scorer struct {
	plugin    string
	weight    int64
	applies   func(k *class) bool // false: every node would score the same
	raw       func(c *cluster, k *class, r row) int64
	normalize func(scores []int64)
}

var scorers = []scorer{
	{"TaintToleration", 3, always, softTaintsAgainst, normalizeReversed},
	{"NodeAffinity", 2, hasPreferred, preferredWeight, normalizeByMax},
	{"NodeResourcesFit", 1, always, leastAllocated, func([]int64) {}},
}

func always(*class) bool { return true }

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

func maxOf(scores []int64) int64 {
	top := int64(0)
	for _, s := range scores {
		top = max(top, s)
	}
	return top
}
