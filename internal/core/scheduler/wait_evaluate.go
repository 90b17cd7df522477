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

// gain is what a waiter gains from a change.
type gain uint8

const (
	gainNone       gain = iota // none of its pods fits, and preemption does not help
	gainFit                    // it fits on a row
	gainPreemption             // preemption would make room on a row
)

// evaluateWaiters evaluates, once each, the waiters that changes since the last call concern. It makes the pods of
// those waiters active that may be placed now.
func (p *Placer) evaluateWaiters(now unit.Instant) {
	p.factAt = now
	p.checkNominated(now)
	s := &p.cluster.waits
	s.markByRows(p.cluster)
	for len(s.marked) > 0 { // renew may add waiters: a woken pod may have another demand now
		marked := s.marked
		s.marked = nil
		for _, w := range marked {
			if !w.gone {
				if there := p.evaluateWaiter(now, w); there != gainNone {
					p.activate(now, w, there)
				}
			}
		}
	}
}

// evaluateWaiter evaluates w where something has changed.
func (p *Placer) evaluateWaiter(now unit.Instant, w *waiter) gain {
	c, d := p.cluster, w.demand
	rows := onceEach(w.rows)
	marks := w.marks
	everywhere := w.everywhere
	w.marked = false
	w.rows = nil
	w.marks = nil
	w.everywhere = false
	c.refresh(d)
	was := w.block
	w.block = c.blockOf(d)
	if w.block != blockNone {
		c.register(w)
		return gainNone
	}
	everywhere = everywhere || was != blockNone
	there := gainNone
	if everywhere || len(marks) > 0 {
		in := func(r row) bool {
			return everywhere || slices.ContainsFunc(marks, func(m mark) bool { return m.has(r) })
		}
		if c.fitsAmong(w, in) {
			return gainFit
		}
		if c.mayEvict(d) {
			c.waits.startSearch(w)
		}
	}
	for _, r := range rows {
		if there = c.gainOn(w, r); there != gainNone {
			break
		}
	}
	c.register(w)
	if everywhere || len(marks) > 0 {
		p.wakeNominatedOf(now, w)
	} else {
		p.wakeNominatedOn(now, w, rows)
	}
	return there
}

// fitsAmong reports whether the demand of w fits on any of some rows, and adds the rules that reject it to w.rules.
func (c *cluster) fitsAmong(w *waiter, in func(row) bool) bool {
	for r := range c.candidates(w.demand) {
		if !c.seen[r] || !in(r) {
			continue
		}
		by := c.rejectedBy(w.demand, "", r)
		if by == nil {
			return true
		}
		w.rules |= by.rule
	}
	return false
}

// rejectedBy returns the first rule that rejects d on row r, with nominated pods; nil: it fits.
func (c *cluster) rejectedBy(d *demand, self PodID, r row) (by *filter) {
	c.withNominated(d, self, r, func() bool {
		by = c.firstRejecting(d.profile.filters, d, r)
		return by == nil
	})
	return by
}

// gainOn evaluates w for one row, without and with preemption.
func (c *cluster) gainOn(w *waiter, r row) gain {
	d := w.demand
	if !c.Present(r) {
		return gainNone
	}
	by := c.rejectedBy(d, "", r)
	if by == nil {
		return gainFit
	}
	w.rules |= by.rule
	if c.mayEvict(d) {
		return c.gainByPreemption(w, r)
	}
	return gainNone
}

func (c *cluster) gainByPreemption(w *waiter, r row) gain {
	b, _ := c.costOn(w.demand, "", r)
	w.rules |= b.by
	if b.state == costHelps {
		return gainPreemption
	}
	return gainNone
}

// activate moves the pods of w out of the unschedulable pool. If preemption helps, pods that wait for their victims
// already stay. A pod that has another demand now than when it began to wait moves to the waiter of that demand.
func (p *Placer) activate(now unit.Instant, w *waiter, there gain) {
	c := p.cluster
	for _, e := range w.pods {
		if there == gainPreemption && c.awaitsVictims(w.demand, e.pod.ID) {
			continue
		}
		if !p.queue.renew(now, e) {
			p.queue.Ready(now, e)
		}
	}
	w.known = false
}

// checkNominated makes nominated pods active if something has changed on their row and they need not wait any longer:
// they fit now, or their victims are gone and they still do not fit, so they must try other nodes. Each is evaluated
// separately, because a pod's nomination counts against the other pods of its demand, and not against itself.
func (p *Placer) checkNominated(now unit.Instant) {
	c := p.cluster
	if len(c.nominations) == 0 {
		p.nominationsChecked = c.changes.End()
		return
	}
	look := func(r row) {
		for _, w := range c.nominated[r] {
			p.wakeNominated(now, w)
		}
	}
	next, ok := c.changes.Since(p.nominationsChecked, look)
	p.nominationsChecked = next
	if !ok {
		for _, w := range c.nominations {
			p.wakeNominated(now, w)
		}
	}
}

