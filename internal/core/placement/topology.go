package placement

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/selector"
)

// A topology divides rows into domains by the value of a label: all rows with the same value are one. Nodes that were
// not seen, and nodes without the label, are in none.
type topology struct {
	key  int32 // of the label; nodeItself for the topology in which every row is a domain of its own
	refs int   // of counters and demands

	domain []int32 // by row; none: noDomain, or beyond the end
	placed mask    // the rows that are in a domain
	// The rows of a domain are a list.
	next, prev []row // by row
	first      []row // by domain

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

// at is the domain of row r, or noDomain.
func (t *topology) at(r row) int32 {
	if int(r) >= len(t.domain) {
		return noDomain
	}
	return t.domain[r]
}

// single reports whether no domain has two rows: what happens to a domain then happens to one row.
func (t *topology) single() bool { return t.shared == 0 }

// domains is how many domains there are.
func (t *topology) domains() int { return len(t.rows) - len(t.free) }

// each calls see for the rows of domain d.
func (t *topology) each(d int32, see func(row)) {
	for r := t.first[d]; r != noRow; r = t.next[r] {
		see(r)
	}
}

// place puts row r into the domain of value, or into none.
func (t *topology) place(r row, value int32, ok bool) {
	d := t.at(r)
	if ok && d != noDomain && t.value[d] == value || !ok && d == noDomain {
		return
	}
	if d != noDomain {
		t.takeOut(r, d)
	}
	if ok {
		t.putIn(r, t.domainOf(value))
	}
}

func (t *topology) takeOut(r row, d int32) {
	if after := t.next[r]; after != noRow {
		t.prev[after] = t.prev[r]
	}
	if before := t.prev[r]; before != noRow {
		t.next[before] = t.next[r]
	} else {
		t.first[d] = t.next[r]
	}
	t.domain[r] = noDomain
	t.placed.clear(r)
	if t.rows[d]--; t.rows[d] == 1 {
		t.shared--
	} else if t.rows[d] == 0 {
		t.free = append(t.free, d)
		delete(t.values, t.value[d])
	}
}

func (t *topology) putIn(r row, d int32) {
	for int(r) >= len(t.domain) {
		t.domain, t.next, t.prev = append(t.domain, noDomain), append(t.next, noRow), append(t.prev, noRow)
	}
	t.next[r], t.prev[r] = t.first[d], noRow
	if t.first[d] != noRow {
		t.prev[t.first[d]] = r
	}
	t.first[d], t.domain[r] = r, d
	t.placed = t.placed.with(r)
	if t.rows[d]++; t.rows[d] == 2 {
		t.shared++
	}
}

// domainOf returns the domain of a value, a new one if there is none.
func (t *topology) domainOf(value int32) int32 {
	d, known := t.values[value]
	if known {
		return d
	}
	if n := len(t.free); n > 0 {
		d, t.free = t.free[n-1], t.free[:n-1]
	} else {
		d = int32(len(t.rows))
		t.rows, t.value, t.first = append(t.rows, 0), append(t.value, 0), append(t.first, noRow)
	}
	t.values[value], t.value[d], t.first[d] = d, value, noRow
	return d
}

// topologyOf returns the topology of a label key. It is kept while somebody holds it, and some longer; see
// holdTopology.
func (c *cluster) topologyOf(key int32) *topology {
	if t := c.topologies[key]; t != nil {
		return t
	}
	t := &topology{key: key, values: map[int32]int32{}}
	for r := range c.name {
		if value, ok := c.topologyValue(row(r), key); ok {
			t.place(row(r), value, true)
		}
	}
	c.topologies[key] = t
	return t
}

// topologiesIdle is how many topologies that nobody holds are kept, as long as nodes are in them: pods of the next
// kind often ask for the same. Chosen: more than keys by which pods are commonly spread; each takes about 25 bytes a
// node.
const topologiesIdle = 8

func (c *cluster) holdTopology(t *topology) *topology {
	t.refs++
	return t
}

// releaseTopology lets go of t. A topology without rows, as of a key that no node has, goes at once.
func (c *cluster) releaseTopology(t *topology) {
	if t.refs--; t.refs > 0 {
		return
	}
	idle := 0
	for key, x := range c.topologies {
		if x.refs == 0 && x.domains() == 0 {
			delete(c.topologies, key)
		} else if x.refs == 0 {
			idle++
		}
	}
	if idle > topologiesIdle {
		for key, x := range c.topologies {
			if x.refs == 0 {
				delete(c.topologies, key)
			}
		}
	}
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

// A scope is the set of rows on which pods count for a spread constraint: those that have all the keys, and that the
// pod's affinity and tolerations allow where the constraint's policies ask.
type scope struct {
	key      string
	refs     int
	class    *class // whose selector, terms and tolerations they are
	affinity bool
	taints   bool
	keys     []int32
	in       mask
}

func (c *cluster) scopeAt(k *class, affinity, taints bool, keys []int32) *scope {
	b := encode.Bool(c.scratch[:0], affinity && (len(k.nodeSelector) > 0 || k.hasTerms))
	if affinity {
		b = append(b, k.affinityKey...)
	}
	if b = encode.Bool(b, taints); taints {
		b = selector.AppendTolerations(b, k.tolerations)
	}
	for _, key := range keys {
		b = encode.Number(b, int64(key))
	}
	c.scratch = b
	if known := c.scopes[string(b)]; known != nil {
		known.refs++
		return known
	}
	s := &scope{key: string(b), refs: 1, class: k, affinity: affinity, taints: taints, keys: keys}
	c.scopes[s.key] = s
	for r := range c.name {
		s.judge(c, row(r))
	}
	return s
}

func (c *cluster) releaseScope(s *scope) {
	if s.refs--; s.refs == 0 {
		delete(c.scopes, s.key)
	}
}

// judge finds out whether row r is in the scope.
func (s *scope) judge(c *cluster, r row) {
	if s.admits(c, r) {
		s.in = s.in.with(r)
	} else {
		s.in.clear(r)
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
	return (!s.affinity || affinityAllows(c, s.class, r)) && (!s.taints || selector.TolerateAll(s.class.tolerations, c.taints[r]))
}

// A ground is what a scope leaves of a topology. All counters with both share it.
type ground struct {
	of      groundKey
	refs    int     // of counters
	rows    []int32 // by domain: how many are in the scope
	domains int     // those that have any
}

type groundKey struct {
	scope *scope
	topo  *topology
}

func (c *cluster) groundAt(s *scope, t *topology) *ground {
	key := groundKey{s, t}
	g := c.grounds[key]
	if g == nil {
		g = &ground{of: key}
		c.grounds[key] = g
		for r := range c.name {
			g.addRow(row(r), 1)
		}
	}
	g.refs++
	return g
}

func (c *cluster) releaseGround(g *ground) {
	if g.refs--; g.refs == 0 {
		delete(c.grounds, g.of)
	}
}

// addRow lets row r, if it is in the scope, stand in its domain or no longer.
func (g *ground) addRow(r row, sign int32) {
	d := g.of.topo.at(r)
	if d == noDomain || !g.of.scope.in.has(r) {
		return
	}
	for int(d) >= len(g.rows) {
		g.rows = append(g.rows, 0)
	}
	g.rows[d] += sign
	switch {
	case sign > 0 && g.rows[d] == 1:
		g.domains++
	case sign < 0 && g.rows[d] == 0:
		g.domains--
	}
}
