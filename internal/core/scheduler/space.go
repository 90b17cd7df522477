package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/selector"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// A space has the largest storage capacity of a storage class that each row can use, so that whether a claim fits is
// one comparison. It is kept, and recomputed only where a capacity or a node changed, because a driver with capacities
// per node publishes as many as there are nodes.
type space struct {
	most     []int64                  // by row; noSpaceAtAll: no capacity
	position int                      // in cluster.moves
	changed  []*volumes.KnownCapacity // capacities that were added or removed since it was computed
	stale    bool                     // too many capacities changed: compute it anew

	// The capacities of the class. A capacity whose selector requires one of some values of a label is in byLabel under
	// each of these; a capacity for one node is such a one. The rest is in others.
	byLabel map[selector.LabelID][]*volumes.KnownCapacity
	others  []*volumes.KnownCapacity
}

// noSpaceAtAll is the largest capacity of a row that has none, not even one of size zero.
const noSpaceAtAll = -1

// spaceChangesMax is after how many changes of capacities, or of nodes, a space is computed anew. Chosen: the list of
// changes takes some kilobytes.
const spaceChangesMax = 1024

// capacityCame records that k was added, capacityWent that it was removed. Nil: nothing changed.
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

// list applies correct to the lists that k belongs in.
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

// spaceOf returns the largest capacity of a class by row, brought up to date.
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
	s.position, _ = c.moves.Since(known, again) // it always succeeds: the log keeps more than spaceChangesMax changes
	return s.most
}

// measureSpace computes a space from all capacities of a class.
func (c *state) measureSpace(class string, s *space) {
	s.most = make([]int64, len(c.name))
	s.position = c.moves.End()
	s.stale = false
	s.changed = nil
	for r := range s.most {
		s.most[r] = noSpaceAtAll
	}
	for _, k := range c.storage.Capacities(class) {
		if k.Sized {
			c.eachSelected(k, func(r row) { s.most[r] = max(s.most[r], k.Size) })
		}
	}
}

// mostSpace returns the largest capacity for row r.
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

// eachSelected calls see for the rows that k is for. If k requires values of a label, as a capacity for one node does,
// only rows with these values are examined.
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
