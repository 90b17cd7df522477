package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/queue"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/shrink"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// hope is what there is for a waiting demand.
type hope uint8

const (
	hopeNone     hope = iota
	hopeRoom          // it fits somewhere
	hopeEviction      // somewhere it would fit without pods of lower priority
)

// hear asks the waiters that what has happened since the last call concerns, once each, and wakes the pods of those for
// which there is hope.
func (p *Placer) hear(now unit.Instant) {
	p.heardAt = now
	p.hearNominated(now)
	s := &p.cluster.waits
	s.findConcerned(p.cluster)
	for len(s.concerned) > 0 { // who is woken may turn out to be somebody else now, and is asked then
		asked := s.concerned
		s.concerned = nil
		for _, w := range asked {
			if !w.gone {
				if there := p.askAbout(now, w); there != hopeNone {
					p.rouse(now, w, there)
				}
			}
		}
	}
}

// askAbout finds out what there is for w where something has happened.
func (p *Placer) askAbout(now unit.Instant, w *waiter) hope {
	c, d := p.cluster, w.demand
	rows, marks, everywhere := onceEach(w.rows), w.marks, w.everywhere
	w.concerned, w.rows, w.marks, w.everywhere = false, nil, nil, false
	c.refresh(d)
	was := w.block
	w.block = c.blockOf(d)
	if w.block != blockNone {
		c.register(w)
		return hopeNone
	}
	everywhere = everywhere || was != blockNone
	there := hopeNone
	if everywhere || len(marks) > 0 {
		in := func(r row) bool {
			return everywhere || slices.ContainsFunc(marks, func(m mark) bool { return m.has(r) })
		}
		if c.fitsAmong(w, in) {
			return hopeRoom
		}
		if c.mayEvict(d) {
			c.waits.seek(w)
		}
	}
	for _, r := range rows {
		if there = c.hopeOn(w, r); there != hopeNone {
			break
		}
	}
	c.register(w)
	if everywhere || len(marks) > 0 {
		p.wakeWishers(now, w)
	} else {
		p.wakeWishersOn(now, w, rows)
	}
	return there
}

// fitsAmong reports whether the demand of w fits on any of some rows, and notes which rules keep it off the others.
func (c *cluster) fitsAmong(w *waiter, in func(row) bool) bool {
	for r := range c.candidates(w.demand) {
		if !c.seen[r] || !in(r) {
			continue
		}
		by := c.keptOff(w.demand, "", r)
		if by == nil {
			return true
		}
		w.rules |= by.rule
	}
	return false
}

// keptOff is the first rule that keeps d off row r, pods that are nominated there counted; nil: it fits there.
func (c *cluster) keptOff(d *demand, self PodID, r row) (by *filter) {
	c.asIfNominated(d, self, r, func() bool {
		by = c.objection(d.profile.filters, d, r)
		return by == nil
	})
	return by
}

// hopeOn asks about one row, with evictions and without.
func (c *cluster) hopeOn(w *waiter, r row) hope {
	d := w.demand
	if !c.Present(r) {
		return hopeNone
	}
	by := c.keptOff(d, "", r)
	if by == nil {
		return hopeRoom
	}
	w.rules |= by.rule
	if c.mayEvict(d) {
		return c.hopeOfEviction(w, r)
	}
	return hopeNone
}

func (c *cluster) hopeOfEviction(w *waiter, r row) hope {
	b, _ := c.bidFor(w.demand, "", r)
	w.rules |= b.by
	if b.state == bidGood {
		return hopeEviction
	}
	return hopeNone
}

// rouse moves the pods of w, for which there is hope, out of the unschedulable pool; where it is by eviction, not those
// for which somebody is being evicted already. A pod that has become another to others since it began to wait is asked
// about as what it is now.
func (p *Placer) rouse(now unit.Instant, w *waiter, there hope) {
	c := p.cluster
	for _, e := range w.pods {
		if there == hopeEviction && c.awaitsVictims(w.demand, e.pod.ID) {
			continue
		}
		if !p.queue.renew(now, e) {
			p.queue.Ready(now, e)
		}
	}
	w.known = false
}

// hearNominated wakes the pods for which room is being made on rows on which something has happened, and that may go
// on: they fit, or those who were evicted for them are gone, they do not fit, and they must look elsewhere. To its
// demand, a pod's own wish is in the way, so that each is asked for itself.
func (p *Placer) hearNominated(now unit.Instant) {
	c := p.cluster
	if len(c.wishes) == 0 {
		p.wishesChecked = c.changes.End()
		return
	}
	look := func(r row) {
		for _, w := range c.nominated[r] {
			p.wakeWisher(now, w)
		}
	}
	next, ok := c.changes.Since(p.wishesChecked, look)
	p.wishesChecked = next
	if !ok {
		for _, w := range c.wishes {
			p.wakeWisher(now, w)
		}
	}
}

func (p *Placer) wakeWisher(now unit.Instant, w *nominated) {
	c := p.cluster
	e := p.queue.in(queue.Unschedulable, w.id)
	if e == nil {
		return
	}
	c.refresh(e.demand)
	d := e.demand
	if c.Present(w.Row) && c.feasible(d, w.id, w.Row) || !d.neverPreempts && !d.profile.NoPreemption && !c.awaitsVictims(d, w.id) {
		p.queue.Ready(now, e)
	}
}

// wakeWishersOn does so for the pods of w for which room is being made on some rows. What happens to one row says
// nothing of the others: a thousand preemptors that are alike would else be asked at each deletion of a victim.
func (p *Placer) wakeWishersOn(now unit.Instant, w *waiter, rows []row) {
	for _, r := range rows {
		for _, wish := range p.cluster.nominated[r] {
			if w.pods[wish.id] != nil {
				p.wakeWisher(now, wish)
			}
		}
	}
}

