// Package bitset implements sets of small numbers as bits: of CPU ids, or of the places of NUMA nodes or devices in
// their lists. Upstream's CPU sets and bitmasks are similar. All sets of one kind have the same length, so that they
// can be combined word by word.
//
// It is for fast decisions inside package numa. Package idset has the sets of ids that other packages use.
package bitset

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/idset"
)

// Set is a set of small numbers: CPU ids, or places of NUMA nodes or devices in their lists. Two sets can be combined
// only if they were made for equally many numbers.
type Set []uint64

// New returns the empty set of numbers below n.
func New(n int) Set { return make(Set, (n+63)/64) }

// Full returns the set of 0 to n-1.
func Full(n int) Set {
	s := New(n)
	for i := range n {
		s.Add(i)
	}
	return s
}

// Of returns the set of members, all of which must be below n.
func Of(n int, members ...int) Set {
	s := New(n)
	for _, m := range members {
		s.Add(m)
	}
	return s
}

// Has reports whether i is in s; Add, Remove and Clear change s; Clone returns a copy.
func (s Set) Has(i int) bool { return s[i>>6]&(1<<(i&63)) != 0 }
func (s Set) Add(i int)      { s[i>>6] |= 1 << (i & 63) }
func (s Set) Remove(i int)   { s[i>>6] &^= 1 << (i & 63) }
func (s Set) Clone() Set     { return slices.Clone(s) }
func (s Set) Clear()         { clear(s) }

// Count returns how many members s has.
func (s Set) Count() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// IsEmpty reports whether s has no members.
func (s Set) IsEmpty() bool {
	for _, w := range s {
		if w != 0 {
			return false
		}
	}
	return true
}

// CountIn returns how many members are in both s and t.
func (s Set) CountIn(t Set) int {
	n := 0
	for i, w := range s {
		n += bits.OnesCount64(w & t[i])
	}
	return n
}

// Meets reports whether s and t have a common member.
func (s Set) Meets(t Set) bool {
	for i, w := range s {
		if w&t[i] != 0 {
			return true
		}
	}
	return false
}

// In reports whether t has all members of s.
func (s Set) In(t Set) bool {
	for i, w := range s {
		if w&^t[i] != 0 {
			return false
		}
	}
	return true
}

// Equal reports whether s and t have the same members.
func (s Set) Equal(t Set) bool { return slices.Equal(s, t) }

// Unite adds the members of t to s, Keep removes all others, and Drop removes the members of t.
func (s Set) Unite(t Set) {
	for i, w := range t {
		s[i] |= w
	}
}

func (s Set) Keep(t Set) {
	for i, w := range t {
		s[i] &= w
	}
}

func (s Set) Drop(t Set) {
	for i, w := range t {
		s[i] &^= w
	}
}

// Compare orders sets by their value as binary numbers: it finds the highest member that only one of the sets has, and
// the set without it comes first.
func (s Set) Compare(t Set) int {
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

// All yields the members in order.
func (s Set) All(yield func(int) bool) {
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			if !yield(i<<6 + bits.TrailingZeros64(w)) {
				return
			}
		}
	}
}

// AppendTo appends the words of a set. Their number is not written, because it is the same for all sets of one kind.
func (s Set) AppendTo(b []byte) []byte {
	for _, w := range s {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// Members returns the members in order.
func (s Set) Members() []int {
	out := make([]int, 0, s.Count())
	for i := range s.All {
		out = append(out, i)
	}
	return out
}

// IDs returns the members as a set of ids.
func (s Set) IDs() idset.Set { return idset.Of(s.Members()...) }
