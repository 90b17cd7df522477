package placement

// A topology divides rows into domains by the value of a label: all rows with the same value are one. Nodes that were not
// seen, and nodes without the label, are in none.
type topology struct {
	key    int32   // of the label; nodeItself for the topology in which every row is a domain of its own
	domain []int32 // by row; none: -1

	values map[int32]int32 // of the label, to domain
	value  []int32         // by domain: of the label
	rows   []int32         // by domain: how many there are
	free   []int32         // domains without rows
	shared int             // domains of several rows
}

const (
	nodeItself = -1
	noDomain   = -1
)

// single reports whether no domain has two rows: what happens to a domain then happens to one row.
func (t *topology) single() bool { return t.shared == 0 }

// place puts row r into the domain of value, or into none.
func (t *topology) place(r row, value int32, ok bool) {
	if d := t.domain[r]; d != noDomain {
		if t.rows[d]--; t.rows[d] == 1 {
			t.shared--
		} else if t.rows[d] == 0 {
			t.free = append(t.free, d)
			delete(t.values, t.value[d])
		}
	}
	if !ok {
		t.domain[r] = noDomain
		return
	}
	d, known := t.values[value]
	if !known {
		if n := len(t.free); n > 0 {
			d, t.free = t.free[n-1], t.free[:n-1]
		} else {
			d, t.rows, t.value = int32(len(t.rows)), append(t.rows, 0), append(t.value, 0)
		}
		t.values[value], t.value[d] = d, value
	}
	t.domain[r] = d
	if t.rows[d]++; t.rows[d] == 2 {
		t.shared++
	}
}

// topologyOf returns the topology of a label key.
func (c *cluster) topologyOf(key int32) *topology {
	if t := c.topologies[key]; t != nil {
		return t
	}
	t := &topology{key: key, values: map[int32]int32{}, domain: make([]int32, len(c.name))}
	for r := range t.domain {
		t.domain[r] = noDomain
		if c.seen[r] {
			value, ok := c.topologyValue(row(r), key)
			t.place(row(r), value, ok)
		}
	}
	c.topologies[key] = t
	return t
}

// topologyValue is what places row r in the topology of key.
func (c *cluster) topologyValue(r row, key int32) (value int32, ok bool) {
	if !c.seen[r] {
		return 0, false
	}
	if key == nodeItself {
		return int32(r), true
	}
	return c.label(r, key)
}

// A counter counts, by domain, the pods that an aim means or what held terms with that aim weigh.
type counter struct {
	of    counterKey
	refs  int
	count []int32 // by domain; domains beyond its end have none
	total int64
	// version grows with each change.
	version uint64

	// For counters with a scope: over the domains with rows in it, whose number is domains, least is no larger than the
	// smallest count, and having is how many domains have a given one.
	rows    []int32
	domains int
	least   int32
	having  []int32
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
	if d < 0 || int(d) >= len(k.count) {
		return 0
	}
	return k.count[d]
}

// add counts n more on row r.
func (k *counter) add(r row, n int32) {
	d := k.of.topo.domain[r]
	if d == noDomain || n == 0 || k.of.scope != nil && !k.of.scope.in[r] {
		return
	}
	k.grow(d)
	was := k.count[d]
	k.count[d] += n
	k.total += int64(n)
	k.version++
	if k.of.scope != nil && k.rows[d] > 0 {
		k.tally(was, -1)
		k.tally(was+n, 1)
	}
}

// countPod counts a pod that the aim means.
func (k *counter) countPod(h *held, sign int32) {
	if k.of.what == countLivePods && h.deleting {
		return
	}
	k.add(h.row, sign)
}

// addRow lets row r, which is in the scope, stand in its domain or no longer.
func (k *counter) addRow(r row, sign int32) {
	d := k.of.topo.domain[r]
	if d == noDomain {
		return
	}
	k.grow(d)
	k.version++
	k.rows[d] += sign
	switch {
	case sign > 0 && k.rows[d] == 1:
		k.domains++
		k.tally(k.count[d], 1)
	case sign < 0 && k.rows[d] == 0:
		k.domains--
		k.tally(k.count[d], -1)
	}
}

