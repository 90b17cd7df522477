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

// costBounds say for every row what preemption there costs at least, for pods with one priority and the same requests.
// A bound counts the evictions that are necessary because of resources, with the pods nominated on the row, and because
// of budgets that allow no disruption. All other filters can only raise the cost. So only the rows with the lowest
// bounds are evaluated in full, and pods that differ in everything else share the bounds. Bounds are kept, and
// recomputed where pods came or left. Budgets change often, and mostly on rows that are not cheap. So the effect of
// budgets is computed only for rows whose bound without budgets is low.
//
// The bounds are for a pod that is not nominated on the row itself.
//
// Pods with similar requests share the bounds of their rounded-down requests, which can only be lower. A row whose
// rounded bound is low is then checked with the exact requests, before it is evaluated in full.
type costBounds struct {
	of       *demand       // has the requests, the profile and the priority only; see boundsDemandFor
	position int           // in cluster.changes
	budgeted int           // in cluster.allowances
	used     uint64        // when they were used last, in cluster.decisions
	rows     []preemptCost // by row; costNone: no eviction makes room there
	free     []preemptCost // by row: the bound if budgets allowed everything
	stale    rows.Mask     // rows whose bound is that in free; the one with budgets may be higher
	// least is, for each 64 rows (a word of a mask), a row with the lowest bound; noRow: not known.
	least     []row
	rejecting RuleSet // the rules because of which no eviction makes room on some row
}

// boundsRowsMax limits the rows of all bounds together, at 80 bytes each. boundsMin is the number of bounds that are
// always kept. When one more is needed, the half that was used longest ago is dropped. Chosen: 40 MiB, which is 10
// vectors of requests on 50,000 nodes. If more are used in turn, each is recomputed, at about 0.2 microseconds per
// node.
const (
	boundsRowsMax = 1 << 19
	boundsMin     = 4
)

// roundedBits is how many leading binary digits rounding keeps of an amount. Chosen: rounded amounts are 3 to 6 percent
// apart, so a thousand different amounts between one half and all of a node become sixteen.
const roundedBits = 5

func roundDown(amount int64) int64 {
	drop := max(bits.Len64(uint64(amount))-roundedBits, 0)
	return amount >> drop << drop
}

// tooLowMax limits for how many vectors of requests cluster.tooLow counts. Chosen: it takes about 100 KiB.
const tooLowMax = 1 << 10

