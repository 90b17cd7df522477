package selector

import (
	"cmp"
	"slices"
)

// An Interner gives each distinct string a small number. It does not count references to numbers. When it has many more
// strings than at its last sweep (Due), the owner calls Sweep, which keeps the strings in use and drops the others.
type Interner struct {
	ids   map[string]int32 // the number of each string
	texts []string         // by number; empty if the number is free
	free  []int32          // numbers that Sweep has freed
	// Most is the number of strings above which a sweep is due.
	Most int
}

// internedMin is the least number of strings that makes a sweep due. Chosen: the labels of some thousand nodes.
const internedMin = 1 << 15

// LabelID is a label as the numbers of its key and value.
type LabelID struct{ Key, Value int32 }

// NewInterner returns an interner without strings.
func NewInterner() *Interner { return &Interner{ids: map[string]int32{}, Most: internedMin} }

// ID returns the number of s. A new string gets a number; numbers start at zero.
func (in *Interner) ID(s string) int32 {
	if id, ok := in.ids[s]; ok {
		return id
	}
	id := int32(len(in.texts))
	if n := len(in.free); n > 0 {
		id, in.free = in.free[n-1], in.free[:n-1]
		in.texts[id] = s
	} else {
		in.texts = append(in.texts, s)
	}
	in.ids[s] = id
	return id
}

// Labels returns the numbers of labels, sorted by key.
func (in *Interner) Labels(labels []Label) []LabelID {
	out := make([]LabelID, 0, len(labels))
	for _, l := range labels {
		out = append(out, LabelID{Key: in.ID(l.Key), Value: in.ID(l.Value)})
	}
	slices.SortFunc(out, func(a, b LabelID) int { return cmp.Compare(a.Key, b.Key) })
	return out
}

// NumberOf returns the number of the value that labels have under key. labels are sorted by key.
func NumberOf(labels []LabelID, key int32) (value int32, ok bool) {
	if len(labels) <= 16 { // most nodes have so few: a linear search is faster than a binary search
		for i := range labels {
			if labels[i].Key == key {
				return labels[i].Value, true
			}
		}
		return 0, false
	}
	i, found := slices.BinarySearchFunc(labels, key, func(l LabelID, k int32) int { return cmp.Compare(l.Key, k) })
	if !found {
		return 0, false
	}
	return labels[i].Value, true
}

// Len returns how many strings have a number.
func (in *Interner) Len() int { return len(in.ids) }

// End returns a number greater than every number given so far.
func (in *Interner) End() int { return len(in.texts) }

// Due reports whether a sweep is due.
func (in *Interner) Due() bool { return len(in.ids) > in.Most }

// Sweep drops the strings whose numbers are not in use. Such a number has no meaning until it is given to another
// string.
func (in *Interner) Sweep(used func(id int32) bool) {
	ids := map[string]int32{}
	in.free = in.free[:0]
	for i, text := range in.texts {
		if id := int32(i); used(id) {
			ids[text] = id
			continue
		}
		in.texts[i] = ""
		in.free = append(in.free, int32(i))
	}
	in.ids, in.Most = ids, max(internedMin, 2*len(ids))
}
