// Package selector evaluates label selectors, taints, tolerations and node affinity terms.
//
// # Model
//
// Labels and selectors are text, as in the API. A selector of pods is evaluated in that form (Selector). Terms about
// nodes are evaluated for every pod and every node, so they are compiled first: an Interner gives each string a small
// number, a node's labels become a list of pairs of numbers, and a NodeTerm becomes a Term. Evaluating a Term compares
// numbers.
//
// The Append functions write values as bytes, for use as keys. Equal values give equal bytes; different values give
// different bytes.
//
// # Invariants
//
//   - A number stands for its string as long as every Sweep is told that the number is in use.
//   - Labels are sorted by key. Labels of a node (LabelID) are sorted by the number of the key.
//
// The package knows no pods and no nodes. The caller decides which selector is evaluated for which pod or node.
package selector

import (
	"slices"
	"strings"
)

// Label is a key with its value.
type Label struct{ Key, Value string }

// Operator of a Requirement.
type Operator int

// The operators of node affinity. Selectors of pods have only the first four.
const (
	In Operator = iota
	NotIn
	Exists
	DoesNotExist
	Gt
	Lt
)

// A Requirement is one condition on a label or on a node's name.
type Requirement struct {
	Key    string
	Op     Operator
	Values []string
	Bound  int64 // for Gt and Lt
}

// A Selector matches labels that meet all requirements. Gt and Lt never match: they are for nodes only. A selector
// without requirements selects all labels. A selector with Nothing set selects none.
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

// Matches is like Selects, but an empty selector matches nothing, as in a disruption budget.
func (s *Selector) Matches(labels []Label) bool { return !s.Empty() && s.Selects(labels) }

// Empty reports whether the selector selects everything.
func (s *Selector) Empty() bool { return !s.Nothing && len(s.Requirements) == 0 }

// Equal reports whether both have the same requirements in the same order.
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