func (k *counter) grow(d int32) {
	for int(d) >= len(k.count) {
		k.count, k.rows = append(k.count, 0), append(k.rows, 0)
	}
}

func (k *counter) tally(count, n int32) {
	count = max(count, 0)
	for int(count) >= len(k.having) {
		k.having = append(k.having, 0)
	}
	k.having[count] += n
	k.least = min(k.least, count)
}

// fewest is the smallest count of a domain with rows in the scope; 0 if there is none.
func (k *counter) fewest() int32 {
	if k.domains == 0 {
		return 0
	}
	for k.having[k.least] == 0 {
		k.least++
	}
	return k.least
}

// counterAt returns the counter of key, counted, and takes hold of it and of its parts; releaseCounter lets go.
func (c *cluster) counterAt(key counterKey) *counter {
	if known := c.counters[key]; known != nil {
		known.refs++
		return known
	}
	k := &counter{of: key, refs: 1}
	c.counters[key] = k
	key.aim.refs++
	if key.scope != nil {
		key.scope.refs++
		for r := range c.name {
			if key.scope.in[r] {
				k.addRow(row(r), 1)
			}
		}
	}
	if key.what > countLivePods {
		key.aim.held = append(key.aim.held, k)
		c.termsVersion++
		return k // its holders count themselves
	}
	key.aim.counters = append(key.aim.counters, k)
	home, ok := key.aim.local()
	if !ok {
		home = everyNamespace
	}
	for _, who := range c.identitiesIn(home) {
		if who.meantBy(key.aim) {
			for _, h := range who.held {
				k.countPod(h, 1)
			}
		}
	}
	return k
}

func (c *cluster) releaseCounter(k *counter) {
	if k.refs--; k.refs > 0 {
		return
	}
	delete(c.counters, k.of)
	if k.of.what > countLivePods {
		k.of.aim.held = without(k.of.aim.held, k)
		c.termsVersion++
	} else {
		k.of.aim.counters = without(k.of.aim.counters, k)
	}
	if k.of.scope != nil {
		c.releaseScope(k.of.scope)
	}
	c.releaseAim(k.of.aim)
}

// A scope is the set of rows on which pods count for a spread constraint: those that have all the keys, and that the pod's
// affinity and tolerations allow where the constraint's policies ask.
type scope struct {
	key      string
	refs     int
	class    *class // whose selector, terms and tolerations they are
	affinity bool
	taints   bool
	keys     []int32
	in       []bool // by row
}

func (c *cluster) scopeAt(k *class, affinity, taints bool, keys []int32) *scope {
	b := appendBool(c.scratch[:0], affinity && (len(k.nodeSelector) > 0 || k.hasTerms))
	if affinity {
		b = append(b, k.affinityKey...)
	}
	if b = appendBool(b, taints); taints {
		b = appendTolerations(b, k.tolerations)
	}
	for _, key := range keys {
		b = appendNumber(b, int64(key))
	}
	c.scratch = b
	if known := c.scopes[string(b)]; known != nil {
		known.refs++
		return known
	}
	s := &scope{key: string(b), refs: 1, class: k, affinity: affinity, taints: taints, keys: keys, in: make([]bool, len(c.name))}
	c.scopes[s.key] = s
	for r := range c.name {
		s.in[r] = s.admits(c, row(r))
	}
	return s
}

func (c *cluster) releaseScope(s *scope) {
	if s.refs--; s.refs == 0 {
		delete(c.scopes, s.key)
	}
}

func (s *scope) admits(c *cluster, r row) bool {
	if !c.seen[r] {
		return false
	}
	for _, key := range s.keys {
		if _, ok := c.label(r, key); !ok {
			return false
		}
	}
	return (!s.affinity || affinityAllows(c, s.class, r)) && (!s.taints || toleratesAll(s.class, c.taints[r]))
}
