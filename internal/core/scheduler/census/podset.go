package census

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// A PodSet is a set of pods: those that all its parts select. Constraints and terms that select the same pods share
// one PodSet.
type PodSet struct {
	ID  int32
	key string // Parts, encoded
	// Parts does not change.
	Parts []PodSelector
	refs  int // how many constraints, terms and counters use it

	counters []*Counter // the counters of the pods in the set
	Terms    []*Counter // the counters of terms about this pod set
}

// PodSelector selects pods by their labels, in some namespaces: those listed, and those with the labels of ByLabels.
type PodSelector struct {
	Namespaces []string // sorted
	ByLabels   selector.Selector
	Pods       selector.Selector
}

// Has reports whether the pods of who are in the set.
func (a *PodSet) Has(c *Census, who *Identity) bool {
	for i := range a.Parts {
		p := &a.Parts[i]
		_, listed := slices.BinarySearch(p.Namespaces, who.Namespace)
		if !listed && !p.ByLabels.Selects(c.namespaces[who.Namespace]) {
			return false
		}
		if !p.Pods.Selects(who.Labels) {
			return false
		}
	}
	return true
}

// local returns the namespace of the pod set's pods. It returns false if they may be in several namespaces, or if their
// namespaces depend on the labels of namespaces.
func (a *PodSet) local() (string, bool) {
	for i := range a.Parts {
		if !a.Parts[i].ByLabels.Nothing {
			return "", false
		}
	}
	p := &a.Parts[0]
	if len(p.Namespaces) != 1 {
		return "", false
	}
	return p.Namespaces[0], true
}

// PodSetOf returns the pod set with these parts, with one more reference. DropPodSet drops the reference.
func (c *Census) PodSetOf(parts ...PodSelector) *PodSet {
	b := c.scratch[:0]
	for i := range parts {
		b = encode.Strings(b, parts[i].Namespaces)
		b = parts[i].ByLabels.Append(b)
		b = parts[i].Pods.Append(b)
	}
	c.scratch = b
	if known := c.sets[string(b)]; known != nil {
		known.refs++
		return known
	}
	c.setsMade++
	a := &PodSet{ID: c.setsMade, key: string(b), Parts: parts, refs: 1}
	c.sets[a.key] = a
	c.listSet(a)
	for _, who := range c.MayBeIn(a) {
		if a.Has(c, who) {
			who.add(a)
		}
	}
	return a
}

// DropPodSet drops a reference to a pod set. The pod set is deleted with its last reference.
func (c *Census) DropPodSet(a *PodSet) {
	if a.refs--; a.refs > 0 {
		return
	}
	delete(c.sets, a.key)
	c.sets = shrink.Map(c.sets, &c.gone.sets)
	c.unlistSet(a)
	for _, who := range c.MayBeIn(a) {
		who.drop(a)
	}
}
