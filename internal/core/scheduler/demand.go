package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// A demand is what rules are evaluated for: a class, together with the counters that its constraints and terms read.
// Pods of one class share a demand if the same pod sets have them.
type demand struct {
	*class
	key  string // which pod sets have its pods, encoded; its key in class.demands; see demandOf
	used uint64 // when it was last decided about, in cluster.decisions
	// identities is how many identities have used it, stamp the time of the last use; see demands.
	identities int
	stamp      uint64
	// dropped is set by dropDemand: the demand must not be used any more.
	dropped bool
	// finalRules are the rules that have rejected it on some row whichever pods would be evicted. Rules are added, never
	// removed, because kept costs are not evaluated again. A rule too many costs one evaluation; a rule too few would
	// leave a pod waiting.
	finalRules RuleSet
	costs      preemptCosts // what preemption costs it on rows, as far as that is kept

	surroundings
	soft           []countedSpread
	softEverywhere bool // soft constraints count and score also nodes without the topology key
	// The counters of its preferred terms.
	preferredPods []weightedCounter

	// The counters of preferred terms of pods on rows that match this pod. preferredByOthers and antiAffinityOfOthers
	// are recomputed when Census.TermsVersion has grown. termsSeen is its value at the last time, plus one.
	preferredByOthers []weightedCounter
	termsSeen         uint64
	sets              []*census.PodSet // the pod sets that have its pods

	// volumes is what the volumes of its pods need; nil: they have no volumes that rules read. volumesSeen is the version
	// of storage for which it was computed, plus one.
	volumes     *volumes.Needs
	volumesSeen uint64

	images  []*image  // one for each of imageNames
	weights []float64 // by soft constraint; valid while nodes are scored; see spreadScorer.prepare
	spans   []int     // by soft constraint; valid while nodes are scored; see measureSpread
	tables  *tables   // nil: none, decisions are by masks
	// decidedAt is when it was last decided about, as a position in state.changes. streak is how many decisions followed
	// one another with few changes between them; negative: tables do not help for that many more decisions.
	decidedAt, streak int
}

// surroundings are what a demand requires of the pods near a row.
type surroundings struct {
	hard []countedSpread
	// affinityPods count the pods that match all required affinity terms, by the topology of each term.
	affinityPods         []*census.Counter
	affinitySelf         bool              // these terms match the pod itself
	antiAffinityPods     []*census.Counter // of the pods that match a required anti-affinity term
	antiAffinityOfOthers []*census.Counter // of the required anti-affinity terms of pods on rows that match this pod
}

// eachCounter calls see for the counters, for some of them more than once.
func (x *surroundings) eachCounter(see func(*census.Counter)) {
	for i := range x.hard {
		if x.hard[i].counter != nil {
			see(x.hard[i].counter)
		}
	}
	for _, list := range [...][]*census.Counter{x.affinityPods, x.antiAffinityPods, x.antiAffinityOfOthers} {
		for _, k := range list {
			see(k)
		}
	}
}

// empty reports whether nothing is required.
func (x *surroundings) empty() bool {
	return len(x.hard)+len(x.affinityPods)+len(x.antiAffinityPods)+len(x.antiAffinityOfOthers) == 0
}

func (x *surroundings) equal(y *surroundings) bool {
	return slices.Equal(x.hard, y.hard) && slices.Equal(x.affinityPods, y.affinityPods) &&
		x.affinitySelf == y.affinitySelf && slices.Equal(x.antiAffinityPods, y.antiAffinityPods) &&
		slices.Equal(x.antiAffinityOfOthers, y.antiAffinityOfOthers)
}

// countedSpread is a compiled spread constraint of a demand, with the counter that it reads.
type countedSpread struct {
	counter    *census.Counter // nil: the selector is empty, so nothing is counted
	key        int32
	topo       *census.Topology
	maxSkew    int32
	minDomains int32
	self       int32 // 1 if the constraint counts the pod itself
}

type weightedCounter struct {
	counter *census.Counter
	weight  int64
}

