package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// A space is the most that one storage capacity of a class offers to each row: whether there is room for a claim is a
// comparison then. It is kept, and corrected where a capacity or a node has changed; a driver that says for each node
// how much it has publishes as many capacities as there are nodes.
type space struct {
	most     []int64                  // by row; noSpaceAtAll: none
	position int                      // in cluster.moves
	changed  []*volumes.KnownCapacity // that came or went since
	stale    bool                     // too much has changed

	// The capacities of the class: those that demand one of some values of a label, as for each node, under each of
	// these.
	byLabel map[selector.LabelID][]*volumes.KnownCapacity
	others  []*volumes.KnownCapacity
}

const noSpaceAtAll = -1

// spaceChangesMax is after how many changes of capacities, or of nodes, a space is made anew. Chosen: a list of some
// kilobytes.
const spaceChangesMax = 1024

// capacityCame notes that there is k now, capacityWent that there is no longer; nil: nothing.
func (c *cluster) capacityCame(class string, k *volumes.KnownCapacity) {
	if s := c.spaces[class]; s != nil && k != nil {
		s.list(k, func(list []*volumes.KnownCapacity) []*volumes.KnownCapacity { return append(list, k) })
		s.note(k)
	}
}

func (c *cluster) capacityWent(class string, k *volumes.KnownCapacity) {
	s := c.spaces[class]
	if s == nil || k == nil {
		return
	}
	if len(c.storage.Capacities(class)) == 0 {
		delete(c.spaces, class)
		return
	}
	s.list(k, func(list []*volumes.KnownCapacity) []*volumes.KnownCapacity { return shrink.Without(list, k) })
	s.note(k)
}

func (s *space) note(k *volumes.KnownCapacity) {
	if len(s.changed) >= spaceChangesMax {
		s.stale, s.changed = true, nil
	}
	if !s.stale {
		s.changed = append(s.changed, k)
	}
}

// list corrects the lists in which k belongs.
func (s *space) list(k *volumes.KnownCapacity, correct func([]*volumes.KnownCapacity) []*volumes.KnownCapacity) {
	q := k.Selects.Demanded()
	if q == nil {
		s.others = correct(s.others)
		return
	}
	for _, value := range slices.Compact(slices.Clone(q.Values)) {
		label := selector.LabelID{Key: q.Key, Value: value}
		if s.byLabel[label] = correct(s.byLabel[label]); len(s.byLabel[label]) == 0 {
			delete(s.byLabel, label)
		}
	}
}

// spaceOf returns the space of a class, as things are now.
func (c *state) spaceOf(class string) []int64 {
	s := c.spaces[class]
	if s == nil {
		s = &space{stale: true, byLabel: map[selector.LabelID][]*volumes.KnownCapacity{}}
		c.spaces[class] = s
		for _, k := range c.storage.Capacities(class) {
			s.list(k, func(list []*volumes.KnownCapacity) []*volumes.KnownCapacity { return append(list, k) })
		}
	}
	known := s.position
	if s.stale || c.moves.End()-known > spaceChangesMax {
		c.measureSpace(class, s)
		return s.most
	}
	for len(s.most) < len(c.name) {
		s.most = append(s.most, noSpaceAtAll)
	}
	again := func(r row) { s.most[r] = c.mostSpace(s, r) }
	for _, k := range s.changed {
		c.eachSelected(k, again)
	}
	s.changed = s.changed[:0]
	s.position, _ = c.moves.Since(known, again) // so few changes are always kept
	return s.most
}

// measureSpace looks at all capacities of a class.
func (c *state) measureSpace(class string, s *space) {
	s.most, s.position, s.stale, s.changed = make([]int64, len(c.name)), c.moves.End(), false, nil
	for r := range s.most {
		s.most[r] = noSpaceAtAll
	}
	for _, k := range c.storage.Capacities(class) {
		if k.Sized {
			c.eachSelected(k, func(r row) { s.most[r] = max(s.most[r], k.Size) })
		}
	}
}

// mostSpace is the most that a capacity offers to row r.
func (c *state) mostSpace(s *space, r row) int64 {
	most := int64(noSpaceAtAll)
	look := func(list []*volumes.KnownCapacity) {
		for _, k := range list {
			if k.Sized && k.Size > most && c.seen[r] && c.storage.IsFor(k, c.labels[r]) {
				most = k.Size
			}
		}
	}
	for _, label := range c.labels[r] {
		look(s.byLabel[label])
	}
	look(s.others)
	return most
}

// eachSelected calls see for the rows that k is about. A capacity that names the values of a label, as one for each
// node does, is looked up by these.
func (c *state) eachSelected(k *volumes.KnownCapacity, see func(row)) {
	if k.Nodes == nil {
		return
	}
	selected := func(r row) {
		if c.seen[r] && c.storage.IsFor(k, c.labels[r]) {
			see(r)
		}
	}
	q := k.Selects.Demanded()
	if q == nil {
		for r := range c.name {
			selected(row(r))
		}
		return
	}
	t := c.TopologyOf(q.Key)
	for _, value := range q.Values {
		if domain, known := t.Values[value]; known {
			t.Each(domain, selected)
		}
	}
}
