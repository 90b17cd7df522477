package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
)

// roomGained records that a pod has left row r, or that its allocatable has grown.
func (s *waits) roomGained(r row) {
	if len(s.of) > 0 {
		s.left = append(s.left, r)
	}
}

// nodeChanged records that facts about the node of row r have changed.
func (s *waits) nodeChanged(r row) {
	if len(s.of) > 0 {
		s.changed = append(s.changed, r)
	}
}

// notify notifies the waiters, and the demands that keep costs, for which the presence of h matters: by affinity, by
// spread constraints, or by claims. h was put on its row (sign 1) or has left it (sign -1). The counts must be up to
// date.
func (c *cluster) notify(h *placedPod, sign int32) {
	if len(c.waits.of)+len(c.withCosts) == 0 {
		return
	}
	// a volume that h has attached takes no further place among the node's volumes for other pods that use it
	if sign < 0 || len(h.class.mounts.Mounts) > 0 {
		c.waits.roomGained(h.Row)
	}
	c.notifyAround(h, sign)
	h.class.mounts.EachClaim(func(key volumes.ClaimKey) { c.waits.used(c, key, h.Row) })
}

// notifyAround is notify for the counters in which h counts.
func (c *cluster) notifyAround(h *placedPod, sign int32) {
	h.EachCounter(func(k *census.Counter) { c.notifyCounter(k, h.Row, sign) })
}

// used records that another number of pods than before uses a claim, and the row where that changed.
func (s *waits) used(c *cluster, key volumes.ClaimKey, r row) {
	for _, w := range s.byClaim[key] {
		switch d := w.demand; {
		case d.volumes == nil || !d.volumes.UsesOnce(key):
		case !d.claimsTaken():
			s.markAll(w)
		case w.mayPreempt():
			s.markRow(w, r)
		}
	}
}

// claimChanged records that a claim has changed.
func (s *waits) claimChanged(key volumes.ClaimKey) {
	for _, w := range s.byClaim[key] {
		s.markAll(w)
	}
}

// classChanged records that something about a storage class has changed.
func (s *waits) classChanged(class string) {
	for _, w := range s.byClass[class] {
		s.markAll(w)
	}
}

// volumeChanged notifies the waiters whose claims name a changed volume, or could get it.
func (c *cluster) volumeChanged(v *volumes.KnownVolume) {
	s := &c.waits
	c.storage.ClaimsOf(v.Name, func(claim *volumes.ClaimState) { s.claimChanged(claim.Key) })
	if v.Claimed {
		s.claimChanged(volumes.ClaimKey{Namespace: v.ClaimNamespace, Name: v.ClaimName})
		return
	}
	if !v.Available || v.Deleting {
		return
	}
	for _, w := range s.byClass[v.Class] {
		if w.demand.volumes != nil && w.demand.volumes.MayGet(v) {
			s.markAll(w)
		}
	}
}

// reservationEnded notifies the waiters that use a claim if the volume reserved for it is gone, or reserved for another
// claim: now the claim may get another volume. was is the volume before the change; nil: there was none.
func (c *cluster) reservationEnded(was *volumes.KnownVolume) {
	if was != nil && was.Claimed {
		c.waits.claimChanged(volumes.ClaimKey{Namespace: was.ClaimNamespace, Name: was.ClaimName})
	}
}

// driverRelaxed records that fewer conditions apply to volumes that a driver provisions.
func (c *cluster) driverRelaxed(driver string) {
	c.storage.Classes(func(k *volumes.KnownClass) {
		if k.Provisioner == driver {
			c.waits.classChanged(k.Name)
		}
	})
}

// markByRows marks the waiters to which changes on rows may matter.
func (s *waits) markByRows(c *cluster) {
	if len(s.of) > 0 {
		for _, r := range onceEach(s.changed) {
			s.node.each(c, r, func(w *waiter) { s.markRow(w, r) })
		}
		for _, r := range onceEach(s.left) {
			s.room.each(c, r, func(w *waiter) { s.markRow(w, r) })
		}
		if s.domainsMoved {
			for _, list := range s.audiences {
				for _, a := range list {
					c.notifyFloor(a, nil)
				}
			}
		}
	}
	s.left = s.left[:0]
	s.changed = s.changed[:0]
	s.domainsMoved = false
}

// onceEach sorts rows and removes duplicates, in place.
func onceEach(rows []row) []row {
	if len(rows) > 1 {
		slices.Sort(rows)
		rows = slices.Compact(rows)
	}
	return rows
}
