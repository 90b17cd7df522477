package placement

import (
	"iter"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/selector"
)

// census is who is where: which pods constraints and terms mean, and how many of them, or of terms that mean others,
// the domains of topologies hold. Its counts are always right: they follow each pod and each node.
//
// Of nodes it knows what censusNodes tells; of pods, on which row they count, who they are to others, and the terms
// that they hold.
type census struct {
	on      censusNodes
	in      *selector.Interner
	changed func(row) // what others think of pods on a row is another now
	// recounted is told that k counts more on row r than before (sign 1), or fewer.
	recounted func(k *counter, r row, sign int32)
	scratch   []byte

	identities map[string]*identity
	peers      map[string]*peers // by namespace
	namespaces map[string][]Label

	aims     map[string]*aim
	aimsIn   map[string]*aimList // by the namespace they are about, everyNamespace for the others
	aimsMade int32

	topologies map[int32]*topology // by label key
	counters   map[counterKey]*counter
	scopes     map[string]*scope
	grounds    map[groundKey]*ground
	// termsVersion grows when a counter of held terms comes or goes, epoch when a topology begins or ends to have
	// domains of several rows.
	termsVersion, epoch uint64
	gone                struct{ identities, aims, counters int } // see shrunk
}

// censusNodes is what a census looks at of nodes.
type censusNodes interface {
	// end is above every row.
	end() row
	present(r row) bool
	// label returns the value of a label.
	label(r row, key int32) (value int32, ok bool)
	// hasKey reports whether any row has a label of this key.
	hasKey(key int32) bool
}

func newCensus(on censusNodes, in *selector.Interner, changed func(row), recounted func(*counter, row, int32)) *census {
	return &census{
		on:         on,
		in:         in,
		changed:    changed,
		recounted:  recounted,
		identities: map[string]*identity{},
		peers:      map[string]*peers{},
		namespaces: map[string][]Label{},
		aims:       map[string]*aim{},
		aimsIn:     map[string]*aimList{},
		topologies: map[int32]*topology{},
		counters:   map[counterKey]*counter{},
		scopes:     map[string]*scope{},
		grounds:    map[groundKey]*ground{},
	}
}

// countedPod is a pod that counts on a row.
type countedPod struct {
	row      row
	deleting bool // its deletion was asked for
	who      *identity
	terms    []heldTerm
	inWho    int // place in pods of who
}

// heldTerm is a term of a pod, kept where the pods that it means look for it.
type heldTerm struct {
	counter *counter
	weight  int32
}

// come counts p; leave takes it off again.
func (c *census) come(p *countedPod) {
	p.inWho = len(p.who.pods)
	p.who.pods = append(p.who.pods, p)
	c.count(p, 1)
}

func (c *census) leave(p *countedPod) {
	c.count(p, -1)
	list := p.who.pods
	last := list[len(list)-1]
	list[p.inWho], last.inWho = last, p.inWho
	list[len(list)-1] = nil
	p.who.pods = list[:len(list)-1]
}

// count counts p where constraints and terms look for it, and its own terms where others look for them, once more
// (sign 1) or once less.
func (c *census) count(p *countedPod, sign int32) {
	for _, a := range p.who.aims {
		for _, k := range a.counters {
			k.countPod(p, sign)
		}
	}
	for _, t := range p.terms {
		t.counter.add(p.row, sign*t.weight)
	}
}

// eachCounter calls see for the counters in which p counts.
func (p *countedPod) eachCounter(see func(*counter)) {
	for _, a := range p.who.aims {
		for _, k := range a.counters {
			see(k)
		}
	}
	for _, t := range p.terms {
		see(t.counter)
	}
}

// moveRow lets change alter what decides about the domains and scopes of row r, and keeps the counters right. pods are
// those that count on it.
func (c *census) moveRow(r row, pods iter.Seq[*countedPod], change func()) {
	c.standIn(r, pods, -1)
	change()
	for key, t := range c.topologies {
		value, ok := c.topologyValue(r, key)
		single := t.single()
		if t.place(r, value, ok); t.single() != single {
			c.epoch++
		}
	}
	for _, s := range c.scopes {
		s.judge(c.on, r)
	}
	c.standIn(r, pods, 1)
}

// standIn adds row r and its pods to the counters, or takes them away.
func (c *census) standIn(r row, pods iter.Seq[*countedPod], sign int32) {
	for p := range pods {
		c.count(p, sign)
		p.eachCounter(func(k *counter) { c.recounted(k, r, sign) })
	}
	for _, g := range c.grounds {
		g.addRow(r, sign)
	}
}

// setNamespace folds in the labels of a namespace: wider aims may now mean its pods, or no longer.
func (c *census) setNamespace(name string, labels []Label) (changed bool) {
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
		c.eachAimFor(everyNamespace, who, func(a *aim) {
			if means := a.means(c, who); means != who.meantBy(a) {
				changed = true
				c.turn(who, a, means)
			}
		})
	}
	return changed
}

// turn makes aim a mean the pods of who, or no longer.
func (c *census) turn(who *identity, a *aim, means bool) {
	sign := int32(1)
	if !means {
		sign = -1
	}
	for _, h := range who.pods {
		for _, k := range a.counters {
			k.countPod(h, sign)
			c.recounted(k, h.row, sign)
		}
		c.changed(h.row)
	}
	if means {
		who.add(a)
	} else {
		who.drop(a)
	}
}
