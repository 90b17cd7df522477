// Package census counts who is where: which pods constraints and terms mean, and how many of them, or of terms that
// mean others, each part of the cluster holds.
//
// # Model
//
// An Aim is a set of pods that somebody means, an Identity who a pod is to others; each knows the other as they come
// and go. A Topology divides rows into domains by the value of a label, a Scope is the rows on which pods count for a
// spread constraint, a Ground what a scope leaves of a topology. A Counter counts, by domain, the pods that an aim
// means, or the terms with it that pods hold (HeldTerm). All of these are shared by who asks for the same, counted by
// who holds them, and gone when nobody does.
//
// # Invariants
//
//   - A counter equals what a fresh count over all pods and rows would give, at any moment.
//   - It follows each pod (Come, Leave, Count) and each node (MoveRow), and tells of each counter that changes.
//   - A domain without anything to count takes no room in a counter.
//
// It knows no demands, rules or waiting pods. Of nodes it asks what Nodes says, of scopes what an Admission says.
package census

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// Census is the live counts of who is where, and who means whom.
type Census struct {
	on      Nodes
	in      *selector.Interner
	changed func(rows.Row) // what others think of pods on a row is another now
	// recounted is told that k counts more on row r than before (sign 1), or fewer.
	recounted func(k *Counter, r rows.Row, sign int32)
	scratch   []byte

	identities map[string]*Identity
	peers      map[string]*peers // by namespace
	namespaces map[string][]selector.Label

	aims     map[string]*Aim
	aimsIn   map[string]*aimList // by the namespace they are about, everyNamespace for the others
	aimsMade int32

	topologies map[int32]*Topology // by label key
	counters   map[CounterKey]*Counter
	scopes     map[string]*Scope
	grounds    map[groundKey]*Ground
	// TermsVersion grows when a counter of held terms comes or goes, epoch when a topology begins or ends to have
	// domains of several rows.
	TermsVersion, Epoch uint64
	gone                struct{ identities, aims, counters int } // see shrink.Map
}

// Nodes is what a census looks at of nodes.
type Nodes interface {
	// End is above every row.
	End() rows.Row
	Present(r rows.Row) bool
	// Label returns the value of a label.
	Label(r rows.Row, key int32) (value int32, ok bool)
	// HasKey reports whether any row has a label of this key.
	HasKey(key int32) bool
}

// New returns a census of no pods. changed is told of rows with pods of whom others think otherwise now, recounted of
// counters that count more on a row than before (sign 1), or fewer.
func New(on Nodes, in *selector.Interner, changed func(rows.Row), recounted func(*Counter, rows.Row, int32)) *Census {
	return &Census{
		on:         on,
		in:         in,
		changed:    changed,
		recounted:  recounted,
		identities: map[string]*Identity{},
		peers:      map[string]*peers{},
		namespaces: map[string][]selector.Label{},
		aims:       map[string]*Aim{},
		aimsIn:     map[string]*aimList{},
		topologies: map[int32]*Topology{},
		counters:   map[CounterKey]*Counter{},
		scopes:     map[string]*Scope{},
		grounds:    map[groundKey]*Ground{},
	}
}

// Pod is a pod that counts on a row.
type Pod struct {
	Row      rows.Row
	Deleting bool // its deletion was asked for
	Who      *Identity
	Terms    []HeldTerm
	inWho    int // place in pods of who
}

// HeldTerm is a term of a pod, kept where the pods that it means look for it.
type HeldTerm struct {
	Counter *Counter
	Weight  int32
}

// Come counts p; Leave takes it off again.
func (c *Census) Come(p *Pod) {
	p.inWho = len(p.Who.Pods)
	p.Who.Pods = append(p.Who.Pods, p)
	c.Count(p, 1)
}

// Leave takes p off again.
func (c *Census) Leave(p *Pod) {
	c.Count(p, -1)
	list := p.Who.Pods
	last := list[len(list)-1]
	list[p.inWho], last.inWho = last, p.inWho
	list[len(list)-1] = nil
	p.Who.Pods = list[:len(list)-1]
}

