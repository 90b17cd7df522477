// Package idset holds sets of small hardware ids (CPUs, NUMA nodes) and reads and writes them in the kernel's list
// format, as in /sys/devices/system/cpu/online and cpuset.cpus: "0-3,8,10-11" (cpuset(7), Formats).
//
// An id is a name, never an index: ids may be sparse. A Set is a value: operations return new sets. The zero Set is
// empty. It is no set of large numbers: ids are bounded by Max.
package idset

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Max is the largest id. The kernel's own bound on CPUs is 8192 (CONFIG_NR_CPUS with MAXSMP); the rest is room.
const Max = 65535

// Set is a set of ids.
type Set struct {
	words []uint64 // bit i of word w is id 64w+i; the last word is not zero
}

// Of returns the set of the given ids, which must be in 0 to Max.
func Of(ids ...int) Set {
	var s Set
	for _, id := range ids {
		s.add(id)
	}
	return s
}

func (s *Set) add(id int) {
	if id < 0 || id > Max {
		panic(fmt.Sprintf("idset: id %d is not in 0 to %d", id, Max))
	}
	for len(s.words) <= id/64 {
		s.words = append(s.words, 0)
	}
	s.words[id/64] |= 1 << (id % 64)
}

// Parse reads the kernel's list format. Empty text is the empty set. Ids may repeat and need not be in order.
func Parse(text string) (Set, error) {
	var s Set
	text = strings.TrimSpace(text)
	if text == "" {
		return s, nil
	}
	for _, part := range strings.Split(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := parseID(from)
		if err != nil {
			return Set{}, fmt.Errorf("list %.80q: %w", text, err)
		}
		last := first
		if isRange {
			if last, err = parseID(to); err != nil {
				return Set{}, fmt.Errorf("list %.80q: %w", text, err)
			}
		}
		if last < first {
			return Set{}, fmt.Errorf("list %.80q: range %s: ends before it begins", text, part)
		}
		for id := first; id <= last; id++ {
			s.add(id)
		}
	}
	return s, nil
}

func parseID(text string) (int, error) {
	id, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("id %.20q: not a number", text)
	}
	if id > Max {
		return 0, fmt.Errorf("id %d: above %d", id, Max)
	}
	return int(id), nil
}

// String writes the kernel's list format, with ranges as long as can be.
func (s Set) String() string {
	var b strings.Builder
	first, last := -1, -1
	flush := func() {
		if first < 0 {
			return
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(first))
		if last > first {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(last))
		}
	}
	for id := range s.All() {
		if id == last+1 && first >= 0 {
			last = id
			continue
		}
		flush()
		first, last = id, id
	}
	flush()
	return b.String()
}

// Len returns the number of ids.
func (s Set) Len() int {
	n := 0
	for _, w := range s.words {
		n += bits.OnesCount64(w)
	}
	return n
}

// IsEmpty reports whether there are none.
func (s Set) IsEmpty() bool { return len(s.words) == 0 }

// Has reports whether id is in s.
func (s Set) Has(id int) bool {
	return id >= 0 && id/64 < len(s.words) && s.words[id/64]&(1<<(id%64)) != 0
}

// All yields the ids in order.
func (s Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, w := range s.words {
			for ; w != 0; w &= w - 1 {
				if !yield(64*i + bits.TrailingZeros64(w)) {
					return
				}
			}
		}
	}
}

// Equal reports whether s and t have the same ids.
func (s Set) Equal(t Set) bool { return slices.Equal(s.words, t.words) }

// Lowest returns the lowest id, or -1 when there is none.
func (s Set) Lowest() int {
	for id := range s.All() {
		return id
	}
	return -1
}

// Union returns the ids of s and those of t.
func (s Set) Union(t Set) Set {
	long, short := s.words, t.words
	if len(long) < len(short) {
		long, short = short, long
	}
	out := slices.Clone(long)
	for i, w := range short {
		out[i] |= w
	}
	return trimmed(out)
}

// Intersect returns the ids that s and t share.
func (s Set) Intersect(t Set) Set {
	out := slices.Clone(s.words[:min(len(s.words), len(t.words))])
	for i := range out {
		out[i] &= t.words[i]
	}
	return trimmed(out)
}

// Minus returns the ids of s that are not in t.
func (s Set) Minus(t Set) Set {
	out := slices.Clone(s.words)
	for i := range min(len(out), len(t.words)) {
		out[i] &^= t.words[i]
	}
	return trimmed(out)
}

// trimmed restores the rule that a set has no trailing zero words, so that equal sets have equal words.
func trimmed(words []uint64) Set {
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	if len(words) == 0 {
		return Set{}
	}
	return Set{words}
}
