package census

import (
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// A Scope is the set of rows on which pods count for a spread constraint: the rows whose nodes have labels with all the
// keys, and that the Admission admits.
type Scope struct {
	key  string
	refs int
	of   Admission
	keys []int32   // of labels
	in   rows.Mask // only update changes it
}

// Admission decides which nodes are in a scope. Only present nodes are passed to Admits.
type Admission interface {
	Admits(r rows.Row) bool
	// EachString calls see for the number of every string that it uses; see selector.Interner.
	EachString(see func(...int32))
}

// ScopeAt returns the scope of the rows whose nodes have all keys and are admitted by of, with one more reference.
// Admissions with equal keys must admit the same nodes. DropScope drops the reference.
func (c *Census) ScopeAt(key []byte, of Admission, keys []int32) *Scope {
	for _, k := range keys {
		key = encode.Number(key, int64(k))
	}
	if known := c.scopes[string(key)]; known != nil {
		known.refs++
		return known
	}
	s := &Scope{key: string(key), refs: 1, of: of, keys: keys}
	c.scopes[s.key] = s
	for r := range c.on.End() {
		s.update(c.on, r)
	}
	return s
}

// DropScope drops a reference to a scope.
func (c *Census) DropScope(s *Scope) {
	if s.refs--; s.refs == 0 {
		delete(c.scopes, s.key)
	}
}

// update updates whether row r is in the scope.
func (s *Scope) update(on Nodes, r rows.Row) {
	if s.Admits(on, r) {
		s.in = s.in.With(r)
	} else {
		s.in.Clear(r)
	}
}

// Admits reports whether row r belongs in the scope now.
func (s *Scope) Admits(on Nodes, r rows.Row) bool {
	if !on.Present(r) {
		return false
	}
	for _, key := range s.keys {
		if _, ok := on.Label(r, key); !ok {
			return false
		}
	}
	return s.of.Admits(r)
}

// A Coverage is the part of a topology that is in a scope. All counters with this topology and scope share it.
type Coverage struct {
	of      coverageKey
	refs    int     // how many counters use it
	Rows    []int32 // by domain: how many of its rows are in the scope
	Domains int     // how many domains have rows in the scope
}

type coverageKey struct {
	scope *Scope
	topo  *Topology
}

func (c *Census) coverageAt(s *Scope, t *Topology) *Coverage {
	key := coverageKey{s, t}
	g := c.coverages[key]
	if g == nil {
		g = &Coverage{of: key}
		c.coverages[key] = g
		if t.Domains() > 0 {
			for r := range c.on.End() {
				g.addRow(r, 1)
			}
		}
	}
	g.refs++
	return g
}

func (c *Census) dropCoverage(g *Coverage) {
	if g.refs--; g.refs == 0 {
		delete(c.coverages, g.of)
	}
}

// addRow adds row r to its domain (sign 1) or subtracts it (sign -1), if it is in the scope.
func (g *Coverage) addRow(r rows.Row, sign int32) {
	d := g.of.topo.At(r)
	if d == NoDomain || !g.of.scope.in.Has(r) {
		return
	}
	for int(d) >= len(g.Rows) {
		g.Rows = append(g.Rows, 0)
	}
	g.Rows[d] += sign
	switch {
	case sign > 0 && g.Rows[d] == 1:
		g.Domains++
	case sign < 0 && g.Rows[d] == 0:
		g.Domains--
	}
}
