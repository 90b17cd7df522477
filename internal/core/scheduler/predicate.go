package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// A predicate is a question about a node alone that many kinds of pods have in common: whether the node has certain
// labels, or whether certain tolerations tolerate its taints. The answers for all nodes are kept as a mask, and
// recomputed only for nodes whose facts changed. The nodes that satisfy a demand are then the intersection of a few
// masks, however many demands there are.
type predicate struct {
	holds    func(row) bool  // the question
	rows     rows.Mask       // the rows for which the answer is yes, as of position
	log      *rows.ChangeLog // lists changes of what the answers depend on
	position int             // in log
	used     uint64          // the value of predicates.questions when it was last used
}

// predicates are the ones used recently, by question.
type predicates struct {
	byKey map[string]*predicate
	// questions counts the uses of all predicates.
	questions uint64
}

// predicatesMax is how many predicates are kept. When one more is needed, the half that was used longest ago is
// dropped. Chosen: more than real clusters need. Each predicate takes an eighth of a byte per node.
const predicatesMax = 1024

// The kinds of questions, as the first byte of a predicate's key.
const (
	keyTaints   = 't'
	keyAffinity = 'a'
	keyAdded    = 'A' // of a profile: its added affinity
	keyTerm     = 'p'
	keyVolume   = 'v' // a term of a volume's node affinity
	keyFeatures = 'f'
	keyLimits   = 'l' // of a CSI driver, for a number of additional volumes
)

// narrowBy removes from m the rows for which holds is false. key is the question; equal keys must mean equal answers.
func (c *state) narrowBy(m rows.Mask, key []byte, holds func(row) bool) {
	if a := c.predicateOf(&c.moves, m, key, holds); a != nil {
		m.Only(a.rows)
		return
	}
	c.keepIn(m, m, holds)
}

// keepIn removes from m the rows in some for which holds is false.
func (c *state) keepIn(m, some rows.Mask, holds func(row) bool) {
	m.Both(some, func(r row) {
		if !holds(r) {
			m.Clear(r)
		}
	})
}

// predicateOf returns the predicate for a question about the rows in m, brought up to date. It returns nil if m has so
// few rows that asking about each is cheaper. log must list every change of an answer.
func (c *state) predicateOf(log *rows.ChangeLog, m rows.Mask, key []byte, holds func(row) bool) *predicate {
	a := c.predicates.byKey[string(key)]
	if a == nil {
		if m.Count() < len(c.name)/16 {
			return nil
		}
		a = &predicate{holds: holds, log: log, position: -1}
		if len(c.predicates.byKey) >= predicatesMax {
			c.predicates.shrink()
		}
		c.predicates.byKey[string(key)] = a
	}
	c.predicates.questions++
	a.used = c.predicates.questions
	a.position = c.catchUp(a.log, a.position, func(r row) { a.rows = a.rows.Put(r, c.seen[r] && a.holds(r)) })
	return a
}

// shrink drops the half of the predicates that was used longest ago.
func (a *predicates) shrink() {
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

// catchUp calls see for the rows that changed in log since position, or for all rows if these are too many. It returns
// the position to continue from.
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