// demandOf returns the demand of pods with class k and identity who. owner decides the default spread constraints.
func (c *cluster) demandOf(k *class, who *census.Identity, owner Owner) *demand {
	var defaults *census.PodSet
	if len(k.spread) == 0 && len(k.profile.DefaultSpread) > 0 {
		defaults = c.defaultsOf(who, owner)
	}
	b := append(c.scratch[:0], who.SetsKey...)
	if defaults != nil {
		b = encode.Number(append(b, 0), int64(defaults.ID))
	}
	c.scratch = b
	d := k.demands[string(b)]
	if d == nil {
		d = &demand{class: k, key: string(b), sets: slices.Clone(who.Sets)}
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

// refresh updates d to the present terms of other pods and the present volumes.
func (c *cluster) refresh(d *demand) {
	if d.termsSeen != c.TermsVersion+1 {
		c.readOthersTerms(d)
	}
	if len(d.mounts.Mounts) > 0 {
		c.readVolumes(d)
	}
}

func (c *cluster) dropDemand(d *demand) {
	delete(d.class.demands, d.key)
	delete(c.demands.all, d)
	d.dropped = true
	c.dropCosts(d)
	for _, list := range [][]countedSpread{d.hard, d.soft} {
		for i := range list {
			if list[i].counter != nil {
				c.DropCounter(list[i].counter)
			}
			c.DropTopology(list[i].topo)
		}
	}
	for _, list := range [][]*census.Counter{d.affinityPods, d.antiAffinityPods} {
		for _, k := range list {
			c.DropCounter(k)
		}
	}
	for _, w := range d.preferredPods {
		c.DropCounter(w.counter)
	}
	for _, i := range d.images {
		c.dropImage(i)
	}
	c.dropTables(d)
}

// readSpread finds the counters of the spread constraints: the pod's own, otherwise the profile's defaults.
func (c *cluster) readSpread(d *demand, who *census.Identity, defaults *census.PodSet) {
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
		ask := countedSpread{
			key:        t.key,
			topo:       c.RefTopology(c.TopologyOf(t.key)),
			maxSkew:    t.MaxSkew,
			minDomains: t.MinDomains,
		}
		if who.In(t.set) {
			ask.self = 1
		}
		keys := softKeys
		if t.Hard {
			keys = hardKeys
		}
		key := census.CounterKey{Set: t.set, Topo: ask.topo, What: census.CountLivePods}
		if !t.Hard && t.key == c.hostKey {
			key.Topo = c.TopologyOf(census.NodeItself) // scored by node, regardless of the inclusion policies
		} else {
			of := scopeKey{hard: t.Hard, affinity: !t.IgnoreAffinity, taints: t.HonorTaints}
			if scopes[of] == nil {
				scopes[of] = c.scopeOf(d.class, of.affinity, of.taints, keys)
			}
			key.Scope = scopes[of]
		}
		if !t.set.Parts[0].Pods.Empty() {
			ask.counter = c.CounterAt(key)
		}
		if t.Hard {
			d.hard = append(d.hard, ask)
		} else {
			d.soft = append(d.soft, ask)
		}
	}
	for _, s := range scopes {
		c.DropScope(s)
	}
}

// scopeOf returns the scope of rows with all keys and, if affinity or taints is true, those that the node affinity or
// the tolerations of k allow.
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

// allowed is a census.Admission: it admits the nodes that a class allows by its affinity, its tolerations, or both.
type allowed struct {
	state            *state
	class            *class
	affinity, taints bool
}

// Admits implements census.Admission.
func (x *allowed) Admits(r row) bool {
	return (!x.affinity || affinityAllows(x.state, x.class, r)) &&
		(!x.taints || selector.TolerateAll(x.class.tolerations, x.state.taints[r]))
}

// EachString implements census.Admission.
func (x *allowed) EachString(see func(...int32)) {
	m := marker{see: see}
	m.class(x.class)
}

// scopeKey identifies the scopes of one pod's constraints.
type scopeKey struct{ hard, affinity, taints bool }

// readTerms finds the counters of the pod's own terms.
func (c *cluster) readTerms(d *demand, who *census.Identity) {
	pods := func(a *census.PodSet, key int32) *census.Counter {
		return c.CounterAt(census.CounterKey{Set: a, Topo: c.TopologyOf(key), What: census.CountPods})
	}
	for _, key := range d.affinityKeys {
		d.affinityPods = append(d.affinityPods, pods(d.affinity, key))
		d.affinitySelf = who.In(d.affinity)
	}
	for _, t := range d.antiAffinity {
		d.antiAffinityPods = append(d.antiAffinityPods, pods(t.set, t.key))
	}
	for _, t := range d.preferredTerms {
		d.preferredPods = append(d.preferredPods, weightedCounter{pods(t.set, t.key), t.weight})
	}
}

// readOthersTerms finds the counters of those terms of other pods that match the pod. If the counters are not the same
// as before, tables and costs are dropped.
func (c *cluster) readOthersTerms(d *demand) {
	was := len(d.antiAffinityOfOthers) + len(d.preferredByOthers)
	same := d.termsSeen != 0
	d.termsSeen = c.TermsVersion + 1
	var antiAffinity []*census.Counter
	var preferred []weightedCounter
	ignore := d.profile.IgnoreExistingPreferred && len(d.preferredTerms) == 0
	for _, a := range d.sets {
		for _, k := range a.Terms {
			switch {
			case k.Of.What == census.CountAntiTerms:
				antiAffinity = append(antiAffinity, k)
			case ignore:
			case k.Of.What == census.CountTermWeights:
				preferred = append(preferred, weightedCounter{k, 1})
			case d.profile.HardAffinityWeight > 0:
				preferred = append(preferred, weightedCounter{k, d.profile.HardAffinityWeight})
			}
		}
	}
	same = same && was == len(antiAffinity)+len(preferred)
	for i := 0; same && i < len(antiAffinity); i++ {
		same = i < len(d.antiAffinityOfOthers) && antiAffinity[i] == d.antiAffinityOfOthers[i]
	}
	for i := 0; same && i < len(preferred); i++ {
		same = i < len(d.preferredByOthers) && preferred[i] == d.preferredByOthers[i]
	}
	if !same {
		d.antiAffinityOfOthers, d.preferredByOthers = antiAffinity, preferred
		c.dropTables(d)
		c.dropCosts(d)
	}
}

// looksAround reports whether any result for the demand depends on pods on other rows.
func (d *demand) looksAround() bool {
	return !d.surroundings.empty() || d.volumes != nil && len(d.volumes.Once) > 0
}
