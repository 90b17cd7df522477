package placement

// A counter counts, by domain, the pods that an aim means or what held terms with that aim weigh. It keeps the
// domains only that have something to count, so that it is as large as the number of its pods, however many nodes
// there are.
type counter struct {
	of      counterKey
	refs    int
	place   int    // in the aim's list
	count   sparse // by domain
	total   int64
	waiters []*waiter // that hear of changes
	bidders []*demand // likewise, for their bids

	// For counters with a scope: the ground they stand on, and of the domains with a count how many have which; least
	// is no larger than the smallest of these counts. A domain without rows in the scope has no count.
	ground *ground
	having sparse
	least  int32
}

// counterKey says what is counted.
type counterKey struct {
	aim   *aim
	topo  *topology
	scope *scope // pods on other rows do not count; nil: all rows
	what  counted
}

type counted uint8

const (
	countPods        counted = iota // that the aim means
	countLivePods                   // of them, those whose deletion was not asked for
	countAntiTerms                  // required anti-affinity terms with the aim, on the rows of their holders
	countTerms                      // likewise, required affinity terms
	countTermWeights                // likewise, the weights of preferred terms, anti-affinity negative
)

func (k *counter) at(d int32) int32 {
	if d < 0 {
		return 0
	}
	return k.count.at(d)
}

// on is the count in the domain of row r.
func (k *counter) on(r row) int32 { return k.at(k.of.topo.at(r)) }

// add counts n more on row r.
func (k *counter) add(r row, n int32) {
	d := k.of.topo.at(r)
	if d == noDomain || n == 0 || k.of.scope != nil && !k.of.scope.in.has(r) {
		return
	}
	was := k.count.add(d, n)
	k.total += int64(n)
	if k.ground != nil {
		k.tally(was, -1)
		k.tally(was+n, 1)
	}
}

// countPod counts a pod that the aim means.
func (k *counter) countPod(h *countedPod, sign int32) {
	if k.of.what == countLivePods && h.deleting {
		return
	}
	k.add(h.row, sign)
}

// tally notes that n more domains have a count, which is not kept for none.
func (k *counter) tally(count, n int32) {
	if count <= 0 {
		return
	}
	k.having.add(count, n)
	k.least = min(k.least, count)
}

// fewest is the smallest count of a domain with rows in the scope; 0 if there is none.
func (k *counter) fewest() int32 {
	if k.count.len() < k.ground.domains || k.count.len() == 0 {
		return 0
	}
	for k.having.at(k.least) == 0 {
		k.least++
	}
	return k.least
}

// counterAt returns the counter of key, counted, and takes hold of it and of its parts; releaseCounter lets go.
func (c *census) counterAt(key counterKey) *counter {
	if known := c.counters[key]; known != nil {
		known.refs++
		return known
	}
	k := &counter{of: key, refs: 1}
	c.counters[key] = k
	key.aim.refs++
	c.holdTopology(key.topo)
	if key.scope != nil {
		key.scope.refs++
		k.ground = c.groundAt(key.scope, key.topo)
	}
	if key.what > countLivePods {
		k.place = len(key.aim.held)
		key.aim.held = append(key.aim.held, k)
		c.termsVersion++
		return k // its holders count themselves
	}
	k.place = len(key.aim.counters)
	key.aim.counters = append(key.aim.counters, k)
	if key.topo.domains() == 0 {
		return k // there is no domain to count in
	}
	for _, who := range c.meantBy(key.aim) {
		for _, h := range who.pods {
			k.countPod(h, 1)
		}
	}
	return k
}

func (c *census) releaseCounter(k *counter) {
	if k.refs--; k.refs > 0 {
		return
	}
	delete(c.counters, k.of)
	c.counters = shrunk(c.counters, &c.gone.counters)
	if k.of.what > countLivePods {
		k.of.aim.held = k.leave(k.of.aim.held)
		c.termsVersion++
	} else {
		k.of.aim.counters = k.leave(k.of.aim.counters)
	}
	if k.of.scope != nil {
		c.releaseGround(k.ground)
		c.releaseScope(k.of.scope)
	}
	c.releaseTopology(k.of.topo)
	c.releaseAim(k.of.aim)
}

// leave takes k out of its aim's list, and changes the order of the others.
func (k *counter) leave(list []*counter) []*counter {
	last := len(list) - 1
	list[k.place] = list[last]
	list[k.place].place = k.place
	list[last] = nil
	return list[:last]
}

// sparse maps numbers to counts. What has the count zero is not kept.
type sparse struct {
	few  []pair // while there are few
	many map[int32]int32
}

type pair struct{ key, count int32 }

// fewMax is up to how many pairs are searched one by one. Chosen: below it, that is faster than a map, and a quarter
// of its size.
const fewMax = 8

func (s *sparse) len() int { return len(s.few) + len(s.many) }

func (s *sparse) at(key int32) int32 {
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

// add counts n more for key, and returns what its count was.
func (s *sparse) add(key, n int32) (was int32) {
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

// each calls see for every key that has a count.
func (s *sparse) each(see func(key, count int32)) {
	for _, p := range s.few {
		see(p.key, p.count)
	}
	for key, count := range s.many {
		see(key, count)
	}
}
