package placement

import ()

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
func (c *census) topologyOf(key int32) *topology {
	if t := c.topologies[key]; t != nil {
		return t
	}
	t := &topology{key: key, values: map[int32]int32{}}
	if key == nodeItself || c.on.hasKey(key) {
		for r := range c.on.end() {
			if value, ok := c.topologyValue(r, key); ok {
				t.place(r, value, true)
			}
		}
	}
	c.topologies[key] = t
	return t
}

// topologiesIdle is how many topologies that nobody holds are kept, as long as nodes are in them: pods of the next
// kind often ask for the same. Chosen: more than keys by which pods are commonly spread; each takes about 25 bytes a
// node.
const topologiesIdle = 8

func (c *census) holdTopology(t *topology) *topology {
	t.refs++
	return t
}

// releaseTopology lets go of t. A topology without rows, as of a key that no node has, goes at once.
func (c *census) releaseTopology(t *topology) {
	if t.refs--; t.refs > 0 {
		return
	}
	if t.domains() == 0 {
		delete(c.topologies, t.key)
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
func (c *census) topologyValue(r row, key int32) (value int32, ok bool) {
	if !c.on.present(r) {
		return 0, false
	}
	if key == nodeItself {
		return int32(r), true
	}
	return c.on.label(r, key)
}
