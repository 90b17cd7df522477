package placement

import (
	"cmp"
	"maps"
	"slices"
)

// row is the index of a node in the columns. Rows of nodes that are gone are reused.
type row int32

const noRow row = -1

// cluster is what the scheduler believes: nodes as rows of columns, and what pods take from each.
//
// A row exists for every node that was seen and for every name a counted pod is bound to; only seen nodes are
// present. Columns are parallel slices indexed by row.
type cluster struct {
	intern  *interner
	classes map[string]*class
	sweepAt int

	rows map[string]row
	free []row

	name          []string
	hash          []uint64 // of name, for ties
	seen          []bool   // the API shows this node
	unschedulable []bool
	labels        [][]labelID // sorted by key
	taints        [][]Taint   // those that keep pods off
	softTaints    [][]Taint   // those that only discourage
	podsMax       []int64
	podsHeld      []int64
	ports         []map[HostPort]int // held ports with their number of holders; nil: none
	scoreCPU      []int64            // what LeastAllocated counts as taken
	scoreMemory   []int64

	columns     map[string]int // resource name to column
	resources   []string       // column to resource name
	allocatable [][]int64      // [column][row]
	requested   [][]int64      // [column][row]

	pods      map[PodID]*held
	seenCount int
}

// held is a pod that counts on a row.
type held struct {
	row       row
	class     *class
	confirmed bool // the API shows it there; else assumed
}

func newCluster() *cluster {
	c := &cluster{
		intern: newInterner(), classes: map[string]*class{}, sweepAt: classesMin,
		rows: map[string]row{}, columns: map[string]int{}, pods: map[PodID]*held{},
	}
	for _, r := range []string{CPU, Memory, EphemeralStorage} {
		c.column(r)
	}
	return c
}

// The columns every cluster has.
const (
	cpuColumn = iota
	memoryColumn
)

func (c *cluster) column(resource string) int {
	if i, ok := c.columns[resource]; ok {
		return i
	}
	i := len(c.resources)
	c.columns[resource] = i
	c.resources = append(c.resources, resource)
	c.allocatable = append(c.allocatable, make([]int64, len(c.name)))
	c.requested = append(c.requested, make([]int64, len(c.name)))
	return i
}

func (c *cluster) present(r row) bool { return r != noRow && c.seen[r] }

// rowOf returns the row of name, a new empty one if there is none.
func (c *cluster) rowOf(name string) row {
	if r, ok := c.rows[name]; ok {
		return r
	}
	if n := len(c.free); n > 0 {
		r := c.free[n-1]
		c.free = c.free[:n-1]
		c.rows[name], c.name[r], c.hash[r] = r, name, hashText(name)
		return r
	}
	r := row(len(c.name))
	c.rows[name] = r
	c.name = append(c.name, name)
	c.hash = append(c.hash, hashText(name))
	c.seen = append(c.seen, false)
	c.unschedulable = append(c.unschedulable, false)
	c.labels = append(c.labels, nil)
	c.taints = append(c.taints, nil)
	c.softTaints = append(c.softTaints, nil)
	c.podsMax = append(c.podsMax, 0)
	c.podsHeld = append(c.podsHeld, 0)
	c.ports = append(c.ports, nil)
	c.scoreCPU = append(c.scoreCPU, 0)
	c.scoreMemory = append(c.scoreMemory, 0)
	for i := range c.resources {
		c.allocatable[i] = append(c.allocatable[i], 0)
		c.requested[i] = append(c.requested[i], 0)
	}
	return r
}

// release gives an empty row of an unseen node back.
func (c *cluster) release(r row) {
	if c.seen[r] || c.podsHeld[r] > 0 {
		return
	}
	delete(c.rows, c.name[r])
	c.clearFacts(r)
	c.name[r], c.ports[r] = "", nil
	c.free = append(c.free, r)
}

func (c *cluster) clearFacts(r row) {
	c.unschedulable[r], c.labels[r], c.taints[r], c.softTaints[r], c.podsMax[r] = false, nil, nil, nil, 0
	for i := range c.resources {
		c.allocatable[i][r] = 0
	}
}

