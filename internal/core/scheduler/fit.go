package scheduler

import (
	"encoding/binary"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// A fit is the result of the resource rules for every row and one vector of requests: whether there is room, and the
// score. It is kept, and recomputed where pods came or left. Pods that differ in everything except requests share it.
// Fits are used for profiles whose scores tiles cannot bound.
type fit struct {
	of       needs
	scorers  []weightedScorer
	position int    // in cluster.changes
	used     uint64 // when it was used last, in cluster.decisions

	rows rows.Mask // rows with room
	// By row with room, the weighted sum of the scores that depend on the row alone: the low byte and, if the profile's
	// weights need it, the high byte (else nil).
	low, high []uint8
}

// fitBytes limits the memory of all fits, at about one byte per node and fit. fitsMax and fitsMin limit their number.
// When one more is needed, the half that was used longest ago is dropped. Chosen so that 1,000 vectors of requests fit
// for 50,000 nodes. If more are used in turn, each is recomputed each time, at about 20 nanoseconds per node.
const (
	fitBytes = 64 << 20
	fitsMax  = 1024
	fitsMin  = 16
)

// needs is everything of a pod that rules about resources read. Their results are shared by pods with equal fitKey.
type needs struct {
	profile  *profile
	requests []request // non-zero only, in column order
	fit      []scored  // what NodeResourcesFit scores
	balanced []scored  // what NodeResourcesBalancedAllocation scores
	fitKey   string
}

// makeFitKey returns the key of n. asked is the Load from which fit and balanced were computed.
func (n *needs) makeFitKey(asked Load) string {
	b := encode.String(nil, n.profile.Name)
	for _, q := range n.requests {
		b = binary.AppendVarint(binary.AppendVarint(b, int64(q.column)), q.value)
	}
	b = binary.AppendVarint(b, -1) // ends the list: no column has this number
	return string(binary.AppendVarint(binary.AppendVarint(b, int64(asked.CPU)), int64(asked.Memory)))
}

// fitFor returns the fit for d, brought up to date; nil: the profile's weights are too large for fits.
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

// correct recomputes f for rows that changed.
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

// score returns the weighted sum of the scores that depend on row r alone.
func (f *fit) score(r row) int64 {
	if f.high == nil {
		return int64(f.low[r])
	}
	return int64(f.high[r])<<8 | int64(f.low[r])
}

// scoreAlone returns the weighted sum of the scores that depend on the row alone.
func (c *cluster) scoreAlone(d *demand, r row) (sum int64) {
	for _, s := range d.profile.scorers {
		if s.alone != nil && s.alone.applies(&d.needs) {
			sum += s.weight * s.alone.raw(&c.state, &d.needs, r)
		}
	}
	return sum
}

// bestByFit offers every row in m to k, with its score.
func (c *cluster) bestByFit(d *demand, m rows.Mask, g *grouping, k *bestRow) {
	f := c.fitFor(d)
	m.Each(func(r row) {
		if f != nil && f.rows.Has(r) {
			k.offer(r, g.scores[g.of[r]]+f.score(r))
			return
		}
		// the profile has no resource rule, or weights too large for a fit
		k.offer(r, g.scores[g.of[r]]+c.scoreAlone(d, r))
	})
}