// boundsFor returns up-to-date bounds for d. They are for its exact requests if such bounds exist, or if rounded bounds
// were too low so often that exact ones are worth their cost; otherwise they are for the rounded requests.
func (c *cluster) boundsFor(d *demand) *costBounds {
	key := boundsKey(d)
	b := c.bounds[key]
	switch {
	case b != nil:
	case c.tooLow[key] >= max(len(c.name), 1):
		delete(c.tooLow, key)
		b = c.makeBounds(d, key, d.requests)
	default:
		rounded := encode.Number(encode.String([]byte("about "), d.profile.Name), int64(d.priority))
		of := slices.Clone(d.requests)
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

// boundsKey is the key of the bounds for the exact requests of d.
func boundsKey(d *demand) string { return d.fitKey + strconv.Itoa(int(d.priority)) }

// countTooLow records on how many rows the rounded bound for d was too low to be useful.
func (c *cluster) countTooLow(d *demand, rows int) {
	if rows == 0 {
		return
	}
	if len(c.tooLow) >= tooLowMax {
		clear(c.tooLow)
	}
	c.tooLow[boundsKey(d)] += rows
}

func (c *cluster) makeBounds(d *demand, key string, requests []request) *costBounds {
	if len(c.bounds) >= max(boundsRowsMax/max(len(c.name), 1), boundsMin) {
		shrink.OldHalf(c.bounds, func(b *costBounds) uint64 { return b.used })
	}
	b := &costBounds{position: -1, of: c.boundsDemandFor(d, requests)}
	c.bounds[key] = b
	return b
}

// boundsDemandFor returns the part of a demand that bounds use: requests, and the profile and priority of d.
func (c *cluster) boundsDemandFor(d *demand, requests []request) *demand {
	of := &demand{class: &class{needs: needs{profile: d.profile}, priority: d.priority}}
	for _, q := range requests {
		if !d.profile.ignores(c.columns.all[q.column].resource) {
			of.requests = append(of.requests, q)
		}
	}
	return of
}

// boundsDemand returns a demand with the part of d that bounds use.
func (c *cluster) boundsDemand(d *demand) *demand {
	ignored := func(q request) bool { return d.profile.ignores(c.columns.all[q.column].resource) }
	if !slices.ContainsFunc(d.requests, ignored) {
		return d // it has more fields set, which bounds do not read
	}
	return c.boundsDemandFor(d, d.requests)
}

// correctBounds recomputes the bounds of rows that changed.
func (c *cluster) correctBounds(b *costBounds) {
	b.used = c.decisions
	b.grow(len(c.name))
	again := func(r row) {
		b.free[r] = c.freeBoundOn(b.of, r)
		b.rejecting |= b.free[r].by
		b.set(r, b.free[r])
		b.stale = b.stale.Put(r, b.free[r].state == costHelps)
	}
	if b.position < 0 {
		b.budgeted = c.allowances.End() // every row is recomputed below
	}
	b.position = c.catchUp(&c.changes, b.position, again)
	b.budgeted = c.catchUp(&c.allowances, b.budgeted, func(r row) {
		if b.free[r].state == costHelps {
			b.set(r, b.free[r])
			b.stale.Set(r)
		}
	})
}

func (b *costBounds) grow(n int) {
	if more := n - len(b.rows); more > 0 {
		b.rows, b.free = append(b.rows, make([]preemptCost, more)...), append(b.free, make([]preemptCost, more)...)
	}
	for len(b.least)*64 < n {
		b.least, b.stale = append(b.least, noRow), append(b.stale, 0)
	}
}

// set sets the bound of row r.
func (b *costBounds) set(r row, x preemptCost) {
	b.rows[r] = x
	switch least := b.least[r>>6]; {
	case least == r:
		b.least[r>>6] = noRow
	case least != noRow && x.isLessThan(&b.rows[least]):
		b.least[r>>6] = r
	}
}

func (b *preemptCost) isLessThan(other *preemptCost) bool {
	return b.state == costHelps && (other.state != costHelps || compareCosts(b, other) < 0)
}

// addBudgets computes what budgets add to the bound of row r, if that is not known, and reports whether the bound rose.
func (b *costBounds) addBudgets(c *cluster, r row) (dearer bool) {
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

// leastOf returns the lowest bound of the i-th 64 rows.
func (b *costBounds) leastOf(i int) *preemptCost {
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

// freeBoundOn returns a cost that is no higher than what costOn returns on row r for any demand with the requests of d.
// It holds even if budgets allow everything.
func (c *cluster) freeBoundOn(d *demand, r row) preemptCost {
	all := c.belowOn(d, r)
	if len(all) == 0 {
		return preemptCost{}
	}
	if last, count, enough := c.fewestOf(d, r, all); enough {
		return boundOf(all, last, count)
	}
	return preemptCost{by: RuleResources}
}

// boundOn is freeBoundOn with the disruptions that budgets allow now.
func (c *cluster) boundOn(d *demand, r row) preemptCost {
	all, allowed := c.belowOn(d, r), c.allowed[:0]
	for _, h := range all {
		if !h.isProtected() {
			allowed = append(allowed, h)
		}
	}
	c.allowed = allowed
	if last, count, enough := c.fewestOf(d, r, allowed); enough {
		return boundOf(allowed, last, count)
	}
	last, count, enough := c.fewestOf(d, r, all)
	if !enough {
		return preemptCost{by: RuleResources}
	}
	b := boundOf(all, last, count)
	b.violations = int32(c.fewestProtected(d, r, all))
	return b
}

// belowOn returns the pods on row r with a lower priority than d, the lowest first. The list is working space.
func (c *cluster) belowOn(d *demand, r row) []*placedPod {
	all := c.below[:0]
	if c.seen[r] {
		for _, h := range c.podsOn[r] {
			if h.class.priority < d.priority {
				all = append(all, h)
			}
		}
	}
	slices.SortFunc(all, func(a, b *placedPod) int { return cmp.Compare(a.class.priority, b.class.priority) })
	c.below = all
	return all
}

// boundOf returns the bound if that many of pods must leave, among them pods[last]. pods are sorted by priority.
func boundOf(pods []*placedPod, last, count int) preemptCost {
	b := preemptCost{state: costHelps, highest: pods[last].class.priority, count: int32(count)}
	b.sum = int64(b.highest) + priorityOffset
	for _, h := range pods[:count-1] {
		b.sum += int64(h.class.priority) + priorityOffset
	}
	for _, h := range pods {
		if h.class.priority == b.highest {
			b.earliest = max(b.earliest, startOf(h))
		}
	}
	return b
}

// fewestOf returns how many of pods must leave row r at least to free the resources that d requests, and the last one
// that must be among the candidates. pods are sorted by priority. enough is false if even all of them are too few.
func (c *cluster) fewestOf(d *demand, r row, pods []*placedPod) (last, count int, enough bool) {
	if len(pods) == 0 {
		return 0, 0, false
	}
	count = 1
	if !d.profile.hasRule(RuleResources) {
		return last, count, true
	}
	if lack := c.podCount[r] + c.nominatedBefore(d, r) + 1 - c.podsMax[r]; lack > 1 {
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
		count = max(count, int((lack+most-1)/most)) // as if each freed as much as the one that frees most
	}
	return last, count, true
}

// fewestProtected returns how many pods must leave at least although their budgets do not allow it. It assumes that the
// pods that may leave are not enough.
func (c *cluster) fewestProtected(d *demand, r row, pods []*placedPod) (count int) {
	count = 1
	for _, q := range d.requests {
		lack, most := c.lack(r, q)+c.nominatedTake(d, r, q.column), int64(0)
		for _, h := range pods {
			if takes := h.class.takes(q.column); h.isProtected() {
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

// lack returns how much of a resource is missing on row r for a pod that requests q; zero or less: nothing is missing.
func (c *cluster) lack(r row, q request) int64 {
	return q.value - (c.columns.has(q.column, r) - c.columns.takes(q.column, r))
}

// nominatedBefore returns how many pods nominated on row r count when d is judged; see withNominated.
func (c *cluster) nominatedBefore(d *demand, r row) (n int64) {
	for _, w := range c.nominated[r] {
		if w.class.priority >= d.priority {
			n++
		}
	}
	return n
}

// nominatedTake returns how much of a resource is taken by the pods that are nominated on row r and count when d is
// judged.
func (c *cluster) nominatedTake(d *demand, r row, column int) (sum int64) {
	for _, w := range c.nominated[r] {
		if w.class.priority >= d.priority {
			sum += w.class.takes(column)
		}
	}
	return sum
}

// takes returns how much of a column's resource a pod of class k takes.
func (k *class) takes(column int) int64 {
	for _, q := range k.requests {
		if q.column == column {
			return q.value
		}
	}
	return 0
}
