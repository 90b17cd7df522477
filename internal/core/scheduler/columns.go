package scheduler

import "slices"

// columns hold, for each resource by name, how much of it each row has and how much its pods take. A resource that no
// node has and no pod takes has a name only; one that nobody asks for any more, besides, is forgotten. So that a pod
// that asks for what there is not costs its name.
type columns struct {
	byName map[string]int
	all    []column
	free   []int
}

type column struct {
	resource     string
	insufficient string // the reason for which it keeps pods off
	holders      int    // classes and profiles that mean it
	having       int    // rows that have any

	allocatable, requested []int64 // by row; none: beyond the end
}

// The columns every cluster has.
const (
	cpuColumn = iota
	memoryColumn
)

func newColumns() columns { return columns{byName: map[string]int{}} }

// of returns the column of a resource, a new one if there is none.
func (x *columns) of(resource string) int {
	if i, known := x.byName[resource]; known {
		return i
	}
	fresh := column{resource: resource, insufficient: "Insufficient " + resource}
	i := len(x.all)
	if n := len(x.free); n > 0 {
		i, x.free = x.free[n-1], x.free[:n-1]
		x.all[i] = fresh
	} else {
		x.all = append(x.all, fresh)
	}
	x.byName[resource] = i
	return i
}

func (x *columns) hold(i int) { x.all[i].holders++ }

func (k *column) idle() bool { return k.holders+k.having == 0 }

// dropColumn forgets a column that is idle, and the fits and bounds that mean it.
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

// holdColumns takes hold of all columns that k means; releaseColumns lets go.
func (c *cluster) holdColumns(k *class) { k.eachColumn(c.columns.hold) }

func (c *cluster) releaseColumns(k *class) {
	k.eachColumn(func(i int) {
		x := &c.columns.all[i]
		if x.holders--; x.holders == 0 {
			x.requested = nil // no pod takes any
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

// absent reports whether no row has any of what q asks for.
func (x *columns) absent(q request) bool { return x.all[q.column].having == 0 && q.value > 0 }

// has is how much of a resource row r has, takes how much its pods take.
func (x *columns) has(i int, r row) int64 { return amountAt(x.all[i].allocatable, r) }

func (x *columns) takes(i int, r row) int64 { return amountAt(x.all[i].requested, r) }

func amountAt(list []int64, r row) int64 {
	if int(r) < len(list) {
		return list[r]
	}
	return 0
}

// take counts that pods take n more of a resource from row r.
func (x *columns) take(i int, r row, n int64) {
	k := &x.all[i]
	k.requested = withAmount(k.requested, r, amountAt(k.requested, r)+n)
}

// withAmount writes value for row r, in a longer list if need be.
func withAmount(list []int64, r row, value int64) []int64 {
	if int(r) >= len(list) {
		if value == 0 {
			return list
		}
		list = append(list, make([]int64, int(r)+1-len(list))...)
	}
	list[r] = value
	return list
}

// presence is by how much the number of rows with any grows when one goes from was to now.
func presence(was, now int64) int {
	switch {
	case was == 0 && now != 0:
		return 1
	case was != 0 && now == 0:
		return -1
	}
	return 0
}

// setAllocatable writes down what row r has. more: of something there is more than before; other: anything is another.
func (c *cluster) setAllocatable(r row, list []Amount) (more, other bool) {
	set := func(i int, value int64) {
		k := &c.columns.all[i]
		was := amountAt(k.allocatable, r)
		if was == value {
			return
		}
		more, other = more || value > was, true
		k.allocatable = withAmount(k.allocatable, r, value)
		if k.having += presence(was, value); k.having == 0 {
			k.allocatable = nil
			c.dropColumn(i)
		}
	}
	for i := range c.columns.all {
		if k := &c.columns.all[i]; amountAt(k.allocatable, r) != 0 {
			set(i, amountIn(list, k.resource))
		}
	}
	for _, a := range list {
		if a.Value != 0 {
			set(c.columns.of(a.Resource), amountIn(list, a.Resource)) // of two of a name, the first
		}
	}
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
