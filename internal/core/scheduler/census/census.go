// Package census counts pods by topology domain: how many pods with certain labels are in each domain, and how many
// pods there have terms of inter-pod affinity about others.
//
// # Model
//
// A PodSet is a set of pods, given by selectors. An Identity is what selectors can see of a pod: its namespace and
// labels. Each Identity lists the PodSets that have its pods; the lists follow as pod sets and identities come and go.
// A Topology divides rows into domains by the value of a label. A Scope is the set of rows on which pods count for a
// spread constraint. A Coverage is the part of a topology that is in a scope. A Counter counts, by domain, the pods in
// a pod set, or the terms about a pod set that the pods there have (ExistingTerm). All of these are shared by users
// with equal values, count their references, and are deleted with the last reference.
//
// # Invariants
//
//   - A counter always equals what a fresh count over all pods and rows would give.
//   - Counters follow each pod (Add, Remove, Count) and each node (MoveRow). The callbacks of New report which counters
//     changed.
//   - A domain where nothing is counted takes no memory in a counter.
//
// The package knows nothing about waiting pods and filters. It reads nodes through the interface Nodes. The interface
// Admission decides which nodes are in a scope.
package census

import (
	"fmt"
	"iter"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// Census has the counters, and what they count. It changes only by its methods; one goroutine may use it.
type Census struct {
	on      Nodes
	in      *selector.Interner
	changed func(rows.Row) // called when the pod sets that have the pods on a row change
	// recounted is called when k counts more on row r than before (sign 1) or less (sign -1).
	recounted func(k *Counter, r rows.Row, sign int32)
	// scratch is the memory for keys, reused by each call.
	scratch []byte

	identities map[string]*Identity        // by Identity.key
	peers      map[string]*peers           // by namespace
	namespaces map[string][]selector.Label // the labels of each namespace that has some

	sets map[string]*PodSet // by PodSet.key
	// setsIn has pod sets by the namespace of their pods; those that may have pods of several are under everyNamespace.
	setsIn map[string]*setList
	// setsMade is the ID of the newest pod set.
	setsMade int32

	topologies map[int32]*Topology // by label key
	counters   map[CounterKey]*Counter
	scopes     map[string]*Scope
	coverages  map[coverageKey]*Coverage
	// TermsVersion grows when a counter of terms comes or goes. Epoch grows when a topology gets its first domain of
	// several rows, or loses its last. Only the methods of Census change them.
	TermsVersion, Epoch uint64
	gone                struct{ identities, sets, counters int } // deleted entries, for shrink.Map
}

// Nodes is what a census reads of nodes.
type Nodes interface {
	// End returns a row above every row.
	End() rows.Row
	// Present reports whether row r has a node.
	Present(r rows.Row) bool
	// Label returns the value of a label of a node.
	Label(r rows.Row, key int32) (value int32, ok bool)
	// HasKey reports whether any row has a label of this key.
	HasKey(key int32) bool
}

// New returns a census without pods. The census calls changed for each row with a pod that joins or leaves a pod set,
// and recounted for each counter that counts more on a row than before (sign 1) or less (sign -1).
func New(on Nodes, in *selector.Interner, changed func(rows.Row), recounted func(*Counter, rows.Row, int32)) *Census {
	return &Census{
		on:         on,
		in:         in,
		changed:    changed,
		recounted:  recounted,
		identities: map[string]*Identity{},
		peers:      map[string]*peers{},
		namespaces: map[string][]selector.Label{},
		sets:       map[string]*PodSet{},
		setsIn:     map[string]*setList{},
		topologies: map[int32]*Topology{},
		counters:   map[CounterKey]*Counter{},
		scopes:     map[string]*Scope{},
		coverages:  map[coverageKey]*Coverage{},
	}
}

// Pod is a pod on a row.
type Pod struct {
	Row      rows.Row
	Deleting bool // its deletion was requested
	Who      *Identity
	Terms    []ExistingTerm
	inWho    int // its index in Who.Pods
}

// ExistingTerm is a term of inter-pod affinity of a pod that is on a row, with the counter in which it counts.
type ExistingTerm struct {
	Counter *Counter
	Weight  int32
}

// Add adds p to the census and counts it. Remove undoes that.
func (c *Census) Add(p *Pod) {
	p.inWho = len(p.Who.Pods)
	p.Who.Pods = append(p.Who.Pods, p)
	c.Count(p, 1)
}

// Remove removes p from the census.
func (c *Census) Remove(p *Pod) {
	c.Count(p, -1)
	list := p.Who.Pods
	last := list[len(list)-1]
	list[p.inWho], last.inWho = last, p.inWho
	list[len(list)-1] = nil
	p.Who.Pods = list[:len(list)-1]
}

// Count adds p (sign 1) or subtracts it (sign -1): in the counters of the pod sets that have it, and its own terms in
// the counters of terms.
func (c *Census) Count(p *Pod, sign int32) {
	for _, a := range p.Who.Sets {
		for _, k := range a.counters {
			k.countPod(p, sign)
		}
	}
	for _, t := range p.Terms {
		t.Counter.add(p.Row, sign*t.Weight)
	}
}

// EachCounter calls see for the counters in which p or a term of p counts.
func (p *Pod) EachCounter(see func(*Counter)) {
	for _, a := range p.Who.Sets {
		for _, k := range a.counters {
			see(k)
		}
	}
	for _, t := range p.Terms {
		see(t.Counter)
	}
}

// MoveRow calls change, which changes facts that decide to which domains and scopes row r belongs, and corrects the
// counters. pods are those on the row.
func (c *Census) MoveRow(r rows.Row, pods iter.Seq[*Pod], change func()) {
	c.countRow(r, pods, -1)
	change()
	for key, t := range c.topologies {
		value, ok := c.TopologyValue(r, key)
		single := t.Single()
		if t.place(r, value, ok); t.Single() != single {
			c.Epoch++
		}
	}
	for _, s := range c.scopes {
		s.update(c.on, r)
	}
	c.countRow(r, pods, 1)
}

// countRow adds row r and its pods to the counters (sign 1), or subtracts them (sign -1).
func (c *Census) countRow(r rows.Row, pods iter.Seq[*Pod], sign int32) {
	for p := range pods {
		c.Count(p, sign)
		p.EachCounter(func(k *Counter) { c.recounted(k, r, sign) })
	}
	for _, g := range c.coverages {
		g.addRow(r, sign)
	}
}

// SetNamespace sets the labels of a namespace. Pod sets that select namespaces by labels may gain or lose its pods.
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
		c.eachSetFor(everyNamespace, who, func(a *PodSet) {
			if has := a.Has(c, who); has != who.In(a) {
				changed = true
				c.setMember(who, a, has)
			}
		})
	}
	return changed
}

