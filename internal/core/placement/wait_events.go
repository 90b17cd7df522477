package placement

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/placement/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/placement/volumes"
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

// notifyCounter lets those hear who listen to k, or keep bids: it counts more on row r than before, or fewer.
func (c *cluster) notifyCounter(k *census.Counter, r row, sign int32) {
	l, heard := k.Listeners.(*listeners)
	if !heard {
		return
	}
	domain := k.Of.Topo.At(r)
	if domain == census.NoDomain {
		return
	}
	c.rebid(k, domain)
	for _, w := range l.waiters {
		if w.block == blockPartner {
			if k.Total > 0 {
				c.waits.concernAll(w)
			}
			continue
		}
		evicts := w.maySearch() && c.anyBelow(w.demand.priority)
		here := false
		if sign > 0 {
			c.notifyMore(w, k, &here, domain, evicts)
		} else {
			c.notifyFewer(w, k, &here, domain, evicts)
		}
		switch {
		case !here:
		case k.Of.Topo.Rows[domain] == 1:
			c.waits.concernRow(w, r)
		default:
			c.waits.concernMark(w, mark{topo: k.Of.Topo, domain: domain})
		}
	}
}

// notifyMore: k counts more in domain. That ends a pod's search for company there (here), and the domain with the
// fewest may have become another.
func (c *cluster) notifyMore(w *waiter, k *census.Counter, here *bool, domain int32, evicts bool) {
	if slices.Contains(w.demand.together, k) {
		*here = evicts || k.At(domain) == 1
	}
	c.notifyFloor(w, k)
}

// notifyFloor lets w hear if the fewest in a domain of one of its spread constraints are more than they were.
func (c *cluster) notifyFloor(w *waiter, k *census.Counter) {
	for i := range w.demand.hard {
		a := &w.demand.hard[i]
		if a.counter == nil || k != nil && a.counter != k || i >= len(w.floor) {
			continue
		}
		floor := a.floorOf()
		if floor <= w.floor[i] {
			w.floor[i] = floor
			continue
		}
		c.waits.concernMark(w, mark{topo: a.topo, spread: a, floor: w.floor[i]})
	}
}

// notifyFewer: k counts fewer in domain. There may be room for one more there, or nobody left to shun; nobody to join
// at all lets a pod begin that joins its like.
func (c *cluster) notifyFewer(w *waiter, k *census.Counter, here *bool, domain int32, evicts bool) {
	d := w.demand
	for i := range d.hard {
		if a := &d.hard[i]; a.counter == k {
			floor := a.floorOf()
			if i < len(w.floor) {
				w.floor[i] = min(w.floor[i], floor)
			}
			*here = *here || evicts || k.At(domain)+a.self-floor <= a.maxSkew
		}
	}
	if d.togetherSelf && slices.Contains(d.together, k) && (evicts || !slices.ContainsFunc(d.together, func(x *census.Counter) bool { return x.Total > 0 })) {
		c.waits.concernAll(w)
	}
	shunned := slices.Contains(d.shunnedBy, k)
	if shunned || slices.Contains(d.apart, k) {
		*here = *here || evicts || k.At(domain) == 0
	}
	if shunned && k.Total == 0 { // pods that are only nominated are looked at otherwise now; see podAffinityFilter.judge
		for _, wish := range c.wishes {
			c.waits.concernRow(w, wish.Row)
		}
	}
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
			for _, w := range s.of {
				if w.block == blockNone && len(w.heard.counters) > 0 {
					c.notifyFloor(w, nil)
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
