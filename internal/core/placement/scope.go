package placement

import "github.com/plimsoll-dev/plimsoll/internal/core/placement/encode"

// A scope is the set of rows on which pods count for a spread constraint: those that have all the keys, and that it
// admits.
type scope struct {
	key  string
	refs int
	of   admission
	keys []int32
	in   mask
}

// admission says which nodes count, besides that they are present.
type admission interface {
	admits(r row) bool
	eachString(see func(...int32)) // that it uses; see selector.Interner
}

// scopeAt returns the scope of rows that have all keys and that of admits, and takes hold of it; releaseScope lets go.
// Admissions with equal keys admit the same.
func (c *census) scopeAt(key []byte, of admission, keys []int32) *scope {
	for _, k := range keys {
		key = encode.Number(key, int64(k))
	}
	if known := c.scopes[string(key)]; known != nil {
		known.refs++
		return known
	}
	s := &scope{key: string(key), refs: 1, of: of, keys: keys}
	c.scopes[s.key] = s
	for r := range c.on.end() {
		s.judge(c.on, r)
	}
	return s
}

func (c *census) releaseScope(s *scope) {
	if s.refs--; s.refs == 0 {
		delete(c.scopes, s.key)
	}
}

// judge finds out whether row r is in the scope.
func (s *scope) judge(on censusNodes, r row) {
	if s.admits(on, r) {
		s.in = s.in.with(r)
	} else {
		s.in.clear(r)
	}
}

func (s *scope) admits(on censusNodes, r row) bool {
	if !on.present(r) {
		return false
	}
	for _, key := range s.keys {
		if _, ok := on.label(r, key); !ok {
			return false
		}
	}
	return s.of.admits(r)
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

func (c *census) groundAt(s *scope, t *topology) *ground {
	key := groundKey{s, t}
	g := c.grounds[key]
	if g == nil {
		g = &ground{of: key}
		c.grounds[key] = g
		if t.domains() > 0 {
			for r := range c.on.end() {
				g.addRow(r, 1)
			}
		}
	}
	g.refs++
	return g
}

func (c *census) releaseGround(g *ground) {
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
