package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// An atom is a question about a node alone, of which pods of many kinds ask the same: whether it has the labels that
// they select, whether they tolerate its taints. Its answers are kept as a mask and asked again only where a node's
// facts have changed since. So what a demand asks of nodes is the meet of a few masks, however many kinds of demands
// there are.
type atom struct {
	holds    func(row) bool
	rows     rows.Mask
	log      *rows.ChangeLog // of what the answers depend on
	position int             // in log
	used     uint64          // when it was asked last, in questions
}

// atoms are those asked lately, by what they ask.
type atoms struct {
	byKey     map[string]*atom
	questions uint64
}

// atomsMax is how many atoms are kept; one more, and the half asked longest ago is dropped. Chosen: more than real
// clusters have; an eighth of a byte for each node and atom.
const atomsMax = 1024

// What an atom asks, as the first byte of its key.
const (
	asksTaints   = 't'
	asksAffinity = 'a'
	asksAdded    = 'A' // by profile
	asksTerm     = 'p'
	asksVolume   = 'v' // a term of a volume
	asksFeatures = 'f'
	asksLimits   = 'l' // of a driver, for so many volumes more
)

// narrowBy takes out of m the rows on which holds does not. key says what it asks; equal keys ask the same.
func (c *state) narrowBy(m rows.Mask, key []byte, holds func(row) bool) {
	if a := c.atomOf(&c.moves, m, key, holds); a != nil {
		m.Only(a.rows)
		return
	}
	c.keepIn(m, m, holds)
}

// keepIn takes out of m the rows among some on which holds does not.
func (c *state) keepIn(m, some rows.Mask, holds func(row) bool) {
	m.Both(some, func(r row) {
		if !holds(r) {
			m.Clear(r)
		}
	})
}

// atomOf returns the atom for a question about the rows in m, as they are now; nil: they are so few that each is
// better asked. log notes whatever may change an answer.
func (c *state) atomOf(log *rows.ChangeLog, m rows.Mask, key []byte, holds func(row) bool) *atom {
	a := c.atoms.byKey[string(key)]
	if a == nil {
		if m.Count() < len(c.name)/16 {
			return nil
		}
		a = &atom{holds: holds, log: log, position: -1}
		if len(c.atoms.byKey) >= atomsMax {
			c.atoms.shrink()
		}
		c.atoms.byKey[string(key)] = a
	}
	c.atoms.questions++
	a.used = c.atoms.questions
	a.position = c.catchUp(a.log, a.position, func(r row) { a.rows = a.rows.Put(r, c.seen[r] && a.holds(r)) })
	return a
}

// shrink drops the half of the atoms that was asked longest ago.
func (a *atoms) shrink() {
	uses := make([]uint64, 0, len(a.byKey))
	for _, x := range a.byKey {
		uses = append(uses, x.used)
	}
	slices.Sort(uses)
	for key, x := range a.byKey {
		if x.used < uses[len(uses)/2] {
			delete(a.byKey, key)
		}
	}
}

// catchUp calls see for the rows that log says have changed since position, or for all, and returns the position to
// go on from.
func (c *state) catchUp(log *rows.ChangeLog, position int, see func(row)) int {
	if position >= 0 && log.End()-position <= len(c.name) {
		if next, ok := log.Since(position, see); ok {
			return next
		}
	}
	for r := range c.name {
		see(row(r))
	}
	return log.End()
}
