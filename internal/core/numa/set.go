package numa

import (
	"math/bits"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
)

// set is a set of small numbers: CPU ids, or places of NUMA nodes or devices in their lists. All sets of one kind have the
// same length, fixed by the Layout, so that they can be combined word by word.
type set []uint64

func newSet(n int) set { return make(set, (n+63)/64) }

// full returns the set of 0 to n-1.
func full(n int) set {
	s := newSet(n)
	for i := range n {
		s.add(i)
	}
	return s
}

func setOf(n int, members ...int) set {
	s := newSet(n)
	for _, m := range members {
		s.add(m)
	}
	return s
}

func (s set) has(i int) bool { return s[i>>6]&(1<<(i&63)) != 0 }
func (s set) add(i int)      { s[i>>6] |= 1 << (i & 63) }
func (s set) remove(i int)   { s[i>>6] &^= 1 << (i & 63) }
func (s set) clone() set     { return slices.Clone(s) }
func (s set) clear()         { clear(s) }

func (s set) count() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

func (s set) isEmpty() bool {
	for _, w := range s {
		if w != 0 {
			return false
		}
	}
	return true
}

// countIn returns how many members s and t share.
func (s set) countIn(t set) int {
	n := 0
	for i, w := range s {
		n += bits.OnesCount64(w & t[i])
	}
	return n
}

func (s set) meets(t set) bool {
	for i, w := range s {
		if w&t[i] != 0 {
			return true
		}
	}
	return false
}

func (s set) in(t set) bool {
	for i, w := range s {
		if w&^t[i] != 0 {
			return false
		}
	}
	return true
}

func (s set) equal(t set) bool { return slices.Equal(s, t) }

// unite, keep and drop change s.
func (s set) unite(t set) {
	for i, w := range t {
		s[i] |= w
	}
}

func (s set) keep(t set) {
	for i, w := range t {
		s[i] &= w
	}
}

func (s set) drop(t set) {
	for i, w := range t {
		s[i] &^= w
	}
}

// compare orders sets as numbers: the set without the highest member that only one of them has comes first.
func (s set) compare(t set) int {
	for i := len(s) - 1; i >= 0; i-- {
		if s[i] != t[i] {
			if s[i] < t[i] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// all yields the members in order.
func (s set) all(yield func(int) bool) {
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			if !yield(i<<6 + bits.TrailingZeros64(w)) {
				return
			}
		}
	}
}

func (s set) members() []int {
	out := make([]int, 0, s.count())
	for i := range s.all {
		out = append(out, i)
	}
	return out
}

func (s set) ids() idset.Set { return idset.Of(s.members()...) }