// setNode writes the facts of n into its row. better reports whether any of them may admit a pod that was rejected;
// a heartbeat that changes nothing does not.
func (c *cluster) setNode(n Node) (r row, better bool) {
	r = c.rowOf(n.Name)
	better = !c.seen[r]
	if !c.seen[r] {
		c.seen[r] = true
		c.seenCount++
	}
	labels := make([]labelID, 0, len(n.Labels))
	for _, l := range n.Labels {
		labels = append(labels, labelID{c.intern.id(l.Key), c.intern.id(l.Value)})
	}
	slices.SortFunc(labels, func(a, b labelID) int { return cmp.Compare(a.key, b.key) })
	var hard, soft []Taint
	for _, t := range n.Taints {
		switch t.Effect {
		case NoSchedule, NoExecute:
			hard = append(hard, t)
		case PreferNoSchedule:
			soft = append(soft, t)
		}
	}
	better = better || c.unschedulable[r] && !n.Unschedulable || !slices.Equal(labels, c.labels[r]) ||
		!slices.Equal(hard, c.taints[r]) || n.PodsMax > c.podsMax[r]
	c.unschedulable[r], c.labels[r], c.taints[r], c.softTaints[r], c.podsMax[r] = n.Unschedulable, labels, hard, soft, n.PodsMax

	fresh := map[int]int64{}
	for _, a := range n.Allocatable {
		fresh[c.column(a.Resource)] = a.Value
	}
	for i := range c.resources {
		better = better || fresh[i] > c.allocatable[i][r]
		c.allocatable[i][r] = fresh[i]
	}
	return r, better
}

func (c *cluster) removeNode(name string) {
	r, ok := c.rows[name]
	if !ok || !c.seen[r] {
		return
	}
	c.seen[r] = false
	c.seenCount--
	c.clearFacts(r)
	c.release(r)
}

func (c *cluster) isAssumed(id PodID) bool {
	p := c.pods[id]
	return p != nil && !p.confirmed
}

// setPod counts the pod on the node, moving it there if it counted elsewhere or for something else. freed is the row
// that may have gained room by it, if changed.
func (c *cluster) setPod(id PodID, node string, k *class, confirmed bool) (freed row, changed bool) {
	r := c.rowOf(node)
	p := c.pods[id]
	if p != nil && p.row == r && p.class == k {
		p.confirmed = p.confirmed || confirmed
		return noRow, false
	}
	freed = noRow
	if p != nil {
		freed, changed = p.row, true
		c.count(p.row, p.class, -1)
	}
	c.count(r, k, 1)
	c.pods[id] = &held{row: r, class: k, confirmed: confirmed}
	if changed && freed != r {
		c.release(freed)
	}
	return freed, changed
}

// removePod takes a pod off its row. The row is noRow if it is gone with its last pod.
func (c *cluster) removePod(id PodID) (r row, ok bool) {
	p := c.pods[id]
	if p == nil {
		return noRow, false
	}
	delete(c.pods, id)
	c.count(p.row, p.class, -1)
	c.release(p.row)
	return p.row, true
}

// count adds (sign 1) or takes away (sign -1) what one pod of class k takes from row r.
func (c *cluster) count(r row, k *class, sign int64) {
	c.podsHeld[r] += sign
	for _, q := range k.requests {
		c.requested[q.column][r] += sign * q.value
	}
	c.scoreCPU[r] += sign * int64(k.held.CPU)
	c.scoreMemory[r] += sign * int64(k.held.Memory)
	for _, port := range k.ports {
		if c.ports[r] == nil {
			c.ports[r] = map[HostPort]int{}
		}
		if c.ports[r][port] += int(sign); c.ports[r][port] == 0 {
			delete(c.ports[r], port)
		}
	}
}

// label returns the value of a label of row r.
func (c *cluster) label(r row, key int32) (value int32, ok bool) {
	i, found := slices.BinarySearchFunc(c.labels[r], key, func(l labelID, k int32) int { return cmp.Compare(l.key, k) })
	if !found {
		return 0, false
	}
	return c.labels[r][i].value, true
}

// names returns the names of the present nodes, sorted.
func (c *cluster) names() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(c.rows)), func(n string) bool { return !c.seen[c.rows[n]] })
}

// hashText is FNV-1a, 64 bits: good spread for short names, the same on every machine.
func hashText(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}
