package placement

import "slices"

// Who means whom: identities and aims find each other by labels. An aim that demands one of some values of a label,
// as nearly all do, is listed under these; an identity under each of its labels. So that a new pod is compared with
// the few aims that may mean it, and a new aim with the few pods, however many there are of both.

// everyNamespace is where aims are listed that may mean pods of more than one namespace. It is no name of one.
const everyNamespace = ""

// peers are the identities of one namespace.
type peers struct {
	all     map[*identity]bool
	byLabel map[Label][]labelled
	// See shrunk.
	gone, labelsGone int
}

// labelled is an identity under one of its labels, the n-th.
type labelled struct {
	who *identity
	n   int
}

// aimList holds the aims about one namespace, or about more than one.
type aimList struct {
	byLabel map[Label][]*aim // those that demand one of some labels, under each
	others  []*aim
}

// demanded returns a requirement of the aim that demands one of some values, the fewest; nil: it has none.
func (a *aim) demanded() (found *Requirement) {
	for i := range a.parts {
		for j := range a.parts[i].pods.Requirements {
			q := &a.parts[i].pods.Requirements[j]
			if q.Op == In && (found == nil || len(q.Values) < len(found.Values)) {
				found = q
			}
		}
	}
	return found
}

func (a *aim) home() string {
	if home, ok := a.local(); ok {
		return home
	}
	return everyNamespace
}

func (c *census) listAim(a *aim) {
	home := a.home()
	list := c.aimsIn[home]
	if list == nil {
		list = &aimList{byLabel: map[Label][]*aim{}}
		c.aimsIn[home] = list
	}
	q := a.demanded()
	if q == nil {
		list.others = append(list.others, a)
		return
	}
	for _, value := range q.Values {
		label := Label{Key: q.Key, Value: value}
		list.byLabel[label] = append(list.byLabel[label], a)
	}
}

func (c *census) unlistAim(a *aim) {
	home := a.home()
	list := c.aimsIn[home]
	if q := a.demanded(); q == nil {
		list.others = without(list.others, a)
	} else {
		for _, value := range q.Values {
			label := Label{Key: q.Key, Value: value}
			if list.byLabel[label] = without(list.byLabel[label], a); len(list.byLabel[label]) == 0 {
				delete(list.byLabel, label)
			}
		}
	}
	if len(list.byLabel)+len(list.others) == 0 {
		delete(c.aimsIn, home)
	}
}

// eachAimFor calls see for the listed aims that may mean who.
func (c *census) eachAimFor(home string, who *identity, see func(*aim)) {
	list := c.aimsIn[home]
	if list == nil {
		return
	}
	for _, label := range who.labels {
		for _, a := range list.byLabel[label] {
			see(a)
		}
	}
	for _, a := range list.others {
		see(a)
	}
}

func (c *census) listIdentity(who *identity) {
	p := c.peers[who.namespace]
	if p == nil {
		p = &peers{all: map[*identity]bool{}, byLabel: map[Label][]labelled{}}
		c.peers[who.namespace] = p
	}
	p.all[who] = true
	who.places = make([]int, len(who.labels))
	for i, label := range who.labels {
		who.places[i] = len(p.byLabel[label])
		p.byLabel[label] = append(p.byLabel[label], labelled{who, i})
	}
}

func (c *census) unlistIdentity(who *identity) {
	p := c.peers[who.namespace]
	delete(p.all, who)
	for i, label := range who.labels {
		list := p.byLabel[label]
		last := list[len(list)-1]
		list[who.places[i]] = last
		last.who.places[last.n] = who.places[i]
		list[len(list)-1] = labelled{}
		if p.byLabel[label] = list[:len(list)-1]; len(list) == 1 {
			delete(p.byLabel, label)
			p.byLabel = shrunk(p.byLabel, &p.labelsGone)
		}
	}
	p.all = shrunk(p.all, &p.gone)
	if len(p.all) == 0 {
		delete(c.peers, who.namespace)
	}
}

// mayMean lists the identities that a may mean.
func (c *census) mayMean(a *aim) (out []*identity) {
	q := a.demanded()
	look := func(p *peers) {
		if q == nil {
			for who := range p.all {
				out = append(out, who)
			}
			return
		}
		for _, value := range slices.Compact(slices.Sorted(slices.Values(q.Values))) {
			for _, l := range p.byLabel[Label{Key: q.Key, Value: value}] {
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
func (c *census) meantBy(a *aim) (out []*identity) {
	for _, who := range c.mayMean(a) {
		if who.meantBy(a) {
			out = append(out, who)
		}
	}
	return out
}
