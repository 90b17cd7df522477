package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// A demand is what the rules ask about: a class, with the live counters that its constraints and terms read. Pods of
// one class share a demand if they are the same to everyone: if the same aims mean them.
type demand struct {
	*class
	key  string
	used uint64 // when it was asked about last, in decisions
	// identities have used it, and stamp is when one did last; see demands.
	identities int
	stamp      uint64
	dropped    bool
	// useless are rules that have objected to it on some row, whoever would be evicted, since it was made. None is taken
	// back: bids that are kept are not asked again, and one too many costs a question, one too few a pod that waits.
	useless RuleSet
	bids    bids

	surroundings
	soft           []spreadAsk
	softEverywhere bool // soft constraints count and score nodes that lack a key, too
	drawn          []weightedCounter

	// Terms that counted pods hold and that mean this pod; refreshed, and shunnedBy, when termsVersion moves on.
	wantedBy  []weightedCounter
	termsSeen uint64
	reach     []*census.Aim

	volumes     *volumes.Ask // of pods with volumes that rules look at, as of volumesSeen
	volumesSeen uint64

	images  []*image  // one for each of imageNames
	weights []float64 // of soft, as things are while nodes are scored; see spreadScorer.prepare
	spans   []int     // likewise; see measureSpread
	tables  *tables
	// When it was asked about last, as a place in the change log, and how often in a row with few changes between.
	asked, often int
}

// surroundings are what a demand requires of the pods around a row.
type surroundings struct {
	hard         []spreadAsk
	together     []*census.Counter // of pods that all required affinity terms mean, by the topology of each term
	togetherSelf bool              // they mean the pod itself
	apart        []*census.Counter // of pods that a required anti-affinity term means
	shunnedBy    []*census.Counter // of such terms, of counted pods, that mean this one
}

// eachCounter calls see for the counters that are looked at, for some of them more than once.
func (x *surroundings) eachCounter(see func(*census.Counter)) {
	for i := range x.hard {
		if x.hard[i].counter != nil {
			see(x.hard[i].counter)
		}
	}
	for _, list := range [...][]*census.Counter{x.together, x.apart, x.shunnedBy} {
		for _, k := range list {
			see(k)
		}
	}
}

// empty reports whether nothing is required.
func (x *surroundings) empty() bool {
	return len(x.hard)+len(x.together)+len(x.apart)+len(x.shunnedBy) == 0
}

func (x *surroundings) equal(y *surroundings) bool {
	return slices.Equal(x.hard, y.hard) && slices.Equal(x.together, y.together) && x.togetherSelf == y.togetherSelf &&
		slices.Equal(x.apart, y.apart) && slices.Equal(x.shunnedBy, y.shunnedBy)
}

// spreadAsk is one spread constraint, ready to be read.
type spreadAsk struct {
	counter    *census.Counter // nil: the selector is empty, which counts nothing
	key        int32
	topo       *census.Topology
	maxSkew    int32
	minDomains int32
	self       int32 // 1 if the pod counts itself
}

type weightedCounter struct {
	counter *census.Counter
	weight  int64
}

// demandOf returns the demand of pods of class k and identity who, whose groups are those of owner.
func (c *cluster) demandOf(k *class, who *census.Identity, owner Owner) *demand {
	var defaults *census.Aim
	if len(k.spread) == 0 && len(k.profile.DefaultSpread) > 0 {
		defaults = c.defaultsOf(who, owner)
	}
	b := append(c.scratch[:0], who.Reach...)
	if defaults != nil {
		b = encode.Number(append(b, 0), int64(defaults.ID))
	}
	c.scratch = b
	d := k.demands[string(b)]
	if d == nil {
		d = &demand{class: k, key: string(b), reach: slices.Clone(who.Aims)}
		c.readSpread(d, who, defaults)
		c.readTerms(d, who)
		for _, name := range k.imageNames {
			d.images = append(d.images, c.imageAt(name))
		}
		k.demands[d.key] = d
		c.demands.add(c, d)
	}
	c.demands.use(d, who)
	c.refresh(d)
	return d
}

// refresh lets d see terms and volumes as they are now.
func (c *cluster) refresh(d *demand) {
	if d.termsSeen != c.TermsVersion+1 {
		c.readHeldTerms(d)
	}
	if len(d.wants.Mounts) > 0 {
		c.readVolumes(d)
	}
}

func (c *cluster) dropDemand(d *demand) {
	delete(d.class.demands, d.key)
	delete(c.demands.all, d)
	d.dropped = true
	c.dropBids(d)
	for _, list := range [][]spreadAsk{d.hard, d.soft} {
		for i := range list {
			if list[i].counter != nil {
				c.ReleaseCounter(list[i].counter)
			}
			c.ReleaseTopology(list[i].topo)
		}
	}
	for _, list := range [][]*census.Counter{d.together, d.apart} {
		for _, k := range list {
			c.ReleaseCounter(k)
		}
	}
	for _, w := range d.drawn {
		c.ReleaseCounter(w.counter)
	}
	for _, i := range d.images {
		c.releaseImage(i)
	}
	c.dropTables(d)
}