// Count counts p where constraints and terms look for it, and its own terms where others look for them, once more
// (sign 1) or once less.
func (c *Census) Count(p *Pod, sign int32) {
	for _, a := range p.Who.Aims {
		for _, k := range a.counters {
			k.countPod(p, sign)
		}
	}
	for _, t := range p.Terms {
		t.Counter.add(p.Row, sign*t.Weight)
	}
}

// EachCounter calls see for the counters in which p counts.
func (p *Pod) EachCounter(see func(*Counter)) {
	for _, a := range p.Who.Aims {
		for _, k := range a.counters {
			see(k)
		}
	}
	for _, t := range p.Terms {
		see(t.Counter)
	}
}

// MoveRow lets change alter what decides about the domains and scopes of row r, and keeps the counters right. pods are
// those that count on it.
func (c *Census) MoveRow(r rows.Row, pods iter.Seq[*Pod], change func()) {
	c.standIn(r, pods, -1)
	change()
	for key, t := range c.topologies {
		value, ok := c.TopologyValue(r, key)
		single := t.Single()
		if t.place(r, value, ok); t.Single() != single {
			c.Epoch++
		}
	}
	for _, s := range c.scopes {
		s.judge(c.on, r)
	}
	c.standIn(r, pods, 1)
}

// standIn adds row r and its pods to the counters, or takes them away.
func (c *Census) standIn(r rows.Row, pods iter.Seq[*Pod], sign int32) {
	for p := range pods {
		c.Count(p, sign)
		p.EachCounter(func(k *Counter) { c.recounted(k, r, sign) })
	}
	for _, g := range c.grounds {
		g.addRow(r, sign)
	}
}

// SetNamespace folds in the labels of a namespace: wider aims may now mean its pods, or no longer.
func (c *Census) SetNamespace(name string, labels []selector.Label) (changed bool) {
	if slices.Equal(c.namespaces[name], labels) {
		return false
	}
	if labels == nil {
		delete(c.namespaces, name)
	} else {
		c.namespaces[name] = labels
	}
	if c.peers[name] == nil {
		return false
	}
	for who := range c.peers[name].all {
		c.eachAimFor(everyNamespace, who, func(a *Aim) {
			if means := a.Means(c, who); means != who.MeantBy(a) {
				changed = true
				c.turn(who, a, means)
			}
		})
	}
	return changed
}

// turn makes aim a mean the pods of who, or no longer.
func (c *Census) turn(who *Identity, a *Aim, means bool) {
	sign := int32(1)
	if !means {
		sign = -1
	}
	for _, h := range who.Pods {
		for _, k := range a.counters {
			k.countPod(h, sign)
			c.recounted(k, h.Row, sign)
		}
		c.changed(h.Row)
	}
	if means {
		who.add(a)
	} else {
		who.drop(a)
	}
}

// EachString calls see for the number of every string that is used; see selector.Interner.
func (c *Census) EachString(see func(...int32)) {
	for key, t := range c.topologies {
		see(key)
		if key == NodeItself {
			continue // its values are rows
		}
		for value := range t.Values {
			see(value)
		}
	}
	for _, s := range c.scopes {
		s.of.EachString(see)
		see(s.keys...)
	}
}

// Sizes counts what is kept. It is for tests.
func (c *Census) Sizes() string {
	return fmt.Sprint(len(c.identities), len(c.aims), len(c.aimsIn), len(c.counters), len(c.scopes), len(c.grounds), len(c.topologies), len(c.peers))
}

// Counters lists what is kept. It is for tests.
func (c *Census) Counters() iter.Seq[*Counter] { return maps.Values(c.counters) }

// Identities lists what is kept. It is for tests.
func (c *Census) Identities() iter.Seq[*Identity] { return maps.Values(c.identities) }

// Listed reports whether k is at its place with its aim. It is for tests.
func (k *Counter) Listed() bool {
	list := k.Of.Aim.counters
	if k.Of.What > CountLivePods {
		list = k.Of.Aim.Held
	}
	return list[k.place] == k
}
