package placement

import (
	"encoding/binary"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/rows"
)

// A fit is what resources alone say of every row to pods that ask for the same: whether they have room there, and how
// well they would lie. It is kept, and asked again where pods came or went. Pods that differ in everything but what
// they ask for share it. It is for profiles of which tiles cannot bound the scores.
type fit struct {
	of       *demand // with what the rules about resources look at, and nothing else
	scorers  []weightedScorer
	position int    // in cluster.changes
	used     uint64 // when it was asked last, in decisions

	rows rows.Mask // that have room
	// The weighted sum of the scores that look at a row alone, by row, where there is room: the low byte and, where the
	// profile's weights are so large, the high one.
	low, high []uint8
}

// fitBytes bounds the fits that are kept, at about a byte for each node; fitsMax is their largest, fitsMin their
// smallest number. One more, and the half asked longest ago is dropped. Chosen: 1,000 vectors on 50,000 nodes. With
// more in turn than are kept each is made anew, at about 20 nanoseconds a node.
const (
	fitBytes = 64 << 20
	fitsMax  = 1024
	fitsMin  = 16
)

// fitKey says what the rules about resources look at in pods of class k.
func (k *class) makeFitKey() string {
	b := encode.String(nil, k.profile.Name)
	for _, q := range k.requests {
		b = binary.AppendVarint(binary.AppendVarint(b, int64(q.column)), q.value)
	}
	b = binary.AppendVarint(b, -1) // no column
	return string(binary.AppendVarint(binary.AppendVarint(b, int64(k.asked.CPU)), int64(k.asked.Memory)))
}

// fitFor returns the fit for d as things are now; nil: its profile weighs resources by more than fits can hold.
func (c *cluster) fitFor(d *demand) *fit {
	if f := c.fits[d.fitKey]; f != nil {
		c.correct(f)
		return f
	}
	most := int64(0)
	for _, s := range d.profile.scorers {
		if s.around == nil {
			most += s.weight * scoreMax
		}
	}
	if most >= 1<<16 {
		return nil
	}
	if len(c.fits) >= min(max(fitBytes/max(len(c.name), 1), fitsMin), fitsMax) {
		c.dropFits()
	}
	of := &class{profile: d.profile, requests: d.requests, fit: d.fit, balanced: d.balanced}
	f := &fit{position: -1, of: &demand{class: of}}
	for _, s := range d.profile.scorers {
		if s.around == nil && s.applies(f.of) {
			f.scorers = append(f.scorers, s)
		}
	}
	if most >= 1<<8 {
		f.high = []uint8{}
	}
	c.fits[d.fitKey] = f
	c.correct(f)
	return f
}

func (c *cluster) dropFits() {
	uses := make([]uint64, 0, len(c.fits))
	for _, f := range c.fits {
		uses = append(uses, f.used)
	}
	slices.Sort(uses)
	for key, f := range c.fits {
		if f.used <= uses[len(uses)/2] {
			delete(c.fits, key)
		}
	}
}

func (c *cluster) correct(f *fit) {
	f.used = c.decisions
	if n := len(c.name) - len(f.low); n > 0 {
		f.low = append(f.low, make([]uint8, n)...)
		if f.high != nil {
			f.high = append(f.high, make([]uint8, n)...)
		}
		for len(f.rows)*64 < len(f.low) {
			f.rows = append(f.rows, 0)
		}
	}
	f.position = c.catchUp(&c.changes, f.position, func(r row) {
		if !c.seen[r] || !passesResources(c, f.of, r) {
			f.rows.Clear(r)
			return
		}
		f.rows.Set(r)
		score := int64(0)
		for i := range f.scorers {
			score += f.scorers[i].weight * f.scorers[i].raw(c, f.of, r)
		}
		if f.low[r] = uint8(score); f.high != nil {
			f.high[r] = uint8(score >> 8)
		}
	})
}

// score is the weighted sum of the scores that look at row r alone.
func (f *fit) score(r row) int64 {
	if f.high == nil {
		return int64(f.low[r])
	}
	return int64(f.high[r])<<8 | int64(f.low[r])
}

// scoreAlone is the weighted sum of what the scorers say that look at the row alone.
func (c *cluster) scoreAlone(d *demand, r row) (sum int64) {
	for _, s := range d.profile.scorers {
		if s.around == nil && s.applies(d) {
			sum += s.weight * s.raw(c, d, r)
		}
	}
	return sum
}

// bestByFit finds the best row in m by asking about each.
func (c *cluster) bestByFit(d *demand, m rows.Mask, g *grouping, k *contest) {
	f := c.fitFor(d)
	m.Each(func(r row) {
		if f != nil && f.rows.Has(r) {
			k.offer(r, g.worth[g.of[r]]+f.score(r))
			return
		}
		k.offer(r, g.worth[g.of[r]]+c.scoreAlone(d, r)) // a profile without the rule, or with weights beyond it
	})
}
