package census

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// Who means whom: identities and aims find each other by labels. An aim that demands one of some values of a label,
// as nearly all do, is listed under these; an identity under each of its labels. So that a new pod is compared with
// the few aims that may mean it, and a new aim with the few pods, however many there are of both.

// everyNamespace is where aims are listed that may mean pods of more than one namespace. It is no name of one.
const everyNamespace = ""

// peers are the identities of one namespace.
type peers struct {
	all     map[*Identity]bool
	byLabel map[selector.Label][]labelled
	// See shrink.Map.
	gone, labelsGone int
}

// labelled is an identity under one of its labels, the n-th.
type labelled struct {
	who *Identity
	n   int
}

// aimList holds the aims about one namespace, or about more than one.
type aimList struct {
	byLabel map[selector.Label][]*Aim // those that demand one of some labels, under each
	others  []*Aim
}

// Demanded returns a requirement of the aim that demands one of some values, the fewest; nil: it has none.
func (a *Aim) Demanded() (found *selector.Requirement) {
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

func (a *Aim) home() string {
	if home, ok := a.local(); ok {
		return home
	}
	return everyNamespace
}

func (c *Census) listAim(a *Aim) {
	home := a.home()
	list := c.aimsIn[home]
	if list == nil {
		list = &aimList{byLabel: map[selector.Label][]*Aim{}}
		c.aimsIn[home] = list
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

func (c *Census) unlistAim(a *Aim) {
	home := a.home()
	list := c.aimsIn[home]
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
		delete(c.aimsIn, home)
	}
}

// eachAimFor calls see for the listed aims that may mean who.
func (c *Census) eachAimFor(home string, who *Identity, see func(*Aim)) {
	list := c.aimsIn[home]
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

// MayMean lists the identities that a may mean.
func (c *Census) MayMean(a *Aim) (out []*Identity) {
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

// meantBy lists the identities that a means.
func (c *Census) meantBy(a *Aim) (out []*Identity) {
	for _, who := range c.MayMean(a) {
		if who.MeantBy(a) {
			out = append(out, who)
		}
	}
	return out
}
