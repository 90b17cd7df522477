package census

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// A Counter counts, by domain, the pods in a pod set, or the weights of terms about that pod set. It stores only the
// domains where the count is not zero, so its size is proportional to the number of pods, not of nodes.
type Counter struct {
	Of CounterKey
	// refs is how many constraints, terms and demands use the counter.
	refs      int
	place     int    // its index in the pod set's list
	Count     Sparse // by domain
	Total     int64  // of all domains
	Listeners any    // to be notified of changes; owned by the user of the package

	// Only for counters with a scope. Coverage is the part of the topology in the scope. domainsWith is how many domains
	// have a given count, for counts above zero. least is a lower bound of the smallest such count. Domains without rows
	// in the scope have no count.
	Coverage    *Coverage
	domainsWith Sparse
	least       int32
}

// CounterKey says what is counted.
type CounterKey struct {
	Set   *PodSet
	Topo  *Topology
	Scope *Scope // pods on rows outside do not count; nil: all rows
	What  Counted
}

// Counted says what a counter counts.
type Counted uint8

const (
	CountPods        Counted = iota // pods in the pod set
	CountLivePods                   // pods in the pod set whose deletion was not requested
	CountAntiTerms                  // required anti-affinity terms about the pod set, where the pods with these terms are
	CountTerms                      // required affinity terms about the pod set, likewise
	CountTermWeights                // weights of preferred terms about the pod set, likewise; anti-affinity is negative
)

// At returns the count in domain d; 0 for NoDomain.
func (k *Counter) At(d int32) int32 {
	if d < 0 {
		return 0
	}
	return k.Count.at(d)
}

// On returns the count in the domain of row r.
func (k *Counter) On(r rows.Row) int32 { return k.At(k.Of.Topo.At(r)) }

// add adds n to the count of the domain of row r.
func (k *Counter) add(r rows.Row, n int32) {
	d := k.Of.Topo.At(r)
	if d == NoDomain || n == 0 || k.Of.Scope != nil && !k.Of.Scope.in.Has(r) {
		return
	}
	was := k.Count.add(d, n)
	k.Total += int64(n)
	if k.Coverage != nil {
		k.tally(was, -1)
		k.tally(was+n, 1)
	}
}

// countPod adds or subtracts a pod that is in the pod set.
func (k *Counter) countPod(h *Pod, sign int32) {
	if k.Of.What == CountLivePods && h.Deleting {
		return
	}
	k.add(h.Row, sign)
}

// tally records that n more domains have this count. Counts of zero are not recorded.
func (k *Counter) tally(count, n int32) {
	if count <= 0 {
		return
	}
	k.domainsWith.add(count, n)
	k.least = min(k.least, count)
}

// Fewest returns the smallest count of all domains that have rows in the scope; 0 if there are no such domains.
func (k *Counter) Fewest() int32 {
	if k.Count.Len() < k.Coverage.Domains || k.Count.Len() == 0 {
		return 0
	}
	for k.domainsWith.at(k.least) == 0 {
		k.least++
	}
	return k.least
}

// NextFewest returns what Fewest would return without one of the domains with the smallest count, but at most Fewest()
// + most.
func (k *Counter) NextFewest(most int32) int32 {
	fewest := k.Fewest()
	domains := int(k.domainsWith.at(fewest))
	if fewest == 0 {
		domains = k.Coverage.Domains - k.Count.Len()
	}
	if domains >= 2 {
		return fewest
	}
	for n := fewest + 1; n < fewest+most; n++ {
		if k.domainsWith.at(n) > 0 {
			return n
		}
	}
	return fewest + most
}

// CounterAt returns the counter of key, with one more reference. The counter holds references to the parts of the key.
// DropCounter drops the reference.
func (c *Census) CounterAt(key CounterKey) *Counter {
	if known := c.counters[key]; known != nil {
		known.refs++
		return known
	}
	k := &Counter{Of: key, refs: 1}
	c.counters[key] = k
	key.Set.refs++
	c.RefTopology(key.Topo)
	if key.Scope != nil {
		key.Scope.refs++
		k.Coverage = c.coverageAt(key.Scope, key.Topo)
	}
	if key.What > CountLivePods {
		k.place = len(key.Set.Terms)
		key.Set.Terms = append(key.Set.Terms, k)
		c.TermsVersion++
		return k // the pods with such terms are added by the caller
	}
	k.place = len(key.Set.counters)
	key.Set.counters = append(key.Set.counters, k)
	if key.Topo.Domains() == 0 {
		return k // no domain, so nothing to count
	}
	for _, who := range c.members(key.Set) {
		for _, h := range who.Pods {
			k.countPod(h, 1)
		}
	}
	return k
}

// DropCounter drops a reference to a counter. The counter is deleted with its last reference.
func (c *Census) DropCounter(k *Counter) {
	if k.refs--; k.refs > 0 {
		return
	}
	delete(c.counters, k.Of)
	c.counters = shrink.Map(c.counters, &c.gone.counters)
	if k.Of.What > CountLivePods {
		k.Of.Set.Terms = k.removeFrom(k.Of.Set.Terms)
		c.TermsVersion++
	} else {
		k.Of.Set.counters = k.removeFrom(k.Of.Set.counters)
	}
	if k.Of.Scope != nil {
		c.dropCoverage(k.Coverage)
		c.DropScope(k.Of.Scope)
	}
	c.DropTopology(k.Of.Topo)
	c.DropPodSet(k.Of.Set)
}

// removeFrom removes k from list. The last counter of the list takes its place.
func (k *Counter) removeFrom(list []*Counter) []*Counter {
	last := len(list) - 1
	list[k.place] = list[last]
	list[k.place].place = k.place
	list[last] = nil
	return list[:last]
}

// Sparse maps numbers to counts. Counts of zero are not stored.
type Sparse struct {
	few  []pair          // while there are at most fewMax
	many map[int32]int32 // nil while few is in use
}

type pair struct{ key, count int32 }

// fewMax is the largest number of pairs that are searched one by one. Chosen: below it, that is faster than a map, and
// takes a quarter of the memory.
const fewMax = 8

// Len returns how many numbers have a count.
func (s *Sparse) Len() int { return len(s.few) + len(s.many) }

func (s *Sparse) at(key int32) int32 {
	if s.many != nil {
		return s.many[key]
	}
	for i := range s.few {
		if s.few[i].key == key {
			return s.few[i].count
		}
	}
	return 0
}

// add adds n to the count of key, and returns the count before.
func (s *Sparse) add(key, n int32) (was int32) {
	if s.many != nil {
		was = s.many[key]
		if s.many[key] = was + n; was+n == 0 {
			if delete(s.many, key); len(s.many) == 0 {
				s.many = nil
			}
		}
		return was
	}
	for i := range s.few {
		if s.few[i].key != key {
			continue
		}
		was = s.few[i].count
		if s.few[i].count += n; s.few[i].count == 0 {
			last := len(s.few) - 1
			s.few[i] = s.few[last]
			s.few = s.few[:last]
		}
		return was
	}
	if n == 0 {
		return 0
	}
	if len(s.few) < fewMax {
		s.few = append(s.few, pair{key, n})
		return 0
	}
	s.many = make(map[int32]int32, 2*fewMax)
	for _, p := range s.few {
		s.many[p.key] = p.count
	}
	s.many[key], s.few = n, nil
	return 0
}

// Each calls see for every key that has a count.
func (s *Sparse) Each(see func(key, count int32)) {
	for _, p := range s.few {
		see(p.key, p.count)
	}
	for key, count := range s.many {
		see(key, count)
	}
}
