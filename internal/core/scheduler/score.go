package scheduler

import (
	"math"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// scoreMax is the best score a scorer gives a node, before its weight. Upstream's MaxNodeScore.
const scoreMax = 100

// A scorer scores feasible nodes for one of upstream's plugins. It is a rowScorer or an aroundScorer.
//
// To add a scorer, write a file with a type that implements one of these interfaces, and add a line in rowScorers or
// aroundScorers. CONTRIBUTING.md has a checklist.
type scorer interface {
	about() scoring
}

// A rowScorer depends only on the row and on the pod's needs. Its result is kept for all pods with equal needs (fit),
// and in the order of rows (tables), until the row changes.
type rowScorer interface {
	scorer
	// applies is false if every node would get the same score.
	applies(n *needs) bool
	// raw returns the score of one row, 0..scoreMax.
	raw(c *state, n *needs, r row) int64
}

// An aroundScorer depends on more: on other fields of the pod, on counters, on the other feasible rows, or on the whole
// cluster.
type aroundScorer interface {
	scorer
	// applies is false if every node would get the same score.
	applies(d *demand) bool
	// raw returns the value of one row, to be normalized.
	raw(c *state, d *demand, r row) int64
	// normalize replaces the raw values of all feasible rows, in place, by scores 0..scoreMax; higher is better. The
	// result depends only on which values there are, not on how many rows have each.
	normalize(scores []int64)
	// key appends what raw depends on, except counters and the other feasible rows; see aroundFilter.key.
	key(c *state, d *demand, r row, key []int32) []int32
	// split moves the rows in m whose raw value is not the usual one to separate groups.
	split(c *state, d *demand, m rows.Mask, g *grouping)
}

// A preparer receives the feasible rows before raw is called. rows has one of each group of equal rows, and alike the
// sizes of these groups.
type preparer interface {
	prepare(c *state, d *demand, rows []row, alike []int32)
}

// scoring is what must be known of a scorer before it is evaluated.
type scoring struct {
	plugin string    // upstream's name of the plugin
	weight int64     // upstream's default
	reads  podFields // the fields of Pod on which its answer depends
}

// The scorers: those that depend on the row alone, and the others.
var (
	rowScorers    = []rowScorer{resourceScorer{}, balanceScorer{}}
	aroundScorers = []aroundScorer{
		taintScorer{},
		nodeAffinityScorer{},
		spreadScorer{},
		podAffinityScorer{},
		imageScorer{},
	}
)

// allScorers returns all scorers with the weights of their plugins.
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

// defaultWeights returns upstream's default weights, by plugin.
func defaultWeights() map[string]int64 {
	weights := map[string]int64{}
	for _, s := range allScorers(nil) {
		about := s.about()
		weights[about.plugin] = about.weight
	}
	return weights
}

// weightedScorer is a scorer of a profile; one of alone and around is set.
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

// normalizeByMax scales scores so that the largest becomes scoreMax. If all are zero, they stay zero.
func normalizeByMax(scores []int64) {
	if top := maxOf(scores); top > 0 {
		for i := range scores {
			scores[i] = scoreMax * scores[i] / top
		}
	}
}

// normalizeReversed scales and reverses scores: the largest becomes 0, and zero becomes scoreMax.
func normalizeReversed(scores []int64) {
	normalizeByMax(scores)
	for i := range scores {
		scores[i] = scoreMax - scores[i]
	}
}

// normalizeByRange scales scores so that the smallest becomes 0 and the largest scoreMax. If all are equal, they become
// 0. It computes in floating point, as upstream does.
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
