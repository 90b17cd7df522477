package placement

import (
	"math"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/rows"
)

// scoreMax is the best score a scorer gives a node, before its weight. Upstream's MaxNodeScore.
const scoreMax = 100

// A scorer rates feasible nodes for one of upstream's plugins. One that is no aroundScorer looks at the row alone, and
// raw is its score, 0..scoreMax.
//
// A new one is a file with a type that says all of this, and a line in rowScorers or aroundScorers.
type scorer interface {
	about() scoring
	// applies: false: every node would score the same.
	applies(d *demand) bool
	// raw is its value for one row.
	raw(c *cluster, d *demand, r row) int64
}

// An aroundScorer looks at more than the row: at counters, at the other feasible rows, or at the whole cluster.
type aroundScorer interface {
	scorer
	// normalize turns the raw values of all feasible rows, in place, into 0..scoreMax, larger being better. It looks
	// only at which values there are, not at how many rows have each.
	normalize(scores []int64)
	// key appends what raw depends on besides the counters and the other feasible rows, as for a filter.
	key(c *cluster, d *demand, r row, key []int32) []int32
	// split moves the rows in m of which raw is out of the ordinary to groups of their own.
	split(c *cluster, d *demand, m rows.Mask, g *grouping)
}

// A preparer is told the feasible rows before raw is asked, each standing for so many alike.
type preparer interface {
	prepare(c *cluster, d *demand, rows []row, alike []int32)
}

// scoring is what is to be known of a scorer before it is asked.
type scoring struct {
	plugin string
	weight int64 // upstream's default
	reads  podFields
}

// The scorers, those that look at the row alone and the others.
var (
	rowScorers    = []scorer{resourceScorer{}, balanceScorer{}}
	aroundScorers = []aroundScorer{taintScorer{}, nodeAffinityScorer{}, spreadScorer{}, podAffinityScorer{}, imageScorer{}}
)

// allScorers lists both.
func allScorers() []scorer {
	all := slices.Clone(rowScorers)
	for _, s := range aroundScorers {
		all = append(all, s)
	}
	return all
}

// defaultWeights are upstream's, by plugin.
func defaultWeights() map[string]int64 {
	weights := map[string]int64{}
	for _, s := range allScorers() {
		weights[s.about().plugin] = s.about().weight
	}
	return weights
}

// weightedScorer is a scorer that a profile wants.
type weightedScorer struct {
	scorer
	around aroundScorer // the same; nil: it looks at the row alone
	plugin string
	weight int64
}

func weighted(s scorer, weight int64) weightedScorer {
	around, _ := s.(aroundScorer)
	return weightedScorer{scorer: s, around: around, plugin: s.about().plugin, weight: weight}
}

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
