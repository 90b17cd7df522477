package census

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"

// A Topology divides rows into domains by the value of a label: all rows with one value are a domain. Rows without a
// node, and nodes without the label, are in no domain.
type Topology struct {
	Key  int32 // of the label; NodeItself: every row is a domain
	refs int   // how many counters and demands use it

	Domain []int32   // by row; rows in no domain have NoDomain or are beyond the end
	Placed rows.Mask // the rows that are in a domain
	// The rows of a domain are a doubly linked list.
	next, prev []rows.Row // by row
	first      []rows.Row // by domain: the first row of the list

	Values map[int32]int32 // the domain of each value of the label
	Value  []int32         // by domain: the value of the label; not valid if the domain has no rows
	Rows   []int32         // by domain: how many rows it has
	free   []int32         // numbers of domains that have no rows
	shared int             // how many domains have more than one row
}

// NodeItself is the Topology.Key of the topology in which every row is a domain. NoDomain is the domain of rows that
// are in none.
const (
	NodeItself = -1
	NoDomain   = -1
)

// At returns the domain of row r, or NoDomain.
func (t *Topology) At(r rows.Row) int32 {
	if int(r) >= len(t.Domain) {
		return NoDomain
	}
	return t.Domain[r]
}

// Single reports whether every domain has at most one row.
func (t *Topology) Single() bool { return t.shared == 0 }

// Domains returns how many domains there are.
func (t *Topology) Domains() int { return len(t.Rows) - len(t.free) }

// Span returns how many numbers of domains are in use or free, plus one for NoDomain.
func (t *Topology) Span() int32 { return int32(len(t.Rows) + 1) }

// Each calls see for the rows of domain d.
func (t *Topology) Each(d int32, see func(rows.Row)) {
	for r := t.first[d]; r != rows.None; r = t.next[r] {
		see(r)
	}
}

// place moves row r to the domain of value, or to no domain if ok is false.
func (t *Topology) place(r rows.Row, value int32, ok bool) {
	d := t.At(r)
	if ok && d != NoDomain && t.Value[d] == value || !ok && d == NoDomain {
		return
	}
	if d != NoDomain {
		t.takeOut(r, d)
	}
	if ok {
		t.putIn(r, t.domainOf(value))
	}
}

func (t *Topology) takeOut(r rows.Row, d int32) {
	if after := t.next[r]; after != rows.None {
		t.prev[after] = t.prev[r]
	}
	if before := t.prev[r]; before != rows.None {
		t.next[before] = t.next[r]
	} else {
		t.first[d] = t.next[r]
	}
	t.Domain[r] = NoDomain
	t.Placed.Clear(r)
	if t.Rows[d]--; t.Rows[d] == 1 {
		t.shared--
	} else if t.Rows[d] == 0 {
		t.free = append(t.free, d)
		delete(t.Values, t.Value[d])
	}
}

func (t *Topology) putIn(r rows.Row, d int32) {
	for int(r) >= len(t.Domain) {
		t.Domain = append(t.Domain, NoDomain)
		t.next = append(t.next, rows.None)
		t.prev = append(t.prev, rows.None)
	}
	t.next[r], t.prev[r] = t.first[d], rows.None
	if t.first[d] != rows.None {
		t.prev[t.first[d]] = r
	}
	t.first[d], t.Domain[r] = r, d
	t.Placed = t.Placed.With(r)
	if t.Rows[d]++; t.Rows[d] == 2 {
		t.shared++
	}
}

// domainOf returns the domain of a value, and creates it if necessary.
func (t *Topology) domainOf(value int32) int32 {
	d, known := t.Values[value]
	if known {
		return d
	}
	if n := len(t.free); n > 0 {
		d, t.free = t.free[n-1], t.free[:n-1]
	} else {
		d = int32(len(t.Rows))
		t.Rows = append(t.Rows, 0)
		t.Value = append(t.Value, 0)
		t.first = append(t.first, rows.None)
	}
	t.Values[value] = d
	t.Value[d] = value
	t.first[d] = rows.None
	return d
}

// TopologyOf returns the topology of a label key, without adding a reference. Topologies without references are kept
// for a while; see DropTopology.
func (c *Census) TopologyOf(key int32) *Topology {
	if t := c.topologies[key]; t != nil {
		return t
	}
	t := &Topology{Key: key, Values: map[int32]int32{}}
	if key == NodeItself || c.on.HasKey(key) {
		for r := range c.on.End() {
			if value, ok := c.TopologyValue(r, key); ok {
				t.place(r, value, true)
			}
		}
	}
	c.topologies[key] = t
	return t
}

// topologiesIdle is how many topologies without references are kept, as long as they have domains: the next pods often
// use the same label keys. Chosen: more than the keys by which pods are commonly spread. Each takes about 25 bytes per
// node.
const topologiesIdle = 8

// RefTopology adds a reference to t, and returns t.
func (c *Census) RefTopology(t *Topology) *Topology {
	t.refs++
	return t
}

// DropTopology drops a reference to t. A topology without domains (its label key is on no node) is deleted at once.
func (c *Census) DropTopology(t *Topology) {
	if t.refs--; t.refs > 0 {
		return
	}
	if t.Domains() == 0 {
		delete(c.topologies, t.Key)
		return
	}
	idle := 0
	for key, x := range c.topologies {
		if x.refs == 0 && x.Domains() == 0 {
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

// TopologyValue returns the value of the label key on row r, which decides in which domain of that topology the row is.
// ok is false if it is in none.
func (c *Census) TopologyValue(r rows.Row, key int32) (value int32, ok bool) {
	if !c.on.Present(r) {
		return 0, false
	}
	if key == NodeItself {
		return int32(r), true
	}
	return c.on.Label(r, key)
}
