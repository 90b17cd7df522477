package census

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// An Aim is a set of pods: those that all its parts select. Constraints and terms that select the same pods share one
// Aim.
type Aim struct {
	ID  int32
	key string
	// Parts does not change.
	Parts []AimPart
	refs  int // how many constraints, terms and counters use it

	counters []*Counter // that count the pods in the set, by domain
	Held     []*Counter // that count the terms with this aim of the pods in the census, by domain
}

// AimPart selects pods by their labels, in some namespaces: those listed, and those with the labels of ByLabels.
type AimPart struct {
	Namespaces []string // sorted
	ByLabels   selector.Selector
	Pods       selector.Selector
}

// Means reports whether the pods of who are in the set.
func (a *Aim) Means(c *Census, who *Identity) bool {
	for i := range a.Parts {
		p := &a.Parts[i]
		if _, listed := slices.BinarySearch(p.Namespaces, who.Namespace); !listed && !p.ByLabels.Selects(c.namespaces[who.Namespace]) {
			return false
		}
		if !p.Pods.Selects(who.Labels) {
			return false
		}
	}
	return true
}

// local reports whether the aim selects pods of one namespace only, whatever the labels of namespaces are, and of
// which.
func (a *Aim) local() (string, bool) {
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

// AimAt returns the aim with these parts, with one more reference. ReleaseAim drops the reference.
func (c *Census) AimAt(parts ...AimPart) *Aim {
	b := c.scratch[:0]
	for i := range parts {
		b = encode.Strings(b, parts[i].Namespaces)
		b = parts[i].ByLabels.Append(b)
		b = parts[i].Pods.Append(b)
	}
	c.scratch = b
	if known := c.aims[string(b)]; known != nil {
		known.refs++
		return known
	}
	c.aimsMade++
	a := &Aim{ID: c.aimsMade, key: string(b), Parts: parts, refs: 1}
	c.aims[a.key] = a
	c.listAim(a)
	for _, who := range c.MayMean(a) {
		if a.Means(c, who) {
			who.add(a)
		}
	}
	return a
}

// ReleaseAim drops a reference to an aim. The aim is deleted with its last reference.
func (c *Census) ReleaseAim(a *Aim) {
	if a.refs--; a.refs > 0 {
		return
	}
	delete(c.aims, a.key)
	c.aims = shrink.Map(c.aims, &c.gone.aims)
	c.unlistAim(a)
	for _, who := range c.MayMean(a) {
		who.drop(a)
	}
}