// readSpread finds the counters of the spread constraints: the pod's own, else the profile's for pods of its groups.
func (c *cluster) readSpread(d *demand, who *census.Identity, defaults *census.Aim) {
	terms := d.spread
	if len(terms) == 0 && defaults != nil {
		for _, s := range d.profile.DefaultSpread {
			terms = append(terms, spreadTerm{s, c.intern.ID(s.TopologyKey), defaults})
		}
		d.softEverywhere = d.profile.SystemDefaults
	}
	var hardKeys, softKeys []int32
	for i := range terms {
		if terms[i].Hard {
			hardKeys = append(hardKeys, terms[i].key)
		} else if !d.softEverywhere {
			softKeys = append(softKeys, terms[i].key)
		}
	}
	scopes := map[scopeKey]*census.Scope{}
	for i := range terms {
		t := &terms[i]
		ask := spreadAsk{key: t.key, topo: c.HoldTopology(c.TopologyOf(t.key)), maxSkew: t.MaxSkew, minDomains: t.MinDomains}
		if who.MeantBy(t.aim) {
			ask.self = 1
		}
		keys := softKeys
		if t.Hard {
			keys = hardKeys
		}
		key := census.CounterKey{Aim: t.aim, Topo: ask.topo, What: census.CountLivePods}
		if !t.Hard && t.key == c.hostKey {
			key.Topo = c.TopologyOf(census.NodeItself) // scored by the node alone, whatever the policies say
		} else {
			of := scopeKey{hard: t.Hard, affinity: !t.IgnoreAffinity, taints: t.HonorTaints}
			if scopes[of] == nil {
				scopes[of] = c.scopeOf(d.class, of.affinity, of.taints, keys)
			}
			key.Scope = scopes[of]
		}
		if !t.aim.Parts[0].Pods.Empty() {
			ask.counter = c.CounterAt(key)
		}
		if t.Hard {
			d.hard = append(d.hard, ask)
		} else {
			d.soft = append(d.soft, ask)
		}
	}
	for _, s := range scopes {
		c.ReleaseScope(s)
	}
}

// scopeOf returns the scope of rows that have all keys, and that the affinity and the tolerations of k allow where they
// are asked.
func (c *cluster) scopeOf(k *class, affinity, taints bool, keys []int32) *census.Scope {
	b := encode.Bool(c.scratch[:0], affinity && (len(k.nodeSelector) > 0 || k.hasTerms))
	if affinity {
		b = append(b, k.affinityKey...)
	}
	if b = encode.Bool(b, taints); taints {
		b = selector.AppendTolerations(b, k.tolerations)
	}
	c.scratch = b
	return c.ScopeAt(b, &allowed{state: &c.state, class: k, affinity: affinity, taints: taints}, keys)
}

// allowed admits the nodes that a class allows by its affinity, by its tolerations, or by both.
type allowed struct {
	state            *state
	class            *class
	affinity, taints bool
}

func (x *allowed) Admits(r row) bool {
	return (!x.affinity || affinityAllows(x.state, x.class, r)) &&
		(!x.taints || selector.TolerateAll(x.class.tolerations, x.state.taints[r]))
}

func (x *allowed) EachString(see func(...int32)) {
	m := marker{see: see}
	m.class(x.class)
}

// scopeKey tells the scopes of one pod's constraints apart.
type scopeKey struct{ hard, affinity, taints bool }

// readTerms finds the counters of the pod's own terms.
func (c *cluster) readTerms(d *demand, who *census.Identity) {
	pods := func(a *census.Aim, key int32) *census.Counter {
		return c.CounterAt(census.CounterKey{Aim: a, Topo: c.TopologyOf(key), What: census.CountPods})
	}
	for _, key := range d.joinKeys {
		d.together = append(d.together, pods(d.affinity, key))
		d.togetherSelf = who.MeantBy(d.affinity)
	}
	for _, t := range d.antis {
		d.apart = append(d.apart, pods(t.aim, t.key))
	}
	for _, t := range d.prefers {
		d.drawn = append(d.drawn, weightedCounter{pods(t.aim, t.key), t.weight})
	}
}

// readHeldTerms finds the counters of terms that mean the pod. What changed makes tables built on the old ones void.
func (c *cluster) readHeldTerms(d *demand) {
	was := len(d.shunnedBy) + len(d.wantedBy)
	same := d.termsSeen != 0
	d.termsSeen = c.TermsVersion + 1
	var shunned []*census.Counter
	var wanted []weightedCounter
	ignore := d.profile.IgnoreHeldPreferred && len(d.prefers) == 0
	for _, a := range d.reach {
		for _, k := range a.Held {
			switch {
			case k.Of.What == census.CountAntiTerms:
				shunned = append(shunned, k)
			case ignore:
			case k.Of.What == census.CountTermWeights:
				wanted = append(wanted, weightedCounter{k, 1})
			case d.profile.HardAffinityWeight > 0:
				wanted = append(wanted, weightedCounter{k, d.profile.HardAffinityWeight})
			}
		}
	}
	same = same && was == len(shunned)+len(wanted)
	for i := 0; same && i < len(shunned); i++ {
		same = i < len(d.shunnedBy) && shunned[i] == d.shunnedBy[i]
	}
	for i := 0; same && i < len(wanted); i++ {
		same = i < len(d.wantedBy) && wanted[i] == d.wantedBy[i]
	}
	if !same {
		d.shunnedBy, d.wantedBy = shunned, wanted
		c.dropTables(d)
		c.dropBids(d)
	}
}

// looksAround reports whether any answer about the demand depends on pods elsewhere.
func (d *demand) looksAround() bool {
	return !d.surroundings.empty() || d.volumes != nil && len(d.volumes.Once) > 0
}