// setMember adds the pods of who to set a, or removes them if in is false.
func (c *Census) setMember(who *Identity, a *PodSet, in bool) {
	sign := int32(1)
	if !in {
		sign = -1
	}
	for _, h := range who.Pods {
		for _, k := range a.counters {
			k.countPod(h, sign)
			c.recounted(k, h.Row, sign)
		}
		c.changed(h.Row)
	}
	if in {
		who.add(a)
	} else {
		who.drop(a)
	}
}

// EachString calls see for the number of every string that is in use; see selector.Interner.
func (c *Census) EachString(see func(...int32)) {
	for key, t := range c.topologies {
		see(key)
		if key == NodeItself {
			continue // the values of this topology are rows, not strings
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

// Sizes returns how many of everything there are. It is for tests.
func (c *Census) Sizes() string {
	return fmt.Sprint(len(c.identities), len(c.sets), len(c.setsIn), len(c.counters), len(c.scopes), len(c.coverages),
		len(c.topologies), len(c.peers))
}

// Counters returns all counters. It is for tests.
func (c *Census) Counters() iter.Seq[*Counter] { return maps.Values(c.counters) }

// Identities returns all identities. It is for tests.
func (c *Census) Identities() iter.Seq[*Identity] { return maps.Values(c.identities) }

// Listed reports whether k is at its place in the list of its pod set. It is for tests.
func (k *Counter) Listed() bool {
	list := k.Of.Set.counters
	if k.Of.What > CountLivePods {
		list = k.Of.Set.Terms
	}
	return list[k.place] == k
}
