// Package idset holds sets of small hardware ids (CPUs, NUMA nodes), and reads and writes them in the kernel's list
// format: "0-3,8,10-11" (cpuset(7), Formats), as in /sys/devices/system/cpu/online and cpuset.cpus.
//
// An id is a name, not an index: ids may have gaps. A Set is a value: operations return new sets. The zero Set is
// empty. The package is not for large numbers: ids are at most Max. Therefore a Set takes at most a kilobyte, wherever
// its list came from, and reading a list takes time in proportion to its text.
package idset

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Max is the largest id. No Linux has more than 8192 CPUs (arch/x86/Kconfig, NR_CPUS_RANGE_END; arch/powerpc/Kconfig,
// NR_CPUS; others allow fewer), or more than 1024 NUMA nodes (NODES_SHIFT is at most 10). Lists also come from pods and
// from Node objects: a larger Max raises the memory that each of them can make a reader use.
const Max = 8191

// partsMax is the largest number of entries in a list. A longer list must repeat ids or name neighbours one by one.
const partsMax = (Max + 1) / 2

// Set is a set of ids.
type Set struct {
	words []uint64 // bit i of word w is id 64w+i; the last word is never zero
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

// addRange adds the ids from first to last, which must be in 0 to Max.
func (s *Set) addRange(first, last int) {
	if need := last/64 + 1; len(s.words) < need {
		s.words = append(s.words, make([]uint64, need-len(s.words))...)
	}
	for w := first / 64; w <= last/64; w++ {
		mask := ^uint64(0)
		if w == first/64 {
			mask <<= first % 64
		}
		if w == last/64 {
			mask &= ^uint64(0) >> (63 - last%64)
		}
		s.words[w] |= mask
	}
}

// Parse reads the kernel's list format. Empty text is the empty set. Ids may repeat and need not be in order, as in the
// kernel and in a kubelet's configuration. A list of more than partsMax entries is an error.
func Parse(text string) (Set, error) {
	var s Set
	text = strings.TrimSpace(text)
	if text == "" {
		return s, nil
	}
	parts := 0
	for part := range strings.SplitSeq(text, ",") {
		if parts++; parts > partsMax {
			return Set{}, fmt.Errorf("list %.80q: more than %d entries: ids are 0 to %d", text, partsMax, Max)
		}
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
		s.addRange(first, last)
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

// String writes the kernel's list format with the longest possible ranges.
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

// IsEmpty reports whether s has no ids.
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

// trimmed removes trailing zero words, so that equal sets have equal words.
func trimmed(words []uint64) Set {
	for len(words) > 0 && words[len(words)-1] == 0 {
		words = words[:len(words)-1]
	}
	if len(words) == 0 {
		return Set{}
	}
	return Set{words}
}
