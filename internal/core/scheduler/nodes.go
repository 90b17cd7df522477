package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// nodes are the facts about nodes, one row per node. A row exists for every known node, and for every name to which a
// pod is bound. Only known nodes are present.
//
// A fact is a column, which grows when a row is added. To add a fact, add a column here and an entry in facts; nothing
// else must change.
type nodes struct {
	seed uint64
	rows map[string]row // by name
	// Rows of deleted nodes, to be reused.
	free    []row
	growing []rows.Table // everything that has a value per row, in this type and others; it grows with each new row
	facts   []fact

	name    rows.Column[string]
	tieHash rows.Column[uint64] // a hash of name and seed, to break ties
	seen    rows.Column[bool]   // the node exists in the API

	unschedulable rows.Column[bool]
	labels        rows.Column[[]selector.LabelID] // sorted by key
	keys          map[int32]int                   // by label key: how many rows have it
	taints        rows.Column[[]Taint]            // NoSchedule and NoExecute
	softTaints    rows.Column[[]Taint]            // PreferNoSchedule
	features      rows.Column[[]string]           // sorted
	agentLacks    rows.Column[[]string]           // what its agent cannot do, as codes, sorted
	podsMax       rows.Column[int64]

	// seenCount is how many rows are seen.
	seenCount int
	names     nameOrder
	changes   rows.ChangeLog // rows on which anything changed
	moves     rows.ChangeLog // rows whose facts about the node changed
}

// readFacts sets the list of facts that are read from a Node.
func (n *nodes) readFacts(in *selector.Interner) {
	n.facts = []fact{
		&factOf[bool]{
			column: &n.unschedulable,
			read:   func(of *Node) bool { return of.Unschedulable },
			equal:  func(a, b bool) bool { return a == b },
			helps:  func(was, now bool) bool { return was && !now },
		},
		&factOf[[]selector.LabelID]{
			column: &n.labels,
			read:   func(of *Node) []selector.LabelID { return in.Labels(of.Labels) },
			equal:  slices.Equal[[]selector.LabelID],
			helps:  anyChange[[]selector.LabelID],
			moves:  true,
		},
		&factOf[[]Taint]{
			column: &n.taints,
			read:   func(of *Node) []Taint { return selector.WithEffects(of.Taints, NoSchedule, NoExecute) },
			equal:  slices.Equal[[]Taint],
			helps:  anyChange[[]Taint],
			moves:  true,
		},
		&factOf[[]Taint]{
			column: &n.softTaints,
			read:   func(of *Node) []Taint { return selector.WithEffects(of.Taints, PreferNoSchedule) },
			equal:  slices.Equal[[]Taint],
			helps:  noChange[[]Taint],
		},
		&factOf[[]string]{
			column: &n.features,
			read:   func(of *Node) []string { return slices.Sorted(slices.Values(of.Features)) },
			equal:  slices.Equal[[]string],
			helps:  anyChange[[]string],
		},
		&factOf[[]string]{
			column: &n.agentLacks,
			read:   func(of *Node) []string { return slices.Sorted(slices.Values(of.AgentLacks)) },
			equal:  slices.Equal[[]string],
			helps:  anyChange[[]string],
		},
		&factOf[int64]{
			column: &n.podsMax,
			read:   func(of *Node) int64 { return of.PodsMax },
			equal:  func(a, b int64) bool { return a == b },
			helps:  func(was, now int64) bool { return now > was },
		},
	}
}

// A fact is one property of a node, in a column. After compare, either write or compare is called next.
type fact interface {
	// compare reads the property of a Node, and returns how it differs from the one of row r.
	compare(of *Node, r row) factChange
	// write sets the property of row r to what was read.
	write(r row)
}

// factChange says what changed on a node.
type factChange struct {
	changed bool // some value differs
	helps   bool // a pod that was rejected may fit now
	moves   bool // the domains and scopes to which the row belongs may have changed
}

func (a factChange) and(b factChange) factChange {
	return factChange{changed: a.changed || b.changed, helps: a.helps || b.helps, moves: a.moves || b.moves}
}

// factOf is a fact of type T.
type factOf[T any] struct {
	column *rows.Column[T]
	read   func(of *Node) T
	equal  func(a, b T) bool
	helps  func(was, now T) bool // called only if the values differ
	moves  bool                  // see factChange
	latest T                     // what was read last
}

