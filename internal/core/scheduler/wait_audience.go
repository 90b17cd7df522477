package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
)

// An audience is the waiters that require the same of the pods around a row, and may evict alike: what happens to a
// counter matters to all of them or to none, and is looked at once for all. Many pods that wait and ask for different
// resources, on different nodes, keep off the same pods.
type audience struct {
	surroundings
	priority int32
	searches bool // see waiter.maySearch
	members  []*waiter
	floor    []int32 // of each hard constraint: floorOf, as of the last change that was heard of

	// What rules keep all of them off the row that something has happened on, and which event that was; see offBy.
	off   RuleSet
	event uint64
}

// listeners are those who hear of changes of a counter.
type listeners struct {
	partners  []*waiter // who wait for anybody at all whom it counts
	audiences []*audience
	bidders   []*demand // for their bids
}

// listenersOf returns the listeners of k, to be added to.
func listenersOf(k *census.Counter) *listeners {
	if k.Listeners == nil {
		k.Listeners = &listeners{}
	}
	return k.Listeners.(*listeners)
}

// join lets w hear what happens to the counters that its demand looks at.
func (s *waits) join(w *waiter) {
	first := w.demand.firstCounter()
	if first == nil {
		return
	}
	a := s.audienceOf(w, first)
	for i := range a.hard { // what has not been heard of yet
		a.floor[i] = min(a.floor[i], a.hard[i].floorOf())
	}
	a.members = append(a.members, w)
	w.audience = a
}

// audienceOf returns the audience of those like w, a new one if there is none. They are found by a counter that they
// look at.
func (s *waits) audienceOf(w *waiter, first *census.Counter) *audience {
	d := w.demand
	for _, a := range s.audiences[first] {
		if a.priority == d.priority && a.searches == w.maySearch() && a.equal(&d.surroundings) {
			return a
		}
	}
	a := &audience{surroundings: d.surroundings, priority: d.priority, searches: w.maySearch()}
	for i := range a.hard {
		a.floor = append(a.floor, a.hard[i].floorOf())
	}
	s.audiences[first] = append(s.audiences[first], a)
	a.eachCounter(func(k *census.Counter) {
		if l := listenersOf(k); !slices.Contains(l.audiences, a) {
			l.audiences = append(l.audiences, a)
		}
	})
	return a
}

// quit undoes join. An audience without members is gone.
func (s *waits) quit(w *waiter) {
	a := w.audience
	if a == nil {
		return
	}
	w.audience = nil
	if a.members = withoutOne(a.members, w); len(a.members) > 0 {
		return
	}
	first := a.firstCounter()
	if s.audiences[first] = withoutOne(s.audiences[first], a); len(s.audiences[first]) == 0 {
		delete(s.audiences, first)
	}
	a.eachCounter(func(k *census.Counter) {
		if l := listenersOf(k); slices.Contains(l.audiences, a) {
			l.audiences = withoutOne(l.audiences, a)
		}
	})
}

// firstCounter is one that is looked at; nil: none is.
func (x *surroundings) firstCounter() (first *census.Counter) {
	x.eachCounter(func(k *census.Counter) {
		if first == nil {
			first = k
		}
	})
	return first
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
	s := &c.waits
	if k.Total > 0 {
		for _, w := range l.partners {
			s.concernAll(w)
		}
	}
	for _, a := range l.audiences {
		evicts := a.searches && c.anyBelow(a.priority)
		here := false
		if sign > 0 {
			here = c.notifyMore(a, k, domain, evicts)
		} else {
			here = c.notifyFewer(a, k, domain, evicts)
		}
		switch {
		case !here:
		case k.Of.Topo.Rows[domain] == 1:
			for _, w := range a.members {
				s.concernRow(w, r)
			}
		default:
			s.concernMarks(a, mark{topo: k.Of.Topo, domain: domain})
		}
	}
}

// concernMarks is concernMark for all of an audience.
func (s *waits) concernMarks(a *audience, m mark) {
	for _, w := range a.members {
		s.concernMark(w, m)
	}
}

// notifyMore: k counts more in domain. That ends a pod's search for company there (here), and the domain with the
// fewest may have become another.
func (c *cluster) notifyMore(a *audience, k *census.Counter, domain int32, evicts bool) (here bool) {
	c.notifyFloor(a, k)
	return slices.Contains(a.together, k) && (evicts || k.At(domain) == 1)
}

// notifyFloor lets a hear if the fewest in a domain of one of its spread constraints are more than they were. k is the
// counter that has changed; nil: any may have.
func (c *cluster) notifyFloor(a *audience, k *census.Counter) {
	for i := range a.hard {
		x := &a.hard[i]
		if x.counter == nil || k != nil && x.counter != k {
			continue
		}
		was := a.floor[i]
		if a.floor[i] = x.floorOf(); a.floor[i] > was {
			c.waits.concernMarks(a, mark{topo: x.topo, spread: x, floor: was})
		}
	}
}

// notifyFewer: k counts fewer in domain. There may be room for one more there, or nobody left to shun; nobody to join
// at all lets a pod begin that joins its like.
func (c *cluster) notifyFewer(a *audience, k *census.Counter, domain int32, evicts bool) (here bool) {
	for i := range a.hard {
		if x := &a.hard[i]; x.counter == k {
			floor := x.floorOf()
			a.floor[i] = min(a.floor[i], floor)
			here = here || evicts || k.At(domain)+x.self-floor <= x.maxSkew
		}
	}
	joined := func(x *census.Counter) bool { return x.Total > 0 }
	if a.togetherSelf && slices.Contains(a.together, k) && (evicts || !slices.ContainsFunc(a.together, joined)) {
		for _, w := range a.members {
			c.waits.concernAll(w)
		}
	}
	shunned := slices.Contains(a.shunnedBy, k)
	if shunned || slices.Contains(a.apart, k) {
		here = here || evicts || k.At(domain) == 0
	}
	if shunned && k.Total == 0 { // pods that are only nominated are looked at otherwise now; see podAffinityFilter.judge
		for _, wish := range c.wishes {
			for _, w := range a.members {
				c.waits.concernRow(w, wish.Row)
			}
		}
	}
	return here
}

// offBy are the rules around that keep all of a off row r by pods that are counted. It is found out once for each
// event.
func (a *audience) offBy(r row, event uint64) RuleSet {
	if a.event == event {
		return a.off
	}
	a.event, a.off = event, 0
	for i := range filters {
		if f := &filters[i]; f.surround != nil && !f.surround.meets(&a.surroundings, r) {
			a.off |= f.rule
		}
	}
	return a.off
}