// wakeWishers does so for the pods of w.
func (p *Placer) wakeWishers(now unit.Instant, w *waiter) {
	if len(p.cluster.wishes) < len(w.pods) {
		for id, wish := range p.cluster.wishes {
			if w.pods[id] != nil {
				p.wakeWisher(now, wish)
			}
		}
		return
	}
	for id := range w.pods {
		if wish := p.cluster.wishes[id]; wish != nil {
			p.wakeWisher(now, wish)
		}
	}
}

// A search asks, row by row, whether evictions would make room for a waiter. What has happened to many rows at once is
// looked at in this way, the waiter of highest priority first.
type search struct {
	on     bool
	again  bool // something has happened since it began
	check  bool // nothing is known to have happened, and the row as it is may do
	turn   uint64
	cursor row
}

const (
	// searchWork bounds what Next spends on searches: so many rows whose pods are looked at, each worth searchSkips on
	// which there is nobody to evict. Chosen: 1 to 5 microseconds a row, so that a placement is late by about a
	// millisecond.
	searchWork, searchSkips = 512, 32
	// searchPause is the time between two such. Chosen: a tenth of a CPU at most goes into searches. Shorter, pods that
	// could evict and look around learn of it sooner: with 5,000 nodes within 0.1 s, if they are the only ones.
	searchPause = 10 * time.Millisecond
	// flushAfter is when a waiting demand is asked about every row though nothing is known to have happened that helps
	// it. Upstream's flush of unschedulable pods (podMaxInUnschedulablePodsDuration, 5 minutes). It should find nobody,
	// and counts whom it finds.
	flushAfter = 5 * time.Minute
)

// seek lets w be searched for; if it is, then once more.
func (s *waits) seek(w *waiter) {
	w.known = false
	if w.search.on {
		w.search.again = true
		return
	}
	s.begin(w, false)
}

func (s *waits) begin(w *waiter, check bool) {
	w.search = search{on: true, check: check, turn: s.turn}
	s.searching = append(s.searching, w)
}

// before orders searches: nobody's second before another's first, then by priority.
func (w *waiter) before(x *waiter) int {
	return cmp.Or(cmp.Compare(w.search.turn, x.search.turn), cmp.Compare(x.demand.priority, w.demand.priority), cmp.Compare(w.number, x.number))
}

// seekHope goes on with searches, as far as searchWork allows.
func (p *Placer) seekHope(now unit.Instant) {
	p.beginChecks(now)
	s := &p.cluster.waits
	if len(s.searching) == 0 || now < p.searchDue {
		return
	}
	for work := searchWork * searchSkips; work > 0; {
		s.searching = slices.DeleteFunc(s.searching, func(w *waiter) bool { return w.gone })
		if len(s.searching) == 0 {
			return
		}
		slices.SortFunc(s.searching, (*waiter).before)
		s.turn = s.searching[0].search.turn
		work = p.searchFor(now, s.searching[0], work)
	}
	p.searchDue = now.Add(searchPause)
}

// searchFor goes on with the search for w, and returns how much work is left.
func (p *Placer) searchFor(now unit.Instant, w *waiter, work int) int {
	c, d := p.cluster, w.demand
	c.refresh(d)
	blocked := c.blockOf(d) != blockNone
	evicts := c.mayEvict(d)
	for ; !blocked && int(w.search.cursor) < len(c.name); w.search.cursor++ {
		if work <= 0 {
			return 0
		}
		work--
		r := w.search.cursor
		if !c.seen[r] || !w.search.check && !c.anyBelowOn(r, d.priority) {
			continue
		}
		work -= searchSkips
		there := hopeNone
		if w.search.check {
			there = c.hopeOn(w, r)
		} else if evicts {
			there = c.hopeOfEviction(w, r)
		}
		if there != hopeNone {
			p.found(now, w, there)
			return work
		}
	}
	p.searched(now, w)
	return work - searchSkips
}

// searched ends a search that has found nothing.
func (p *Placer) searched(now unit.Instant, w *waiter) {
	again, turn := w.search.again, w.search.turn
	if p.cluster.waits.end(w); again {
		p.cluster.waits.begin(w, false)
		w.search.turn = turn + 1
	} else {
		w.known = true
	}
	p.cluster.waits.checkLater(now, w)
	p.cluster.register(w)
}

func (s *waits) end(w *waiter) {
	w.search = search{}
	s.searching = shrink.Without(s.searching, w)
}

// found ends a search that has found hope.
func (p *Placer) found(now unit.Instant, w *waiter, there hope) {
	rescued := w.search.check && !w.search.again && !w.concerned
	p.cluster.waits.end(w)
	p.cluster.register(w)
	waited := slices.Collect(maps.Values(w.pods))
	p.rouse(now, w, there)
	for _, e := range waited {
		e.flushed = rescued && e.Pool() != queue.Unschedulable && !e.pod.Asks
	}
}

// beginChecks lets those be searched for who have waited long without a word.
func (p *Placer) beginChecks(now unit.Instant) {
	s := &p.cluster.waits
	for s.checking.Len() > 0 && s.checking.First().checks <= now {
		w := s.checking.First()
		s.checkLater(now, w)
		if !w.search.on {
			s.begin(w, true)
		}
	}
}

func (s *waits) checkLater(now unit.Instant, w *waiter) {
	w.checks = now.Add(flushAfter)
	s.checking.Set(w)
}
