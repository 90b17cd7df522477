package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"
)

// columns say for each resource how much of it each row has and how much the pods there take. A resource that no node
// has takes memory for its name only, and its column is dropped when no class or profile refers to it any more. So a
// pod that requests an unknown resource costs little.
type columns struct {
	byName map[string]int // the index in all of a resource's column
	all    []column       // a dropped column is zero until its index is used again
	free   []int          // indexes of dropped columns
	ofRow  [][]int        // by row: the columns of which the row has any, in no order; nil beyond the end
}

type column struct {
	resource     string
	insufficient string // the reason of a rejection because of it
	refs         int    // how many classes and profiles refer to it

	allocatable, requested rows.Amounts
}

// The columns that every cluster has.
const (
	cpuColumn = iota
	memoryColumn
)

func newColumns() columns { return columns{byName: map[string]int{}} }

// of returns the column of a resource, and creates it if necessary.
func (x *columns) of(resource string) int {
	if i, known := x.byName[resource]; known {
		return i
	}
	fresh := column{resource: resource, insufficient: insufficientPrefix + resource}
	i := len(x.all)
	if resource == CPU || resource == Memory {
		fresh.allocatable.Dense = true
		fresh.requested.Dense = true
	}
	if n := len(x.free); n > 0 {
		i, x.free = x.free[n-1], x.free[:n-1]
		x.all[i] = fresh
	} else {
		x.all = append(x.all, fresh)
	}
	x.byName[resource] = i
	return i
}

func (x *columns) ref(i int) { x.all[i].refs++ }

func (k *column) idle() bool { return k.refs+k.allocatable.Rows() == 0 }

// dropColumn drops a column that is idle, with the fits and bounds that refer to it.
func (c *cluster) dropColumn(i int) {
	k := &c.columns.all[i]
	if !k.idle() || k.resource == "" {
		return
	}
	delete(c.columns.byName, k.resource)
	*k = column{}
	c.columns.free = append(c.columns.free, i)
	for key, f := range c.fits {
		if slices.ContainsFunc(f.of.requests, func(q request) bool { return q.column == i }) ||
			slices.ContainsFunc(f.of.fit, func(s scored) bool { return s.column == i }) ||
			slices.ContainsFunc(f.of.balanced, func(s scored) bool { return s.column == i }) {
			delete(c.fits, key)
		}
	}
	for key, b := range c.bounds {
		if slices.ContainsFunc(b.of.requests, func(q request) bool { return q.column == i }) {
			delete(c.bounds, key)
		}
	}
}

// refColumns adds references to all columns that k uses. dropColumns drops them.
func (c *cluster) refColumns(k *class) { k.eachColumn(c.columns.ref) }

func (c *cluster) dropColumns(k *class) {
	k.eachColumn(func(i int) {
		x := &c.columns.all[i]
		if x.refs--; x.refs == 0 {
			x.requested.Free() // no pod takes any of it
			c.dropColumn(i)
		}
	})
}

func (k *class) eachColumn(see func(int)) {
	for _, q := range k.requests {
		see(q.column)
	}
	for _, list := range [...][]scored{k.fit, k.balanced} {
		for i := range list {
			see(list[i].column)
		}
	}
}

// absent reports whether q requests a resource that no row has.
func (x *columns) absent(q request) bool {
	return x.all[q.column].allocatable.Rows() == 0 && q.value > 0
}

// has returns how much of a resource row r has, takes how much its pods take.
func (x *columns) has(i int, r row) int64 { return x.all[i].allocatable.At(r) }

func (x *columns) takes(i int, r row) int64 { return x.all[i].requested.At(r) }

// take adds n to what the pods on row r take of a resource.
func (x *columns) take(i int, r row, n int64) {
	k := &x.all[i]
	k.requested.Set(r, k.requested.At(r)+n)
}

// setAllocatable sets what row r has. more: it has more of some resource than before. other: some amount has changed.
func (c *cluster) setAllocatable(r row, list []Amount) (more, other bool) {
	x := &c.columns
	set := func(i int, value int64) {
		k := &x.all[i]
		was := k.allocatable.At(r)
		if was == value {
			return
		}
		more = more || value > was
		other = true
		k.allocatable.Set(r, value)
		if value == 0 {
			k.allocatable.Free()
			c.dropColumn(i)
		}
	}
	for int(r) >= len(x.ofRow) {
		x.ofRow = append(x.ofRow, nil)
	}
	for _, i := range x.ofRow[r] {
		set(i, amountIn(list, x.all[i].resource))
	}
	now := x.ofRow[r][:0]
	for n, a := range list {
		if a.Value == 0 || slices.ContainsFunc(list[:n], func(b Amount) bool { return b.Resource == a.Resource }) {
			continue // of two entries with one name, the first counts
		}
		i := x.of(a.Resource)
		set(i, a.Value)
		now = append(now, i)
	}
	x.ofRow[r] = now
	return more, other
}

func amountIn(list []Amount, resource string) int64 {
	for i := range list {
		if list[i].Resource == resource {
			return list[i].Value
		}
	}
	return 0
}