func (p *Placer) wakeNominated(now unit.Instant, w *nominated) {
	c := p.cluster
	e := p.queue.in(queue.Unschedulable, w.id)
	if e == nil {
		return
	}
	c.refresh(e.demand)
	d := e.demand
	fits := c.Present(w.Row) && c.feasible(d, w.id, w.Row)
	if fits || !d.neverPreempts && !d.profile.NoPreemption && !c.awaitsVictims(d, w.id) {
		p.queue.Ready(now, e)
	}
}

// wakeNominatedOn calls wakeNominated for the pods of w that are nominated on some rows. Pods nominated on other rows
// are left out: a change on one row does not concern them, and a thousand preemptors of one demand would be evaluated
// each time a victim is deleted.
func (p *Placer) wakeNominatedOn(now unit.Instant, w *waiter, rows []row) {
	for _, r := range rows {
		for _, nominee := range p.cluster.nominated[r] {
			if w.pods[nominee.id] != nil {
				p.wakeNominated(now, nominee)
			}
		}
	}
}

// wakeNominatedOf calls wakeNominated for all nominated pods of w.
func (p *Placer) wakeNominatedOf(now unit.Instant, w *waiter) {
	if len(p.cluster.nominations) < len(w.pods) {
		for id, nominee := range p.cluster.nominations {
			if w.pods[id] != nil {
				p.wakeNominated(now, nominee)
			}
		}
		return
	}
	for id := range w.pods {
		if nominee := p.cluster.nominations[id]; nominee != nil {
			p.wakeNominated(now, nominee)
		}
	}
}

// A search evaluates row by row whether preemption helps a waiter. It is used if many rows have changed at once, for
// the waiter of highest priority first.
type search struct {
	on    bool // it is in progress
	again bool // something has changed since it began: search once more
	check bool // no change is known (flushAfter): also evaluate whether the waiter fits without preemption
	// round orders searches; see before.
	round uint64
	// cursor is the next row.
	cursor row
}

const (
	// searchWork limits how much Next spends on searches: this many rows are evaluated, or searchSkips times as many
	// rows without pods to evict are skipped. Chosen: at 1 to 5 microseconds per row, a placement is delayed by about a
	// millisecond.
	searchWork, searchSkips = 512, 32
	// searchPause is the time between two such steps. Chosen: searches take at most a tenth of a CPU. With a shorter
	// pause, pods for which preemption helps are found sooner: with 5,000 nodes in less than 0.1 s, if they are the
	// only ones.
	searchPause = 10 * time.Millisecond
	// flushAfter is how long a waiter waits before it is evaluated for every row although no change is known. It is
	// upstream's flush of unschedulable pods (podMaxInUnschedulablePodsDuration, 5 minutes). It should find no pod that
	// fits. If it finds one, that is an error of this scheduler, and the pod is counted (Decision.Flushed).
	flushAfter = 5 * time.Minute
)

// startSearch begins a search for w. If one is in progress, another follows.
func (s *waits) startSearch(w *waiter) {
	w.known = false
	if w.search.on {
		w.search.again = true
		return
	}
	s.begin(w, false)
}

func (s *waits) begin(w *waiter, check bool) {
	w.search = search{on: true, check: check, round: s.round}
	s.searching = append(s.searching, w)
}

// before orders searches by round and then by priority. So no waiter has a second search before the others had their
// first.
func (w *waiter) before(x *waiter) int {
	return cmp.Or(
		cmp.Compare(w.search.round, x.search.round),
		cmp.Compare(x.demand.priority, w.demand.priority),
		cmp.Compare(w.number, x.number),
	)
}

// continueSearches continues searches, as far as searchWork allows.
func (p *Placer) continueSearches(now unit.Instant) {
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
		s.round = s.searching[0].search.round
		work = p.searchFor(now, s.searching[0], work)
	}
	p.searchDue = now.Add(searchPause)
}

// searchFor continues the search for w, and returns how much work is left.
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
		there := gainNone
		if w.search.check {
			there = c.gainOn(w, r)
		} else if evicts {
			there = c.gainByPreemption(w, r)
		}
		if there != gainNone {
			p.searchFound(now, w, there)
			return work
		}
	}
	p.searchEnded(now, w)
	return work - searchSkips
}

// searchEnded ends a search that has found nothing.
func (p *Placer) searchEnded(now unit.Instant, w *waiter) {
	again, round := w.search.again, w.search.round
	if p.cluster.waits.end(w); again {
		p.cluster.waits.begin(w, false)
		w.search.round = round + 1
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

// searchFound ends a search that has found a row.
func (p *Placer) searchFound(now unit.Instant, w *waiter, there gain) {
	flushed := w.search.check && !w.search.again && !w.marked
	p.cluster.waits.end(w)
	p.cluster.register(w)
	waited := slices.Collect(maps.Values(w.pods))
	p.activate(now, w, there)
	for _, e := range waited {
		e.flushed = flushed && e.Pool() != queue.Unschedulable && !e.pod.AsksExtenders
	}
}

// beginChecks begins a search for waiters that have waited for flushAfter.
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
