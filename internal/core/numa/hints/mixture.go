package hints

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// A mixture is several loads made into one: the sum of each, as a share of its need and by some weight. A set that
// reaches every need reaches the mixture's, so a branch of a search that cannot reach the mixture's is dead, even if it
// could reach each need with other nodes. The weights are those that make this hardest; they are found by raising,
// again and again, the weight of the needs that the best set for the mixture misses (multiplicative weights; Plotkin,
// Shmoys, Tardos 1995).
type mixture struct {
	weight []float64 // by node
	most   []float64 // as in reach
	need   float64
	held   float64
	some   bitset.Set // a set that is in all families, though hardly the best; nil: none was met
}

const (
	// mixtureAbove is for how many nodes a mixture is worth its price of some 50 us: below, all sets are soon looked at.
	mixtureAbove = 8
	// mixtureRounds is how often weights are raised. More gain little: they halve the error when quadrupled.
	mixtureRounds = 40
	// mixtureStep is by how much a weight is raised at the most, as a share.
	mixtureStep = 0.3
	// mixtureError is more than what rounding makes of sums of at most 1024 shares, each at most 1.
	mixtureError = 1e-6
)

// mixed returns the mixture for sets of size nodes; nil when it shows that there is none.
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

// shares returns what each node adds to each load, as a share of its need; more than all of it counts as all.
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

// blend sets the weights of nodes. Those of loads sum to 1, so that the mixture's need is 1: what all loads reach.
func (m *mixture) blend(shares [][]float64, lambda []float64) {
	for n := range m.weight {
		m.weight[n] = 0
		for i := range shares {
			m.weight[n] += lambda[i] * shares[i][n]
		}
	}
}

// forced is 1 for nodes that have to be chosen.
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
