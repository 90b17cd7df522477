package scheduler

import (
	"encoding/binary"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// A fit is what resources alone say of every row to pods that ask for the same: whether they have room there, and how
// well they would lie. It is kept, and asked again where pods came or went. Pods that differ in everything but what
// they ask for share it. It is for profiles of which tiles cannot bound the scores.
type fit struct {
	of       needs
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

// needs are what the rules about resources look at of a pod, and all that they look at: what they say of rows is kept
// for the pods of which fitKey is the same.
type needs struct {
	profile  *profile
	requests []request // non-zero only, in column order
	fit      []scored  // what NodeResourcesFit scores
	balanced []scored  // what NodeResourcesBalancedAllocation scores
	fitKey   string
}

// makeFitKey says what n is, but for asked, of which parts of n were made.
func (n *needs) makeFitKey(asked Load) string {
	b := encode.String(nil, n.profile.Name)
	for _, q := range n.requests {
		b = binary.AppendVarint(binary.AppendVarint(b, int64(q.column)), q.value)
	}
	b = binary.AppendVarint(b, -1) // no column
	return string(binary.AppendVarint(binary.AppendVarint(b, int64(asked.CPU)), int64(asked.Memory)))
}

// fitFor returns the fit for d as things are now; nil: its profile weighs resources by more than fits can hold.
func (c *cluster) fitFor(d *demand) *fit {
	if f := c.fits[d.fitKey]; f != nil {
		c.correct(f)
		return f
	}
	most := int64(0)
	for _, s := range d.profile.scorers {
		if s.alone != nil {
			most += s.weight * scoreMax
		}
	}
	if most >= 1<<16 {
		return nil
	}
	if len(c.fits) >= min(max(fitBytes/max(len(c.name), 1), fitsMin), fitsMax) {
		shrink.OldHalf(c.fits, func(f *fit) uint64 { return f.used })
	}
	f := &fit{position: -1, of: d.needs}
	for _, s := range d.profile.scorers {
		if s.alone != nil && s.alone.applies(&f.of) {
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
		if !c.seen[r] || !passesResources(&c.state, &f.of, r) {
			f.rows.Clear(r)
			return
		}
		f.rows.Set(r)
		score := int64(0)
		for i := range f.scorers {
			score += f.scorers[i].weight * f.scorers[i].alone.raw(&c.state, &f.of, r)
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
		if s.alone != nil && s.alone.applies(&d.needs) {
			sum += s.weight * s.alone.raw(&c.state, &d.needs, r)
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
