package scheduler

import "github.com/plimsoll-dev/plimsoll/internal/core/scheduler/rows"

const reasonTooMany = "Too many pods"

// Fits reports whether a node has room for the amount of one resource that a pod asks for. requested is what the node's
// pods request together. A pod that asks for nothing fits on an over-committed node, too.
func Fits(asked, requested, allocatable int64) bool {
	return asked <= allocatable-requested || asked <= 0
}

// FitsOneMore reports whether a node with that number of pods may get another.
func FitsOneMore(pods, podsMax int64) bool { return pods < podsMax }

type resourceFilter struct{}

func (resourceFilter) about() ruling {
	return ruling{
		rule:   RuleResources,
		plugin: "NodeResourcesFit",
		ends:   byNode | byRoom,
		reads:  podFields{"Requests"},
	}
}

func (resourceFilter) applies(*demand) bool { return true }

func (resourceFilter) judge(c *state, d *demand, r row) bool {
	return passesResources(c, &d.needs, r)
}

// passesResources requires room for one more pod, and for each resource that the pod requests (Fits).
func passesResources(c *state, n *needs, r row) bool {
	if !FitsOneMore(c.podCount[r], c.podsMax[r]) {
		return false
	}
	for _, q := range n.requests {
		if c.lacks(n, r, q) {
			return false
		}
	}
	return true
}

func (c *state) lacks(n *needs, r row, q request) bool {
	return !Fits(q.value, c.columns.takes(q.column, r), c.columns.has(q.column, r)) &&
		!n.profile.ignores(c.columns.all[q.column].resource)
}

func (resourceFilter) explain(c *state, d *demand, r row, reasons []string) []string {
	if !FitsOneMore(c.podCount[r], c.podsMax[r]) {
		reasons = append(reasons, reasonTooMany)
	}
	for _, q := range d.requests {
		if c.lacks(&d.needs, r, q) {
			reasons = append(reasons, c.columns.all[q.column].insufficient)
		}
	}
	return reasons
}

// Pods is the Resource of a Shortage of room for one more pod, whatever it requests.
const Pods = "pods"

// A Shortage is a resource of which a node has too little left for a pod, in its base unit.
type Shortage struct {
	Resource    string
	Asked       int64 // by the pod
	Requested   int64 // by the pods that count on the node
	Allocatable int64
}

// Free returns what is left. It is negative on a node that is over-committed.
func (s Shortage) Free() int64 { return s.Allocatable - s.Requested }

// shortages returns, for a row without room, what it lacks, in the order of explain.
func (c *state) shortages(d *demand, r row, out []Shortage) []Shortage {
	if !FitsOneMore(c.podCount[r], c.podsMax[r]) {
		out = append(out, Shortage{Resource: Pods, Asked: 1, Requested: c.podCount[r], Allocatable: c.podsMax[r]})
	}
	for _, q := range d.requests {
		if c.lacks(&d.needs, r, q) {
			out = append(out, Shortage{
				Resource:    c.columns.all[q.column].resource,
				Asked:       q.value,
				Requested:   c.columns.takes(q.column, r),
				Allocatable: c.columns.has(q.column, r),
			})
		}
	}
	return out
}

// final: no eviction frees more than the node has.
func (resourceFilter) final(c *state, d *demand, r row) bool {
	for _, q := range d.requests {
		if c.lacks(&d.needs, r, q) && q.value > c.columns.has(q.column, r) {
			return true
		}
	}
	return false
}

func (f resourceFilter) narrow(c *state, d *demand, m rows.Mask) {
	if m.Count() < len(c.name)/16 {
		c.narrowAmong(f.judge, d, m, m)
		return
	}
	c.narrowByTiles(d, m)
}

// explainRows counts by resource: in a full cluster, all rows have the same few reasons.
func (resourceFilter) explainRows(c *state, failure *Failure, d *demand, m rows.Mask) {
	crowded, all := 0, m.Count()
	lacking := make([]int, len(d.requests))
	var some []int // indexes of requests for resources that some row has
	for i, q := range d.requests {
		switch {
		case d.profile.ignores(c.columns.all[q.column].resource):
		case c.columns.absent(q):
			lacking[i] = all
		default:
			some = append(some, i)
		}
	}
	m.Each(func(r row) {
		if !FitsOneMore(c.podCount[r], c.podsMax[r]) {
			crowded++
		}
		for _, i := range some {
			q := &d.requests[i]
			if k := &c.columns.all[q.column]; !Fits(q.value, k.requested.At(r), k.allocatable.At(r)) {
				lacking[i]++
			}
		}
	})
	by := &filter{ruling: ruling{rule: RuleResources}}
	if failure.Rejected |= by.rule; crowded > 0 {
		failure.add(by, []string{reasonTooMany}, crowded)
	}
	for i, q := range d.requests {
		if lacking[i] > 0 {
			failure.add(by, []string{c.columns.all[q.column].insufficient}, lacking[i])
		}
	}
}
