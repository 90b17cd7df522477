package selector

import (
	"maps"
	"slices"
	"strconv"
)

// A NodeTerm matches a node if the node meets all requirements. A term without requirements matches nothing.
type NodeTerm struct {
	Labels []Requirement
	Names  []Requirement // on metadata.name: In or NotIn only
	Broken bool          // a requirement could not be parsed: matches nothing
}

// A WeightedTerm adds Weight to a node's score if it matches.
type WeightedTerm struct {
	Weight int64
	Term   NodeTerm
}

// A Term is a compiled NodeTerm.
type Term struct {
	Labels []LabelRequirement
	Names  []Requirement
	Never  bool   // it matches nothing
	Text   string // the term, encoded (AppendNodeTerm): different for different terms
}

// A LabelRequirement is a compiled Requirement on a label. Values are sorted.
type LabelRequirement struct {
	Key    int32
	Op     Operator
	Values []int32
	Bound  int64
}

// Compile returns t with numbers in place of strings.
func (in *Interner) Compile(t NodeTerm) Term {
	out := Term{Names: t.Names, Never: t.Broken || len(t.Labels)+len(t.Names) == 0, Text: string(AppendNodeTerm(nil, &t))}
	for _, r := range t.Labels {
		q := LabelRequirement{Key: in.ID(r.Key), Op: r.Op, Bound: r.Bound}
		for _, v := range r.Values {
			q.Values = append(q.Values, in.ID(v))
		}
		slices.Sort(q.Values)
		out.Labels = append(out.Labels, q)
	}
	return out
}

// HasAll reports whether labels, sorted by key, have each of those that are wanted.
func HasAll(labels, wanted []LabelID) bool {
	for i := range wanted {
		if value, ok := NumberOf(labels, wanted[i].Key); !ok || value != wanted[i].Value {
			return false
		}
	}
	return true
}

// Allow reports whether a node with this name and these labels has every label of a node selector, and matches one of
// some required terms (nil: no requirement). It compiles all of them, so it is for a caller that asks only once.
func Allow(nodeSelector []Label, terms *[]NodeTerm, name string, labels []Label) bool {
	if len(nodeSelector) == 0 && terms == nil {
		return true
	}
	in := NewInterner()
	ids := in.Labels(labels)
	if !HasAll(ids, in.Labels(nodeSelector)) {
		return false
	}
	return terms == nil || slices.ContainsFunc(*terms, func(t NodeTerm) bool {
		compiled := in.Compile(t)
		return in.Match(&compiled, name, ids)
	})
}

// Match reports whether t matches a node of this name and these labels.
func (in *Interner) Match(t *Term, name string, labels []LabelID) bool {
	if t.Never || !in.Meet(t.Labels, labels) {
		return false
	}
	for i := range t.Names {
		if q := &t.Names[i]; slices.Contains(q.Values, name) != (q.Op == In) {
			return false
		}
	}
	return true
}

// MatchAny reports whether one of terms matches a node of this name and these labels.
func (in *Interner) MatchAny(terms []Term, name string, labels []LabelID) bool {
	for i := range terms {
		if in.Match(&terms[i], name, labels) {
			return true
		}
	}
	return false
}

// Meet reports whether labels meet all requirements.
func (in *Interner) Meet(requirements []LabelRequirement, labels []LabelID) bool {
	for i := range requirements {
		if !in.meets(&requirements[i], labels) {
			return false
		}
	}
	return true
}

func (in *Interner) meets(q *LabelRequirement, labels []LabelID) bool {
	value, ok := NumberOf(labels, q.Key)
	switch q.Op {
	case Exists:
		return ok
	case DoesNotExist:
		return !ok
	case In:
		return ok && slices.Contains(q.Values, value)
	case NotIn:
		return !ok || !slices.Contains(q.Values, value) // a node without the label meets every NotIn
	}
	if !ok {
		return false
	}
	n, err := strconv.ParseInt(in.texts[value], 10, 64)
	if err != nil {
		return false
	}
	if q.Op == Gt {
		return n > q.Bound
	}
	return n < q.Bound
}

// EachString calls see for the number of every string that t uses.
func (t *Term) EachString(see func(...int32)) {
	for i := range t.Labels {
		see(t.Labels[i].Key)
		see(t.Labels[i].Values...)
	}
}

// EachString calls see for the number of every string that terms use.
func EachString(terms []Term, see func(...int32)) {
	for i := range terms {
		terms[i].EachString(see)
	}
}

// AnyOf returns labels of which every node that matches one of terms has at least one. It returns nil if some term can
// match a node without such a label, or if there would be more labels than most.
func AnyOf(terms []Term, most int) (labels []LabelID) {
	for i := range terms {
		if terms[i].Never {
			continue
		}
		q := terms[i].Demanded()
		if q == nil {
			return nil
		}
		for _, value := range q.Values {
			if l := (LabelID{Key: q.Key, Value: value}); !slices.Contains(labels, l) {
				labels = append(labels, l)
			}
			if len(labels) > most {
				return nil
			}
		}
	}
	return labels
}

// Demanded returns a requirement that a label has one of some values, or nil if the term has none.
func (t *Term) Demanded() *LabelRequirement {
	i := slices.IndexFunc(t.Labels, func(q LabelRequirement) bool { return q.Op == In })
	if i < 0 {
		return nil
	}
	return &t.Labels[i]
}

// Names returns the node names that terms allow, sorted. It returns nil if some term does not restrict the name.
// conflict is true if every term restricts the name, and no name satisfies any of them.
func Names(terms []NodeTerm) (names []string, conflict bool) {
	if len(terms) == 0 {
		return nil, false
	}
	all := map[string]bool{}
	for _, t := range terms {
		var of []string
		open := true
		for _, r := range t.Names {
			if r.Op != In {
				continue
			}
			if open {
				of, open = slices.Clone(r.Values), false
				continue
			}
			of = slices.DeleteFunc(of, func(n string) bool { return !slices.Contains(r.Values, n) })
		}
		if open {
			return nil, false
		}
		for _, n := range of {
			all[n] = true
		}
	}
	names = slices.AppendSeq(make([]string, 0, len(all)), maps.Keys(all))
	slices.Sort(names)
	return names, len(names) == 0
}
