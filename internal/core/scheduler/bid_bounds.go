package scheduler

import (
	"cmp"
	"math/bits"
	"slices"
	"strconv"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/encode"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
)

// bidBounds say of every row what an eviction for pods of one priority that ask for the same may cost at best: what
// resources make necessary beside the pods nominated there, and budgets that allow nothing. All rules besides can only
// make it dearer. So of many rows the few are asked in full that could be cheapest, and pods that differ in all else
// share the bounds. They are kept, and worked out again where pods came or went. Budgets change often, and mostly where
// nothing is cheap: what they say is asked only of rows that promise much without them.
//
// They hold for a pod that is not nominated itself on the row.
//
// Pods that ask for about the same share bounds too: those of what they ask for rounded down, which can only promise
// more. A row that promises enough is then asked what it says to the very amounts before it is asked in full.
type bidBounds struct {
	of       *demand
	position int       // in cluster.changes
	budgeted int       // in cluster.allowances
	used     uint64    // when they were asked last, in decisions
	rows     []bid     // by row; bidNone: no eviction makes room there
	free     []bid     // by row: what rows would be if budgets allowed everything
	stale    rows.Mask // of these rows is free, and no larger than what budgets say
	// least is, by 64 rows, as many as a word of a mask has, one with the least bound; noRow: to be found.
	least   []row
	useless RuleSet // why no eviction makes room on some row, or did not
}

// boundsRowsMax bounds the rows of all bounds together, at 80 bytes each; boundsMin is their smallest number. One more,
// and the half asked longest ago is dropped. Chosen: 40 MiB, that is 10 vectors of requests on 50,000 nodes. With more
// in turn each is made anew, at about 0.2 microseconds a node.
const (
	boundsRowsMax = 1 << 19
	boundsMin     = 4
)

// roundedBits are the leading binary digits that rounding keeps of an amount. Chosen: amounts are told apart by 3 to 6
// percent, so that a thousand of them between one half and all of a node become sixteen.
const roundedBits = 5

func roundDown(amount int64) int64 {
	drop := max(bits.Len64(uint64(amount))-roundedBits, 0)
	return amount >> drop << drop
}

// misledMax bounds how many vectors of requests are known to be misled by rounding. Chosen: some 100 KiB.
const misledMax = 1 << 10

// boundsFor returns bounds for d as things are now: its own, if there are any or rounding has misled so often that they
// are worth it, else those of what it asks for rounded down.
func (c *cluster) boundsFor(d *demand) *bidBounds {
	key := boundsKey(d)
	b := c.bounds[key]
	switch {
	case b != nil:
	case c.misled[key] >= max(len(c.name), 1):
		delete(c.misled, key)
		b = c.makeBounds(d, key, d.requests)
	default:
		rounded, of := encode.Number(encode.String([]byte("about "), d.profile.Name), int64(d.priority)), slices.Clone(d.requests)
		for i := range of {
			of[i].value = roundDown(of[i].value)
			rounded = encode.Number(encode.Number(rounded, int64(of[i].column)), of[i].value)
		}
		if b = c.bounds[string(rounded)]; b == nil {
			b = c.makeBounds(d, string(rounded), of)
		}
	}
	c.correctBounds(b)
	return b
}

// boundsKey is the key of bounds for the very amounts that d asks for.
func boundsKey(d *demand) string { return d.fitKey + strconv.Itoa(int(d.priority)) }

// wasMisled notes for how many rows rounding promised d more than there was.
func (c *cluster) wasMisled(d *demand, rows int) {
	if rows == 0 {
		return
	}
	if len(c.misled) >= misledMax {
		clear(c.misled)
	}
	c.misled[boundsKey(d)] += rows
}

func (c *cluster) makeBounds(d *demand, key string, requests []request) *bidBounds {
	if len(c.bounds) >= max(boundsRowsMax/max(len(c.name), 1), boundsMin) {
		shrink.OldHalf(c.bounds, func(b *bidBounds) uint64 { return b.used })
	}
	b := &bidBounds{position: -1, of: c.askingFor(d, requests)}
	c.bounds[key] = b
	return b
}

