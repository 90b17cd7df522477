package scheduler

import (
	"slices"
	"strings"

	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// A class (an equivalence class of pods) is what rules need of a pod, in compiled form: names are interned, and
// resources are column numbers. Pods with equal specifications share a class. A class does not change.
type class struct {
	key     string
	refs    int // how many pods on rows or in the queue have it
	demands map[string]*demand

	needs
	incomingLoad, placedLoad Load
	priority                 int32
	neverPreempts            bool

	tolerations   []Toleration
	toleratesNode bool // it tolerates the taint of a cordoned node
	nodeSelector  []selector.LabelID
	nodeTerms     selector.Terms
	hasTerms      bool     // there are required terms, even if nodeTerms is empty
	affinityKey   []byte   // nodeSelector and nodeTerms, encoded
	onlyNames     []string // if not nil, only nodes with these names can match; sorted
	conflict      bool     // the terms contradict each other about the node's name
	preferred     weightedTerms
	ports         []HostPort
	unsupported   []string

	// Terms about other pods.
	spread         []spreadTerm
	affinity       *census.PodSet // the pods that match all required affinity terms; nil: none
	affinityKeys   []int32        // the topology keys of these terms
	antiAffinity   []podTerm      // required anti-affinity
	preferredTerms []podTerm      // preferred affinity; preferred anti-affinity has negative weights
	ownTerms       []census.ExistingTerm

	imageNames []string
	containers int
	features   []string // sorted
	ofAgent    []string // what it needs of the node's agent, as codes

	numa    *numa.Pod // what it asks of the topology manager and of devices; nil: nothing
	numaKey string

	mounts volumes.PodMounts // its volumes
}

type request struct {
	column int
	value  int64
}

// weightedTerms are terms, with what each adds to the score of a node that it matches.
type weightedTerms struct {
	terms   selector.Terms
	weights []int64
}

func (w *weightedTerms) add(weight int64, t selector.Term) {
	i := w.terms.Add(t)
	if i == len(w.weights) {
		w.weights = append(w.weights, 0)
	}
	w.weights[i] += weight
}

type spreadTerm struct {
	SpreadConstraint
	key int32
	set *census.PodSet
}

type podTerm struct {
	set    *census.PodSet
	key    int32
	weight int64
}

// compile returns the class of pod, with one more reference. dropClass drops the reference.
func (c *cluster) compile(pod *Pod) *class {
	c.scratch = appendDemands(c.scratch[:0], pod)
	if known := c.classes[string(c.scratch)]; known != nil {
		known.refs++
		return known
	}
	c.sweepStrings()
	k := &class{
		key:           string(c.scratch),
		refs:          1,
		demands:       map[string]*demand{},
		needs:         needs{profile: c.profiles[pod.Profile]},
		priority:      pod.Priority,
		neverPreempts: pod.NeverPreempts,
		incomingLoad:  pod.IncomingLoad,
		placedLoad:    pod.PlacedLoad,
		tolerations:   pod.Tolerations,
		ports:         pod.Ports,
		unsupported:   pod.Unsupported,
		numa:          pod.NUMA,
		numaKey:       string(appendNUMA(nil, pod.NUMA)),
		imageNames:    pod.Images,
		containers:    pod.Containers,
		features:      slices.Sorted(slices.Values(pod.Features)),
		ofAgent:       pod.NeedsOfAgent,
		mounts:        volumes.PodMountsOf(pod.Mounts, pod.Namespace, string(pod.ID), pod.Name),
	}
	if k.profile == nil {
		k.profile = c.profiles[""]
	}
	for _, a := range pod.Requests {
		if a.Value != 0 {
			k.requests = append(k.requests, request{c.columns.of(a.Resource), a.Value})
		}
	}
	slices.SortFunc(k.requests, func(a, b request) int { return a.column - b.column })
	k.toleratesNode = selector.Tolerate(pod.Tolerations, cordonTaint)
	c.compileNodeTerms(k, pod)
	c.compileAround(k, pod)
	c.compileScored(k)
	k.fitKey = k.makeFitKey(k.incomingLoad)
	c.refColumns(k)
	c.classes[k.key] = k
	return k
}

func (c *cluster) compileNodeTerms(k *class, pod *Pod) {
	for _, l := range pod.NodeSelector {
		k.nodeSelector = append(k.nodeSelector, selector.LabelID{Key: c.intern.ID(l.Key), Value: c.intern.ID(l.Value)})
	}
	if pod.NodeAffinity != nil {
		k.hasTerms = true
		for _, t := range *pod.NodeAffinity {
			k.nodeTerms.Add(c.intern.Compile(t))
		}
		k.onlyNames, k.conflict = selector.Names(*pod.NodeAffinity)
	}
	k.affinityKey = selector.AppendNodeTerms(selector.AppendLabels(nil, pod.NodeSelector), pod.NodeAffinity)
	for _, w := range pod.Preferred {
		if w.Weight != 0 {
			k.preferred.add(w.Weight, c.intern.Compile(w.Term))
		}
	}
}

// compileAround compiles the terms about other pods, and adds them to the census, which counts the pods that they
// select.
func (c *cluster) compileAround(k *class, pod *Pod) {
	own := func(s LabelSelector) *census.PodSet {
		return c.PodSetOf(census.PodSelector{
			Namespaces: []string{pod.Namespace},
			ByLabels:   LabelSelector{Nothing: true},
			Pods:       s,
		})
	}
	for _, s := range pod.Spread {
		k.spread = append(k.spread, spreadTerm{s, c.intern.ID(s.TopologyKey), own(s.Selector)})
	}
	addOwn := func(t *podTerm, what census.Counted, weight int64) {
		counter := c.CounterAt(census.CounterKey{Set: t.set, Topo: c.TopologyOf(t.key), What: what})
		k.ownTerms = append(k.ownTerms, census.ExistingTerm{Counter: counter, Weight: int32(weight)})
	}
	term := func(t *PodTerm, weight int64) podTerm {
		return podTerm{c.PodSetOf(partOf(t)), c.intern.ID(t.TopologyKey), weight}
	}
	var all []census.PodSelector
	for i := range pod.Affinity {
		t := term(&pod.Affinity[i], 1)
		addOwn(&t, census.CountTerms, 1)
		c.DropPodSet(t.set)
		all = append(all, partOf(&pod.Affinity[i]))
		k.affinityKeys = append(k.affinityKeys, t.key)
	}
	if len(all) > 0 {
		k.affinity = c.PodSetOf(all...)
	}
	for i := range pod.AntiAffinity {
		t := term(&pod.AntiAffinity[i], 1)
		addOwn(&t, census.CountAntiTerms, 1)
		k.antiAffinity = append(k.antiAffinity, t)
	}
	for i := range pod.PreferredAffinity {
		w := &pod.PreferredAffinity[i]
		k.preferredTerms = append(k.preferredTerms, term(&w.Term, w.Weight))
	}
	for i := range pod.PreferredAntiAffinity {
		w := &pod.PreferredAntiAffinity[i]
		k.preferredTerms = append(k.preferredTerms, term(&w.Term, -w.Weight))
	}
	for i := range k.preferredTerms {
		addOwn(&k.preferredTerms[i], census.CountTermWeights, k.preferredTerms[i].weight)
	}
}

func partOf(t *PodTerm) census.PodSelector {
	return census.PodSelector{
		Namespaces: slices.Compact(slices.Sorted(slices.Values(t.Namespaces))),
		ByLabels:   t.NamespaceSelector,
		Pods:       t.Selector,
	}
}

// dropClass drops a reference to a class. The class and its demands are deleted with the last reference.
func (c *cluster) dropClass(k *class) {
	if k.refs--; k.refs > 0 {
		return
	}
	delete(c.classes, k.key)
	c.classes = shrink.Map(c.classes, &c.gone.classes)
	for _, d := range k.demands {
		c.dropDemand(d)
	}
	c.dropColumns(k)
	for _, t := range k.ownTerms {
		c.DropCounter(t.Counter)
	}
	for i := range k.spread {
		c.DropPodSet(k.spread[i].set)
	}
	if k.affinity != nil {
		c.DropPodSet(k.affinity)
	}
	for _, list := range [][]podTerm{k.antiAffinity, k.preferredTerms} {
		for i := range list {
			c.DropPodSet(list[i].set)
		}
	}
}

// ignores reports whether an extender, not the scheduler, manages resource (ignoredByScheduler).
func (p *profile) ignores(resource string) bool {
	group, _, extended := strings.Cut(resource, "/")
	return extended && (slices.Contains(p.IgnoredResources, resource) || slices.Contains(p.IgnoredGroups, group))
}