func (f *factOf[T]) compare(of *Node, r row) factChange {
	f.latest = f.read(of)
	was := (*f.column)[r]
	if f.equal(was, f.latest) {
		return factChange{}
	}
	return factChange{changed: true, helps: f.helps(was, f.latest), moves: f.moves}
}

func (f *factOf[T]) write(r row) {
	var none T
	(*f.column)[r], f.latest = f.latest, none
}

func anyChange[T any](_, _ T) bool { return true }
func noChange[T any](_, _ T) bool  { return false }

// End returns a row above every row.
func (n *nodes) End() row { return row(len(n.name)) }

// Present reports whether r is the row of a node that exists.
func (n *nodes) Present(r row) bool { return r != noRow && n.seen[r] }

// rowOf returns the row of a name, and creates it if necessary.
func (n *nodes) rowOf(name string) row {
	if r, ok := n.rows[name]; ok {
		return r
	}
	var r row
	if last := len(n.free) - 1; last >= 0 {
		r, n.free = n.free[last], n.free[:last]
	} else {
		r = row(len(n.name))
		for _, x := range n.growing {
			x.AddRow()
		}
	}
	n.rows[name] = r
	n.name[r] = name
	n.tieHash[r] = mix(hashText(name) ^ n.seed)
	return r
}

// freeRow frees row r for another node.
func (n *nodes) freeRow(r row) {
	delete(n.rows, n.name[r])
	for _, x := range n.growing {
		x.ClearRow(r)
	}
	n.free = append(n.free, r)
}

// rowChanged records that something on row r changed.
func (n *nodes) rowChanged(r row) { n.changes.Add(r) }

// Label returns the value of a label of row r.
func (n *nodes) Label(r row, key int32) (value int32, ok bool) {
	return selector.NumberOf(n.labels[r], key)
}

// byName returns the present nodes in the order of names, until the next fact about a node is recorded.
func (n *nodes) byName() []namedRow { return n.names.current(n) }

// setNode sets the facts of n on its row. better reports whether a pod that was rejected may fit now. It is false for
// an update without changes.
func (c *cluster) setNode(n Node) (r row, better bool) {
	r = c.rowOf(n.Name)
	c.sweepStrings()
	if better = c.setFacts(r, &n, true).helps; better {
		c.waits.nodeChanged(r)
	}
	return r, better
}

func (c *cluster) removeNode(name string) (r row, ok bool) {
	r, ok = c.rows[name]
	if !ok || !c.seen[r] {
		return noRow, false
	}
	c.setFacts(r, &Node{Name: name}, false)
	c.dropRowIfEmpty(r)
	return r, true
}

// setFacts sets the facts of row r to those of n. seen says whether the node exists.
func (c *cluster) setFacts(r row, n *Node, seen bool) (all factChange) {
	if c.seen[r] != seen {
		all = factChange{changed: true, helps: true, moves: true}
	}
	for _, f := range c.facts {
		all = all.and(f.compare(n, r))
	}
	write := func() {
		if c.seen[r] != seen {
			c.setSeen(r, seen)
		}
		for _, f := range c.facts {
			f.write(r)
		}
	}
	if all.moves {
		c.moveRow(r, func() {
			c.countKeys(r, -1)
			write()
			c.countKeys(r, 1)
		})
	} else {
		write()
	}
	all = all.and(factChange{changed: c.setImages(r, n.Images)})
	more, other := c.setAllocatable(r, n.Allocatable)
	all = all.and(factChange{changed: other, helps: more})
	if all.changed {
		c.rowChanged(r)
		c.moves.Add(r)
	}
	return all
}

// countKeys adds (sign 1) or subtracts (sign -1) the keys of the labels of row r.
func (n *nodes) countKeys(r row, sign int) {
	for _, l := range n.labels[r] {
		if n.keys[l.Key] += sign; n.keys[l.Key] == 0 {
			delete(n.keys, l.Key)
		}
	}
}

// HasKey reports whether any row has a label with this key.
func (n *nodes) HasKey(key int32) bool { return n.keys[key] > 0 }

func (n *nodes) setSeen(r row, seen bool) {
	n.seen[r] = seen
	n.names.changed(n.name[r])
	if seen {
		n.seenCount++
	} else {
		n.seenCount--
	}
}

// hashText is FNV-1a with 64 bits: it spreads short names well and is the same on every machine.
func hashText(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
