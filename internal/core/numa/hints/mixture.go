package hints

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// A mixture is one load made from several: the weighted sum of each load as a share of its need. A set that reaches
// every need also reaches the mixture's need. So a branch of the search that cannot reach the mixture's need can be
// left, even if it could reach each single need with different nodes. The weights are chosen so that the mixture's need
// is as hard to reach as possible. In each round the best set for the mixture is computed, and the weights of the needs
// that it misses are raised (multiplicative weights; Plotkin, Shmoys, Tardos 1995).
type mixture struct {
	weight []float64  // by node
	most   []float64  // as in reach, for this load
	need   float64    // always 1
	held   float64    // sum of the weights of the nodes chosen so far; take and untake of reach change it
	some   bitset.Set // a set that is in all families, though probably not the best; nil: none was found
}

const (
	// mixtureAbove is the number of nodes above which a mixture is worth its cost of some 50 us. With fewer nodes all
	// sets are examined soon.
	mixtureAbove = 8
	// mixtureRounds is how often the weights are raised. More rounds gain little: four times as many halve the error.
	mixtureRounds = 40
	// mixtureStep is the largest share by which a weight is raised in one round.
	mixtureStep = 0.3
	// mixtureError is larger than the rounding error of a sum of at most 1024 shares, each at most 1.
	mixtureError = 1e-6
)

// mixed returns the mixture for sets of size nodes; nil when it proves that there is no such set.
func (r *reach) mixed(size, nodes int) *mixture {
	shares := r.shares(nodes)
	lambda := make([]float64, len(shares))
	for i := range lambda {
		lambda[i] = 1 / float64(len(lambda))
	}
	m := &mixture{weight: make([]float64, nodes), need: 1}
	order := slices.Clone(r.places)
	for range mixtureRounds {
		m.blend(shares, lambda)
		slices.SortStableFunc(order, func(a, b int) int {
			return cmp.Or(-cmp.Compare(r.forced(a), r.forced(b)), cmp.Compare(m.weight[b], m.weight[a]))
		})
		best, sum := order[:size], 0.0
		for _, n := range best {
			sum += m.weight[n]
		}
		if sum < m.need-mixtureError {
			return nil
		}
		if set := bitset.Of(nodes, best...); r.admits(set) {
			m.some = set
			break
		}
		total := 0.0
		for i := range lambda {
			reached := 0.0
			for _, n := range best {
				reached += shares[i][n]
			}
			lambda[i] *= 1 + mixtureStep*max(-1, min(1, 1-reached))
			total += lambda[i]
		}
		for i := range lambda {
			lambda[i] /= total
		}
	}
	m.blend(shares, lambda)
	m.most = largest(m.weight, r.places, size)
	return m
}

// shares returns what each node adds to each load, as a share of the load's need, at most 1.
func (r *reach) shares(nodes int) [][]float64 {
	var out [][]float64
	for _, l := range r.loads {
		if l.Need <= 0 {
			continue
		}
		row := make([]float64, nodes)
		for _, n := range r.places {
			row[n] = min(1, float64(l.Weight[n])/float64(l.Need))
		}
		out = append(out, row)
	}
	return out
}

// blend sets the weights of nodes. The weights of loads sum to 1, so the mixture's need is 1: a set that reaches all
// loads reaches it.
func (m *mixture) blend(shares [][]float64, lambda []float64) {
	for n := range m.weight {
		m.weight[n] = 0
		for i := range shares {
			m.weight[n] += lambda[i] * shares[i][n]
		}
	}
}

// forced is 1 for nodes that must be chosen, otherwise 0.
func (r *reach) forced(n int) int {
	for _, f := range r.families {
		if f.Must.Has(n) {
			return 1
		}
	}
	return 0
}

func (r *reach) admits(nodes bitset.Set) bool {
	for _, f := range r.families {
		if !f.admits(nodes) {
			return false
		}
	}
	return true
}
