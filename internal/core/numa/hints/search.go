package hints

import (
	"math"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// searchSteps is how many sets a search may examine, each some 100 ns. Chosen from the goal of 10 ms for 64 nodes. A
// higher number finds the best hint for more inputs with unequal nodes, and makes hopeless searches longer.
const searchSteps = 1 << 14

// A search finds the best set with a given number of nodes that reaches a goal: the one whose nodes are closest to each
// other if distances count, and among equals the smallest as a number. It visits sets in ascending order, choosing the
// highest node first. It leaves a branch as soon as the goal cannot be reached, or the best set so far cannot be
// beaten.
type search struct {
	places   []int   // nodes to choose from, in order
	distance [][]int // by node and node; nil: distances do not count
	goal     goal
	steps    *int // steps left, shared with other searches of the Merger

	// State of the current run.
	size   int
	chosen bitset.Set
	sum    int // sum of the distances within chosen
	least  int // smallest distance between two different nodes
	local  int // smallest distance of a node to itself

	best    bitset.Set // nil: none yet
	bestSum int
}

// A goal says which sets a search may choose.
type goal interface {
	take(place int)
	untake(place int)
	// open reports whether the taken places and left more of the first hi places may reach the goal. With left 0 it
	// reports whether the taken places reach it.
	open(hi, left int) bool
}

// run returns the best set of size nodes; nil when there is none, or when the steps ran out before one was found.
func (s *search) run(size, nodes int) bitset.Set {
	if size < 1 || size > len(s.places) {
		return nil
	}
	s.size = size
	s.chosen = bitset.New(nodes)
	s.best = nil
	s.bestSum = math.MaxInt
	s.sum = 0
	s.boundDistances()
	s.descend(len(s.places), size)
	return s.best
}

func (s *search) boundDistances() {
	s.least, s.local = math.MaxInt, math.MaxInt
	if s.distance == nil {
		return
	}
	for _, a := range s.places {
		for _, b := range s.places {
			if a == b {
				s.local = min(s.local, s.distance[a][a])
			} else {
				s.least = min(s.least, s.distance[a][b])
			}
		}
	}
	if s.size == 1 {
		s.least = 0
	}
}

// descend chooses left more of the first hi places. It returns true when the search is over.
func (s *search) descend(hi, left int) bool {
	if left == 0 {
		if s.best == nil || s.sum < s.bestSum {
			s.best, s.bestSum = s.chosen.Clone(), s.sum
		}
		return s.distance == nil || s.bestSum == s.size*s.local+s.size*(s.size-1)*s.least
	}
	for p := left - 1; p < hi; p++ {
		if *s.steps--; *s.steps < 0 {
			return true
		}
		added := s.add(p)
		if s.beatable(left-1) && s.goal.open(p, left-1) && s.descend(p, left-1) {
			return true
		}
		s.sum -= added
		s.chosen.Remove(s.places[p])
		s.goal.untake(p)
	}
	return false
}

func (s *search) add(p int) int {
	n, added := s.places[p], 0
	s.goal.take(p)
	s.chosen.Add(n)
	if s.distance != nil {
		for other := range s.chosen.All {
			added += s.distance[n][other]
			if other != n {
				added += s.distance[other][n]
			}
		}
	}
	s.sum += added
	return added
}

// beatable reports whether the best set so far could be beaten with left more nodes at the smallest distances.
func (s *search) beatable(left int) bool {
	if s.distance == nil || s.best == nil {
		return true
	}
	have := s.size - left
	pairs := s.size*(s.size-1) - have*(have-1)
	return s.sum+left*s.local+pairs*s.least < s.bestSum
}

// reach is the goal of a set that is in each of some families.
type reach struct {
	families []*Family
	places   []int     // nodes in every universe
	loads    []Load    // of all families
	most     [][]int64 // by load: at [hi*(size+1)+left], the sum of the largest left weights of the first hi places
	held     []int64   // by load: sum of the weights of the chosen nodes
	stride   int       // length of a row of most: size+1
	must     []int     // by hi: how many of the first hi places must be chosen
	taken    int       // how many of the places that must be chosen are chosen
	chosen   bitset.Set
	mix      *mixture // nil: not needed
}

// newReach prepares a search for sets of size nodes; nil when no such set can reach the goal.
func newReach(families []*Family, size, nodes int) *reach {
	within, must := families[0].Within.Clone(), families[0].Must.Clone()
	for _, f := range families[1:] {
		within.Keep(f.Within)
		must.Unite(f.Must)
	}
	if !must.In(within) {
		return nil
	}
	r := &reach{families: families, places: within.Members(), stride: size + 1, chosen: bitset.New(nodes)}
	if len(r.places) < size || must.Count() > size {
		return nil
	}
	r.must = make([]int, len(r.places)+1)
	for i, n := range r.places {
		r.must[i+1] = r.must[i]
		if must.Has(n) {
			r.must[i+1]++
		}
	}
	for _, f := range families {
		r.loads = append(r.loads, f.Loads...)
	}
	r.held = make([]int64, len(r.loads))
	r.most = make([][]int64, len(r.loads))
	for i := range r.loads {
		r.most[i] = largest(r.loads[i].Weight, r.places, size)
	}
	if size > 1 && len(r.places) > mixtureAbove && r.needs() > 1 {
		if r.mix = r.mixed(size, nodes); r.mix == nil {
			return nil
		}
	}
	return r
}

// needs returns the number of loads whose need is positive.
func (r *reach) needs() int {
	n := 0
	for i := range r.loads {
		if r.loads[i].Need > 0 {
			n++
		}
	}
	return n
}

// largest returns a table of the sums of the largest weights among the first places, as reach.most.
func largest[T int64 | float64](weight []T, places []int, size int) []T {
	stride := size + 1
	out := make([]T, (len(places)+1)*stride)
	top := make([]T, 0, size+1) // the largest weights so far, descending
	for i, n := range places {
		w := weight[n]
		j := len(top)
		top = append(top, w)
		for ; j > 0 && top[j-1] < w; j-- {
			top[j] = top[j-1]
		}
		top[j] = w
		top = top[:min(len(top), size)]
		row := out[(i+1)*stride:]
		for k := range size {
			row[k+1] = row[k]
			if k < len(top) {
				row[k+1] += top[k]
			}
		}
	}
	return out
}

func (r *reach) take(p int) {
	n := r.places[p]
	r.chosen.Add(n)
	r.taken += r.must[p+1] - r.must[p]
	for i := range r.loads {
		r.held[i] += r.loads[i].Weight[n]
	}
	if r.mix != nil {
		r.mix.held += r.mix.weight[n]
	}
}

func (r *reach) untake(p int) {
	n := r.places[p]
	r.chosen.Remove(n)
	r.taken -= r.must[p+1] - r.must[p]
	for i := range r.loads {
		r.held[i] -= r.loads[i].Weight[n]
	}
	if r.mix != nil {
		r.mix.held -= r.mix.weight[n]
	}
}

func (r *reach) open(hi, left int) bool {
	if below := r.must[hi]; below > left || r.taken+below < r.must[len(r.places)] {
		return false
	}
	for i := range r.loads {
		if r.held[i]+r.most[i][hi*r.stride+left] < r.loads[i].Need {
			return false
		}
	}
	if r.mix != nil && r.mix.held+r.mix.most[hi*r.stride+left] < r.mix.need-mixtureError {
		return false
	}
	if left > 0 {
		return true
	}
	for _, f := range r.families {
		if !f.reaches(r.chosen) {
			return false
		}
	}
	return true
}
