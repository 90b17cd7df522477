package scheduler

import (
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
)

// nodes are what nodes say of themselves, one row for each. A row exists for every node that was seen and for every
// name a counted pod is bound to; only seen nodes are present.
//
// What is known by row is a column, and grows by itself when a row is added. A new fact about nodes is a column
// here and an entry in facts: nothing else has to be told of it.
type nodes struct {
	seed    uint64
	rows    map[string]row // by name
	free    []row
	growing []rows.Table // all that have a place for each row, those of others too
	facts   []fact

	name rows.Column[string]
	ring rows.Column[uint64] // a hash of name and seed, for ties
	seen rows.Column[bool]   // the API shows this node

	unschedulable rows.Column[bool]
	labels        rows.Column[[]selector.LabelID] // sorted by key
	keys          map[int32]int                   // of labels: how many rows have one
	taints        rows.Column[[]Taint]            // those that keep pods off
	softTaints    rows.Column[[]Taint]            // those that only discourage
	features      rows.Column[[]string]           // sorted
	agentLacks    rows.Column[[]string]           // codes of what its agent cannot do, sorted
	podsMax       rows.Column[int64]

	seenCount int
	changes   rows.ChangeLog // of rows: anything about them
	moves     rows.ChangeLog // likewise, but only what a node says of itself
}

// readFacts lists what is read of a Node into a column of its own.
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

// A fact is one thing that a node says of itself.
type fact interface {
	// hear takes what of says, and tells how it differs from what row r has.
	hear(of *Node, r row) news
	// write writes what was heard last to row r.
	write(r row)
}

// news is what a node says that it did not say before.
type news struct {
	changed bool
	helps   bool // it may admit a pod that was rejected
	moves   bool // it decides about the domains and scopes of the row
}

func (a news) and(b news) news {
	return news{changed: a.changed || b.changed, helps: a.helps || b.helps, moves: a.moves || b.moves}
}

// factOf is a fact in a column of its own.
type factOf[T any] struct {
	column *rows.Column[T]
	read   func(of *Node) T
	equal  func(a, b T) bool
	helps  func(was, now T) bool // asked of values that are not equal
	moves  bool                  // see news
	heard  T
}

func (f *factOf[T]) hear(of *Node, r row) news {
	f.heard = f.read(of)
	was := (*f.column)[r]
	if f.equal(was, f.heard) {
		return news{}
	}
	return news{changed: true, helps: f.helps(was, f.heard), moves: f.moves}
}

func (f *factOf[T]) write(r row) {
	var none T
	(*f.column)[r], f.heard = f.heard, none
}

func anyChange[T any](_, _ T) bool { return true }
func noChange[T any](_, _ T) bool  { return false }

// end is above every row.
func (n *nodes) End() row { return row(len(n.name)) }

func (n *nodes) Present(r row) bool { return r != noRow && n.seen[r] }

// rowOf returns the row of name, a new empty one if there is none.
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
	n.rows[name], n.name[r], n.ring[r] = r, name, mix(hashText(name)^n.seed)
	return r
}

// giveBack makes r a row of no node.
func (n *nodes) giveBack(r row) {
	delete(n.rows, n.name[r])
	for _, x := range n.growing {
		x.ClearRow(r)
	}
	n.free = append(n.free, r)
}

// touch notes that something about row r has changed.
func (n *nodes) touch(r row) { n.changes.Add(r) }

// label returns the value of a label of row r.
func (n *nodes) Label(r row, key int32) (value int32, ok bool) {
	return selector.NumberOf(n.labels[r], key)
}

// names returns the names of the present nodes, sorted.
func (n *nodes) names() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(n.rows)), func(name string) bool { return !n.seen[n.rows[name]] })
}

// setNode writes the facts of n into its row. better reports whether any of them may admit a pod that was rejected;
// a heartbeat that changes nothing does not.
func (c *cluster) setNode(n Node) (r row, better bool) {
	r = c.rowOf(n.Name)
	c.sweepStrings()
	if better = c.learn(r, &n, true).helps; better {
		c.waits.turned(r)
	}
	return r, better
}

func (c *cluster) removeNode(name string) (r row, ok bool) {
	r, ok = c.rows[name]
	if !ok || !c.seen[r] {
		return noRow, false
	}
	c.learn(r, &Node{Name: name}, false)
	c.release(r)
	return r, true
}

// learn writes what n says to row r; seen: whether the API shows n.
func (c *cluster) learn(r row, n *Node, seen bool) (all news) {
	if c.seen[r] != seen {
		all = news{changed: true, helps: true, moves: true}
	}
	for _, f := range c.facts {
		all = all.and(f.hear(n, r))
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
	all = all.and(news{changed: c.setImages(r, n.Images)})
	more, other := c.setAllocatable(r, n.Allocatable)
	all = all.and(news{changed: other, helps: more})
	if all.changed {
		c.touch(r)
		c.moves.Add(r)
	}
	return all
}

// countKeys counts the keys of the labels of row r, or no longer.
func (n *nodes) countKeys(r row, sign int) {
	for _, l := range n.labels[r] {
		if n.keys[l.Key] += sign; n.keys[l.Key] == 0 {
			delete(n.keys, l.Key)
		}
	}
}

// hasKey reports whether any row has a label of this key.
func (n *nodes) HasKey(key int32) bool { return n.keys[key] > 0 }

func (n *nodes) setSeen(r row, seen bool) {
	n.seen[r] = seen
	if seen {
		n.seenCount++
	} else {
		n.seenCount--
	}
}

// hashText is FNV-1a, 64 bits: good spread for short names, the same on every machine.
func hashText(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
