package selector

import (
	"cmp"
	"slices"
)

// An Interner gives each distinct string a small number. Nobody counts who uses one: when there are many more than were
// in use when it was last swept (Due), all that are in use are marked, and the others forgotten (Sweep).
type Interner struct {
	ids   map[string]int32
	texts []string
	free  []int32
	// Most is beyond how many strings a sweep is due.
	Most int
}

// internedMin is how many strings are kept without looking who uses them. Chosen: the labels of some thousand nodes.
const internedMin = 1 << 15

// LabelID is a label by the numbers of its key and value.
type LabelID struct{ Key, Value int32 }

// NewInterner returns an interner that knows no strings.
func NewInterner() *Interner { return &Interner{ids: map[string]int32{}, Most: internedMin} }

// ID returns the number of s, from zero on.
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

// NumberOf returns the number of a label's value. labels are sorted by key.
func NumberOf(labels []LabelID, key int32) (value int32, ok bool) {
	if len(labels) <= 16 { // as nodes mostly have: faster than halving
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

// Len is how many strings have a number.
func (in *Interner) Len() int { return len(in.ids) }

// End is above every number that was given.
func (in *Interner) End() int { return len(in.texts) }

// Due reports whether it is time for a sweep.
func (in *Interner) Due() bool { return len(in.ids) > in.Most }

// Sweep forgets the strings whose numbers are not in use. Such a number means nothing any more, and later another
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
