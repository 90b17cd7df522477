package scheduler

import (
	"math"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// scoreMax is the best score a scorer gives a node, before its weight. Upstream's MaxNodeScore.
const scoreMax = 100

// A scorer rates feasible nodes for one of upstream's plugins. It is a rowScorer or an aroundScorer.
//
// A new one is a file with a type that says all of this, and a line in rowScorers or aroundScorers. CONTRIBUTING.md has
// a checklist.
type scorer interface {
	about() scoring
}

// A rowScorer looks at the row alone, and of the pod at its needs alone: what it says of a row is kept for all pods of
// the same needs (fit), and in the order of rows (tables), until the row changes.
type rowScorer interface {
	scorer
	// applies: false: every node would score the same.
	applies(n *needs) bool
	// raw is the score of one row, 0..scoreMax.
	raw(c *state, n *needs, r row) int64
}

// An aroundScorer looks at more: at other demands of the pod, at counters, at the other feasible rows, or at the whole
// cluster.
type aroundScorer interface {
	scorer
	// applies: false: every node would score the same.
	applies(d *demand) bool
	// raw is its value for one row.
	raw(c *state, d *demand, r row) int64
	// normalize turns the raw values of all feasible rows, in place, into 0..scoreMax, larger being better. It looks
	// only at which values there are, not at how many rows have each.
	normalize(scores []int64)
	// key appends what raw depends on besides the counters and the other feasible rows, as for a filter.
	key(c *state, d *demand, r row, key []int32) []int32
	// split moves the rows in m of which raw is out of the ordinary to groups of their own.
	split(c *state, d *demand, m rows.Mask, g *grouping)
}

// A preparer is told the feasible rows before raw is asked, each standing for so many alike.
type preparer interface {
	prepare(c *state, d *demand, rows []row, alike []int32)
}

// scoring is what is to be known of a scorer before it is asked.
type scoring struct {
	plugin string
	weight int64 // upstream's default
	reads  podFields
}

// The scorers, those that look at the row alone and the others.
var (
	rowScorers    = []rowScorer{resourceScorer{}, balanceScorer{}}
	aroundScorers = []aroundScorer{taintScorer{}, nodeAffinityScorer{}, spreadScorer{}, podAffinityScorer{}, imageScorer{}}
)

// allScorers lists both, each with the weight of its plugin.
func allScorers(weights map[string]int64) (all []weightedScorer) {
	for _, s := range rowScorers {
		plugin := s.about().plugin
		all = append(all, weightedScorer{alone: s, plugin: plugin, weight: weights[plugin]})
	}
	for _, s := range aroundScorers {
		plugin := s.about().plugin
		all = append(all, weightedScorer{around: s, plugin: plugin, weight: weights[plugin]})
	}
	return all
}

// defaultWeights are upstream's, by plugin.
func defaultWeights() map[string]int64 {
	weights := map[string]int64{}
	for _, s := range allScorers(nil) {
		about := s.about()
		weights[about.plugin] = about.weight
	}
	return weights
}

// weightedScorer is a scorer that a profile wants: one of the two.
type weightedScorer struct {
	alone  rowScorer
	around aroundScorer
	plugin string
	weight int64
}

func (s *weightedScorer) about() scoring {
	if s.alone != nil {
		return s.alone.about()
	}
	return s.around.about()
}

func (s *weightedScorer) applies(d *demand) bool {
	if s.alone != nil {
		return s.alone.applies(&d.needs)
	}
	return s.around.applies(d)
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