// askingFor is what bounds look at of a demand that asks for requests and is else as d.
func (c *cluster) askingFor(d *demand, requests []request) *demand {
	of := &demand{class: &class{needs: needs{profile: d.profile}, priority: d.priority}}
	for _, q := range requests {
		if !d.profile.ignores(c.columns.all[q.column].resource) {
			of.requests = append(of.requests, q)
		}
	}
	return of
}

// asBoundsSee is what bounds look at of d.
func (c *cluster) asBoundsSee(d *demand) *demand {
	if !slices.ContainsFunc(d.requests, func(q request) bool { return d.profile.ignores(c.columns.all[q.column].resource) }) {
		return d // and more, at which they do not look
	}
	return c.askingFor(d, d.requests)
}

// correctBounds brings b up to what happened since.
func (c *cluster) correctBounds(b *bidBounds) {
	b.used = c.decisions
	b.grow(len(c.name))
	again := func(r row) {
		b.free[r] = c.freeBoundOn(b.of, r)
		b.useless |= b.free[r].by
		b.set(r, b.free[r])
		b.stale = b.stale.Put(r, b.free[r].state == bidGood)
	}
	if b.position < 0 {
		b.budgeted = c.allowances.End() // all rows are fresh
	}
	b.position = c.catchUp(&c.changes, b.position, again)
	b.budgeted = c.catchUp(&c.allowances, b.budgeted, func(r row) {
		if b.free[r].state == bidGood {
			b.set(r, b.free[r])
			b.stale.Set(r)
		}
	})
}

func (b *bidBounds) grow(n int) {
	if more := n - len(b.rows); more > 0 {
		b.rows, b.free = append(b.rows, make([]bid, more)...), append(b.free, make([]bid, more)...)
	}
	for len(b.least)*64 < n {
		b.least, b.stale = append(b.least, noRow), append(b.stale, 0)
	}
}

// set writes what is known of row r.
func (b *bidBounds) set(r row, x bid) {
	b.rows[r] = x
	switch least := b.least[r>>6]; {
	case least == r:
		b.least[r>>6] = noRow
	case least != noRow && x.isLessThan(&b.rows[least]):
		b.least[r>>6] = r
	}
}

func (b *bid) isLessThan(other *bid) bool {
	return b.state == bidGood && (other.state != bidGood || compareBids(b, other) < 0)
}

// settle asks what budgets say of row r, if that is not known, and reports whether it is dearer for it.
func (b *bidBounds) settle(c *cluster, r row) (dearer bool) {
	if !b.stale.Has(r) {
		return false
	}
	b.stale.Clear(r)
	x := c.boundOn(b.of, r)
	if x == b.rows[r] {
		return false
	}
	b.set(r, x)
	return true
}

// leastOf is the least bound of the i-th 64 rows.
func (b *bidBounds) leastOf(i int) *bid {
	if b.least[i] == noRow {
		least := row(i << 6)
		for r := least + 1; r>>6 == row(i) && int(r) < len(b.rows); r++ {
			if b.rows[r].isLessThan(&b.rows[least]) {
				least = r
			}
		}
		b.least[i] = least
	}
	return &b.rows[b.least[i]]
}

// freeBoundOn is no larger than what bidFor finds on row r for any demand that asks for what d does, whatever budgets
// allow.
func (c *cluster) freeBoundOn(d *demand, r row) bid {
	all := c.belowOn(d, r)
	if len(all) == 0 {
		return bid{}
	}
	if last, count, enough := c.fewestOf(d, r, all); enough {
		return boundOf(all, last, count)
	}
	return bid{by: RuleResources}
}

// boundOn is likewise, as budgets are now.
func (c *cluster) boundOn(d *demand, r row) bid {
	all, allowed := c.belowOn(d, r), c.allowed[:0]
	for _, h := range all {
		if !h.isSpent() {
			allowed = append(allowed, h)
		}
	}
	c.allowed = allowed
	if last, count, enough := c.fewestOf(d, r, allowed); enough {
		return boundOf(allowed, last, count)
	}
	last, count, enough := c.fewestOf(d, r, all)
	if !enough {
		return bid{by: RuleResources}
	}
	b := boundOf(all, last, count)
	b.violations = int32(c.fewestSpent(d, r, all))
	return b
}

