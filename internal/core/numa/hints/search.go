package hints

import (
	"math"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa/bitset"
)

// searchSteps bounds a search, in sets looked at, each some 100 ns: chosen from the bar of 10 ms for 64 nodes. Raising
// it finds the best hint for more mixtures of unequal nodes, and lets a hopeless search take longer.
const searchSteps = 1 << 14

// A search finds the best set of a given number of nodes that reaches a goal: the one whose nodes are closest to each
// other when distances count, and of equals the smallest as a number. Sets are visited in that last order, the highest
// node chosen first, and a branch is left as soon as the goal is out of reach or the best so far cannot be beaten.
type search struct {
	places   []int   // nodes to choose from, in order
	distance [][]int // by node; nil: distances do not count
	goal     goal
	steps    *int // left

	size   int
	chosen bitset.Set
	sum    int // of distances within chosen
	least  int // distance of two different nodes, at the least
	local  int // distance of a node to itself, at the least

	best    bitset.Set // empty: none yet
	bestSum int
}

// A goal says what a search may choose.
type goal interface {
	take(place int)
	untake(place int)
	// open reports whether what was taken and left more of the first hi places may reach the goal; with none left,
	// whether it does.
	open(hi, left int) bool
}

// run returns the best set of size nodes; nil when there is none or the steps ran out before any was found.
func (s *search) run(size, nodes int) bitset.Set {
	if size < 1 || size > len(s.places) {
		return nil
	}
	s.size, s.chosen, s.best, s.bestSum, s.sum = size, bitset.New(nodes), nil, math.MaxInt, 0
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

// descend chooses left more of the first hi places. It returns true when the best has been found.
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

// beatable reports whether left more nodes at the least distances beat the best so far.
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
	places   []int
	loads    []Load
	most     [][]int64 // by load: at [hi*(size+1)+left], the sum of the largest left weights of the first hi places
	held     []int64   // by load
	stride   int
	must     []int // by hi: how many of the first hi places have to be chosen
	taken    int   // how many of those are
	chosen   bitset.Set
	mix      *mixture // nil: not needed
}

// newReach prepares a search for sets of size nodes; nil when no set can be large enough.
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

// needs returns how many loads need anything.
func (r *reach) needs() int {
	n := 0
	for i := range r.loads {
		if r.loads[i].Need > 0 {
			n++
		}
	}
	return n
}

// largest tabulates the sums of the largest weights among the first places.
func largest[T int64 | float64](weight []T, places []int, size int) []T {
	stride := size + 1
	out := make([]T, (len(places)+1)*stride)
	top := make([]T, 0, size+1) // the largest so far, descending
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
