package census

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// Identities and pod sets are indexed by label. Nearly every pod set requires one of some values of a label. Such a pod
// set is listed under each of these values. An identity is listed under each of its labels. So a new pod is compared
// only with the pod sets that may have it, and a new pod set only with the pods that it may have, however many of both
// there are.

// everyNamespace is the key of pod sets that may have pods of more than one namespace. No namespace has this name.
const everyNamespace = ""

// peers are the identities of one namespace.
type peers struct {
	all     map[*Identity]bool
	byLabel map[selector.Label][]labelled
	// Deleted entries; see shrink.Map.
	gone, labelsGone int
}

// labelled is an identity, listed under its n-th label.
type labelled struct {
	who *Identity
	n   int
}

// setList has the pod sets whose pods are in one namespace only, or, under everyNamespace, all other pod sets.
type setList struct {
	byLabel map[selector.Label][]*PodSet // pod sets that require one of some labels, under each of these
	others  []*PodSet
}

// Demanded returns a requirement of the pod set that a label has one of some values; nil if it has none. Of several
// such requirements, it returns the one with the fewest values.
func (a *PodSet) Demanded() (found *selector.Requirement) {
	for i := range a.Parts {
		for j := range a.Parts[i].Pods.Requirements {
			q := &a.Parts[i].Pods.Requirements[j]
			if q.Op == selector.In && (found == nil || len(q.Values) < len(found.Values)) {
				found = q
			}
		}
	}
	return found
}

func (a *PodSet) home() string {
	if home, ok := a.local(); ok {
		return home
	}
	return everyNamespace
}

func (c *Census) listSet(a *PodSet) {
	home := a.home()
	list := c.setsIn[home]
	if list == nil {
		list = &setList{byLabel: map[selector.Label][]*PodSet{}}
		c.setsIn[home] = list
	}
	q := a.Demanded()
	if q == nil {
		list.others = append(list.others, a)
		return
	}
	for _, value := range q.Values {
		label := selector.Label{Key: q.Key, Value: value}
		list.byLabel[label] = append(list.byLabel[label], a)
	}
}

func (c *Census) unlistSet(a *PodSet) {
	home := a.home()
	list := c.setsIn[home]
	if q := a.Demanded(); q == nil {
		list.others = shrink.Without(list.others, a)
	} else {
		for _, value := range q.Values {
			label := selector.Label{Key: q.Key, Value: value}
			if list.byLabel[label] = shrink.Without(list.byLabel[label], a); len(list.byLabel[label]) == 0 {
				delete(list.byLabel, label)
			}
		}
	}
	if len(list.byLabel)+len(list.others) == 0 {
		delete(c.setsIn, home)
	}
}

// eachSetFor calls see for the pod sets listed for namespace home that may have the pods of who.
func (c *Census) eachSetFor(home string, who *Identity, see func(*PodSet)) {
	list := c.setsIn[home]
	if list == nil {
		return
	}
	for _, label := range who.Labels {
		for _, a := range list.byLabel[label] {
			see(a)
		}
	}
	for _, a := range list.others {
		see(a)
	}
}

func (c *Census) listIdentity(who *Identity) {
	p := c.peers[who.Namespace]
	if p == nil {
		p = &peers{all: map[*Identity]bool{}, byLabel: map[selector.Label][]labelled{}}
		c.peers[who.Namespace] = p
	}
	p.all[who] = true
	who.places = make([]int, len(who.Labels))
	for i, label := range who.Labels {
		who.places[i] = len(p.byLabel[label])
		p.byLabel[label] = append(p.byLabel[label], labelled{who, i})
	}
}

func (c *Census) unlistIdentity(who *Identity) {
	p := c.peers[who.Namespace]
	delete(p.all, who)
	for i, label := range who.Labels {
		list := p.byLabel[label]
		last := list[len(list)-1]
		list[who.places[i]] = last
		last.who.places[last.n] = who.places[i]
		list[len(list)-1] = labelled{}
		if p.byLabel[label] = list[:len(list)-1]; len(list) == 1 {
			delete(p.byLabel, label)
			p.byLabel = shrink.Map(p.byLabel, &p.labelsGone)
		}
	}
	p.all = shrink.Map(p.all, &p.gone)
	if len(p.all) == 0 {
		delete(c.peers, who.Namespace)
	}
}

// MayBeIn returns the identities whose pods may be in a.
func (c *Census) MayBeIn(a *PodSet) (out []*Identity) {
	q := a.Demanded()
	look := func(p *peers) {
		if q == nil {
			for who := range p.all {
				out = append(out, who)
			}
			return
		}
		for _, value := range slices.Compact(slices.Sorted(slices.Values(q.Values))) {
			for _, l := range p.byLabel[selector.Label{Key: q.Key, Value: value}] {
				out = append(out, l.who)
			}
		}
	}
	if home := a.home(); home != everyNamespace {
		if p := c.peers[home]; p != nil {
			look(p)
		}
		return out
	}
	for _, p := range c.peers {
		look(p)
	}
	return out
}

// members returns the identities whose pods are in a.
func (c *Census) members(a *PodSet) (out []*Identity) {
	for _, who := range c.MayBeIn(a) {
		if who.In(a) {
			out = append(out, who)
		}
	}
	return out
}