// belowOn lists the pods on row r that d may evict, the least important first, in working space.
func (c *cluster) belowOn(d *demand, r row) []*held {
	all := c.below[:0]
	if c.seen[r] {
		for _, h := range c.held[r] {
			if h.class.priority < d.priority {
				all = append(all, h)
			}
		}
	}
	slices.SortFunc(all, func(a, b *held) int { return cmp.Compare(a.class.priority, b.class.priority) })
	c.below = all
	return all
}

// boundOf is the bound where so many of pods, which are in order of priority, have to leave, and at least up to one.
func boundOf(pods []*held, last, count int) bid {
	b := bid{state: bidGood, highest: pods[last].class.priority, count: int32(count)}
	b.sum = int64(b.highest) + priorityLift
	for _, h := range pods[:count-1] {
		b.sum += int64(h.class.priority) + priorityLift
	}
	for _, h := range pods {
		if h.class.priority == b.highest {
			b.earliest = max(b.earliest, startOf(h))
		}
	}
	return b
}

// fewestOf finds how many of pods, which are in order of priority, have to leave row r at least for the resources that
// d asks for, and up to which of them; enough: that helps.
func (c *cluster) fewestOf(d *demand, r row, pods []*held) (last, count int, enough bool) {
	if len(pods) == 0 {
		return 0, 0, false
	}
	count = 1
	if !d.profile.asksAbout(RuleResources) {
		return last, count, true
	}
	if lack := c.podsHeld[r] + c.nominatedBefore(d, r) + 1 - c.podsMax[r]; lack > 1 {
		if lack > int64(len(pods)) {
			return last, count, false
		}
		last, count = int(lack)-1, int(lack)
	}
	for _, q := range d.requests {
		lack, freed := c.lack(r, q)+c.nominatedTake(d, r, q.column), int64(0)
		for i := 0; freed < lack; i++ {
			if i == len(pods) {
				return last, count, false
			}
			freed += pods[i].class.takes(q.column)
			last = max(last, i)
		}
	}
	for _, q := range d.requests {
		lack, most := c.lack(r, q)+c.nominatedTake(d, r, q.column), int64(0)
		if lack <= 0 {
			continue
		}
		for _, h := range pods {
			if h.class.priority <= pods[last].class.priority {
				most = max(most, h.class.takes(q.column))
			}
		}
		count = max(count, int((lack+most-1)/most)) // if each freed as much as the largest
	}
	return last, count, true
}

// fewestSpent is how many pods have to leave at least whose budgets allow it not, where those that may are not enough.
func (c *cluster) fewestSpent(d *demand, r row, pods []*held) (count int) {
	count = 1
	for _, q := range d.requests {
		lack, most := c.lack(r, q)+c.nominatedTake(d, r, q.column), int64(0)
		for _, h := range pods {
			if takes := h.class.takes(q.column); h.isSpent() {
				most = max(most, takes)
			} else {
				lack -= takes
			}
		}
		if lack > 0 {
			count = max(count, int((lack+most-1)/most))
		}
	}
	return count
}

// lack is how much of a resource is missing on row r for a pod that requests q; zero or less: nothing.
func (c *cluster) lack(r row, q request) int64 {
	return q.value - (c.columns.has(q.column, r) - c.columns.takes(q.column, r))
}

// nominatedBefore is how many pods are nominated on row r that go before d (asIfNominated).
func (c *cluster) nominatedBefore(d *demand, r row) (n int64) {
	for _, w := range c.nominated[r] {
		if w.class.priority >= d.priority {
			n++
		}
	}
	return n
}

// nominatedTake is what the pods take from a column that are nominated on row r and go before d.
func (c *cluster) nominatedTake(d *demand, r row, column int) (sum int64) {
	for _, w := range c.nominated[r] {
		if w.class.priority >= d.priority {
			sum += w.class.takes(column)
		}
	}
	return sum
}

// takes is what a pod of class k takes from a column.
func (k *class) takes(column int) int64 {
	for _, q := range k.requests {
		if q.column == column {
			return q.value
		}
	}
	return 0
}
