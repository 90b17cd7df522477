package placement

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/encode"
)

// An aim is a set of pods that somebody means: those that all its parts select. Constraints and terms that mean the
// same pods share one.
type aim struct {
	id    int32
	key   string
	parts []aimPart
	refs  int

	counters []*counter // of pods that it means, by domain
	held     []*counter // of terms with this aim that counted pods hold, by domain
}

// aimPart selects pods of some namespaces.
type aimPart struct {
	namespaces []string // sorted
	byLabels   LabelSelector
	pods       LabelSelector
}

func (a *aim) means(c *census, who *identity) bool {
	for i := range a.parts {
		p := &a.parts[i]
		if _, listed := slices.BinarySearch(p.namespaces, who.namespace); !listed && !p.byLabels.Selects(c.namespaces[who.namespace]) {
			return false
		}
		if !p.pods.Selects(who.labels) {
			return false
		}
	}
	return true
}

// local reports whether the labels of namespaces do not matter to the aim and it means pods of one only, and which.
func (a *aim) local() (string, bool) {
	for i := range a.parts {
		if !a.parts[i].byLabels.Nothing {
			return "", false
		}
	}
	p := &a.parts[0]
	if len(p.namespaces) != 1 {
		return "", false
	}
	return p.namespaces[0], true
}

// aimAt returns the aim of parts and takes hold of it; release lets go.
func (c *census) aimAt(parts ...aimPart) *aim {
	b := c.scratch[:0]
	for i := range parts {
		b = encode.Strings(b, parts[i].namespaces)
		b = parts[i].byLabels.Append(b)
		b = parts[i].pods.Append(b)
	}
	c.scratch = b
	if known := c.aims[string(b)]; known != nil {
		known.refs++
		return known
	}
	c.aimsMade++
	a := &aim{id: c.aimsMade, key: string(b), parts: parts, refs: 1}
	c.aims[a.key] = a
	c.listAim(a)
	for _, who := range c.mayMean(a) {
		if a.means(c, who) {
			who.add(a)
		}
	}
	return a
}

func (c *census) releaseAim(a *aim) {
	if a.refs--; a.refs > 0 {
		return
	}
	delete(c.aims, a.key)
	c.aims = shrunk(c.aims, &c.gone.aims)
	c.unlistAim(a)
	for _, who := range c.mayMean(a) {
		who.drop(a)
	}
}

// without removes x from list; the order of the others is kept.
func without[T comparable](list []T, x T) []T {
	return slices.DeleteFunc(list, func(y T) bool { return y == x })
}
