// Package selector says what labels, taints and terms about nodes select.
//
// # Model
//
// Labels and selectors are as the API has them: text. A selector of pods is asked as it is (Selector). What is asked
// of nodes, for every pod about every node, is compiled against an Interner, which gives each string a small number: a
// node's labels become a list of pairs of numbers, a NodeTerm a Term, and to ask is to compare numbers.
//
// The Append functions write values as bytes that no other values give: what asks the same has the same key.
//
// # Invariants
//
//   - Numbers mean their strings until a sweep that was not told they are in use.
//   - Labels are sorted by key, those of a node (LabelID) by the number of the key.
//
// It knows no pods and no nodes: who asks about which is its caller's to say.
package selector

import (
	"slices"
	"strings"
)

// Label is a key with its value.
type Label struct{ Key, Value string }

// Operator of a Requirement.
type Operator int

// The operators of node affinity; those of selectors of pods are the first four.
const (
	In Operator = iota
	NotIn
	Exists
	DoesNotExist
	Gt
	Lt
)

// A Requirement is one condition on a label (or on a node's name).
type Requirement struct {
	Key    string
	Op     Operator
	Values []string
	Bound  int64 // for Gt and Lt
}

// A Selector matches labels that meet all requirements (not Gt and Lt, which are for nodes). Without any it selects all
// labels; with Nothing set, none.
type Selector struct {
	Requirements []Requirement
	Nothing      bool
}

// Selects reports whether labels, sorted by key, meet the selector.
func (s *Selector) Selects(labels []Label) bool {
	if s.Nothing {
		return false
	}
	for i := range s.Requirements {
		if !s.Requirements[i].meets(labels) {
			return false
		}
	}
	return true
}

// Matches is Selects for who means nobody by an empty selector, as a disruption budget does.
func (s *Selector) Matches(labels []Label) bool { return !s.Empty() && s.Selects(labels) }

// Empty reports whether the selector selects everything.
func (s *Selector) Empty() bool { return !s.Nothing && len(s.Requirements) == 0 }

// Equal reports whether both are written alike.
func (s *Selector) Equal(other *Selector) bool {
	return s.Nothing == other.Nothing && slices.EqualFunc(s.Requirements, other.Requirements, func(a, b Requirement) bool {
		return a.Key == b.Key && a.Op == b.Op && a.Bound == b.Bound && slices.Equal(a.Values, b.Values)
	})
}

func (q *Requirement) meets(labels []Label) bool {
	value, ok := ValueOf(labels, q.Key)
	switch q.Op {
	case In:
		return ok && slices.Contains(q.Values, value)
	case NotIn:
		return !ok || !slices.Contains(q.Values, value)
	case Exists:
		return ok
	case DoesNotExist:
		return !ok
	}
	return false
}

// ValueOf returns the value of a label. labels are sorted by key.
func ValueOf(labels []Label, key string) (value string, ok bool) {
	i, found := slices.BinarySearchFunc(labels, key, func(l Label, k string) int { return strings.Compare(l.Key, k) })
	if !found {
		return "", false
	}
	return labels[i].Value, true
}
