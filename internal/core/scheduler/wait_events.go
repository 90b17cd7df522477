package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// gained notes that something has left row r, or that it has become larger.
func (s *waits) gained(r row) {
	if len(s.of) > 0 {
		s.left = append(s.left, r)
	}
}

// turned notes that facts about the node of row r are others.
func (s *waits) turned(r row) {
	if len(s.of) > 0 {
		s.changed = append(s.changed, r)
	}
}

// notify lets those hear who wait for pods that others mean, for terms that others hold or for claims that others use:
// h has come to its row (sign 1), or left it. It is counted already, or no longer.
func (c *cluster) notify(h *held, sign int32) {
	if len(c.waits.of)+len(c.bidding) == 0 {
		return
	}
	if sign < 0 || len(h.class.wants.Mounts) > 0 { // who shares a volume with h needs no other place for it
		c.waits.gained(h.Row)
	}
	c.notifyAround(h, sign)
	h.class.wants.EachClaim(func(key volumes.ClaimKey) { c.waits.used(c, key, h.Row) })
}

// notifyAround is notify for the counters in which h counts.
func (c *cluster) notifyAround(h *held, sign int32) {
	h.EachCounter(func(k *census.Counter) { c.notifyCounter(k, h.Row, sign) })
}

// used notes that another number of pods uses a claim than before, and on which row.
func (s *waits) used(c *cluster, key volumes.ClaimKey, r row) {
	for _, w := range s.byClaim[key] {
		switch d := w.demand; {
		case d.volumes == nil || !slices.ContainsFunc(d.volumes.Once, func(k *volumes.ClaimState) bool { return k.Key == key }):
		case !d.claimsTaken():
			s.concernAll(w)
		case w.maySearch():
			s.concernRow(w, r)
		}
	}
}

// claimTurned notes that a claim is another.
func (s *waits) claimTurned(key volumes.ClaimKey) {
	for _, w := range s.byClaim[key] {
		s.concernAll(w)
	}
}

// classTurned notes that something about a storage class is another.
func (s *waits) classTurned(class string) {
	for _, w := range s.byClass[class] {
		s.concernAll(w)
	}
}

// volumeTurned notes that a volume is another: to those whose claims name it, or could get it.
func (c *cluster) volumeTurned(v *volumes.KnownVolume) {
	s := &c.waits
	c.storage.ClaimsOf(v.Name, func(claim *volumes.ClaimState) { s.claimTurned(claim.Key) })
	if v.Claimed {
		s.claimTurned(volumes.ClaimKey{Namespace: v.ClaimSpace, Name: v.ClaimName})
		return
	}
	if !v.Available || v.Deleting {
		return
	}
	for _, w := range s.byClass[v.Class] {
		if w.demand.volumes != nil && w.demand.volumes.MayGet(v) {
			s.concernAll(w)
		}
	}
}

// keptNoMore tells the pods that use a claim that the volume reserved for it is gone, or reserved for another: now the
// claim may get any other volume. was is what was known of the volume before; nil: nothing.
func (c *cluster) keptNoMore(was *volumes.KnownVolume) {
	if was != nil && was.Claimed {
		c.waits.claimTurned(volumes.ClaimKey{Namespace: was.ClaimSpace, Name: was.ClaimName})
	}
}

// driverTurned notes that less is asked of volumes that a driver makes.
func (c *cluster) driverTurned(driver string) {
	c.storage.Classes(func(k *volumes.KnownClass) {
		if k.Provisioner == driver {
			c.waits.classTurned(k.Name)
		}
	})
}

// findConcerned finds the waiters to which what has happened on rows may matter.
func (s *waits) findConcerned(c *cluster) {
	if len(s.of) > 0 {
		for _, r := range onceEach(s.changed) {
			s.node.each(c, r, func(w *waiter) { s.concernRow(w, r) })
		}
		for _, r := range onceEach(s.left) {
			s.room.each(c, r, func(w *waiter) { s.concernRow(w, r) })
		}
		if s.redrawn {
			for _, list := range s.audiences {
				for _, a := range list {
					c.notifyFloor(a, nil)
				}
			}
		}
	}
	s.left, s.changed, s.redrawn = s.left[:0], s.changed[:0], false
}

func onceEach(rows []row) []row {
	if len(rows) > 1 {
		slices.Sort(rows)
		rows = slices.Compact(rows)
	}
	return rows
}
