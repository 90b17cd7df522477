package scheduler

import (
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
)

// An audience is all waiters with the same requirements about the pods near a row, the same priority and the same
// preemption policy. A change of a counter concerns all of them or none, so it is evaluated once for all. Often many
// waiting pods have the same anti-affinity and differ only in resources or node affinity.
type audience struct {
	surroundings
	priority int32
	preempts bool // see waiter.mayPreempt
	members  []*waiter
	floor    []int32 // of each hard constraint: the value of fewest at the last change that was notified

	// rejecting are the rules that reject all members on the row of the rowEvent with number event; see rejectedBy.
	rejecting RuleSet
	event     uint64
}

// listeners are notified of changes of a counter.
type listeners struct {
	unmatched []*waiter // waiters whose affinity needs any pod that it counts
	audiences []*audience
	withCosts []*demand // demands that keep costs
}

// listenersOf returns the listeners of k, so that some can be added.
func listenersOf(k *census.Counter) *listeners {
	if k.Listeners == nil {
		k.Listeners = &listeners{}
	}
	return k.Listeners.(*listeners)
}

// join adds w to the audience of its demand's surroundings.
func (s *waits) join(w *waiter) {
	first := w.demand.firstCounter()
	if first == nil {
		return
	}
	a := s.audienceOf(w, first)
	for i := range a.hard { // the fewest may have risen since then, without a notification yet
		a.floor[i] = min(a.floor[i], a.hard[i].fewest())
	}
	a.members = append(a.members, w)
	w.audience = a
}

// audienceOf returns the audience for w, and creates it if necessary. first is the counter by which it is indexed.
func (s *waits) audienceOf(w *waiter, first *census.Counter) *audience {
	d := w.demand
	for _, a := range s.audiences[first] {
		if a.priority == d.priority && a.preempts == w.mayPreempt() && a.equal(&d.surroundings) {
			return a
		}
	}
	a := &audience{surroundings: d.surroundings, priority: d.priority, preempts: w.mayPreempt()}
	for i := range a.hard {
		a.floor = append(a.floor, a.hard[i].fewest())
	}
	s.audiences[first] = append(s.audiences[first], a)
	a.eachCounter(func(k *census.Counter) {
		if l := listenersOf(k); !slices.Contains(l.audiences, a) {
			l.audiences = append(l.audiences, a)
		}
	})
	return a
}

// leave undoes join. An audience without members is deleted.
func (s *waits) leave(w *waiter) {
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

// firstCounter returns the first counter on which x depends; nil: there is none.
func (x *surroundings) firstCounter() (first *census.Counter) {
	x.eachCounter(func(k *census.Counter) {
		if first == nil {
			first = k
		}
	})
	return first
}

// notifyCounter notifies the listeners of k that k counts more on row r than before (sign 1) or less (sign -1).
func (c *cluster) notifyCounter(k *census.Counter, r row, sign int32) {
	l, heard := k.Listeners.(*listeners)
	if !heard {
		return
	}
	domain := k.Of.Topo.At(r)
	if domain == census.NoDomain {
		return
	}
	c.costsChanged(k, domain)
	s := &c.waits
	if k.Total > 0 {
		for _, w := range l.unmatched {
			s.markAll(w)
		}
	}
	for _, a := range l.audiences {
		evicts := a.preempts && c.anyBelow(a.priority)
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
				s.markRow(w, r)
			}
		default:
			s.markSomeOf(a, mark{topo: k.Of.Topo, domain: domain})
		}
	}
}

// markSomeOf is markSome for all waiters of an audience.
func (s *waits) markSomeOf(a *audience, m mark) {
	for _, w := range a.members {
		s.markSome(w, m)
	}
}

// notifyMore handles that k counts more in domain. It returns whether required affinity may be satisfied in that domain
// now. The fewest pods of a spread constraint may have risen, too.
func (c *cluster) notifyMore(a *audience, k *census.Counter, domain int32, evicts bool) (here bool) {
	c.notifyFloor(a, k)
	return slices.Contains(a.affinityPods, k) && (evicts || k.At(domain) == 1)
}

// notifyFloor notifies a if the fewest pods of one of its spread constraints have risen. k is the counter that changed;
// nil: any may have changed.
func (c *cluster) notifyFloor(a *audience, k *census.Counter) {
	for i := range a.hard {
		x := &a.hard[i]
		if x.counter == nil || k != nil && x.counter != k {
			continue
		}
		was := a.floor[i]
		if a.floor[i] = x.fewest(); a.floor[i] > was {
			c.waits.markSomeOf(a, mark{topo: x.topo, spread: x, floor: was})
		}
	}
}

// notifyFewer handles that k counts less in domain. It returns whether a spread constraint or anti-affinity may be
// satisfied in that domain now. If the required affinity matches no pod anywhere any more, a pod that it matches itself
// may go anywhere, as the first of its group.
func (c *cluster) notifyFewer(a *audience, k *census.Counter, domain int32, evicts bool) (here bool) {
	for i := range a.hard {
		if x := &a.hard[i]; x.counter == k {
			floor := x.fewest()
			a.floor[i] = min(a.floor[i], floor)
			here = here || evicts || k.At(domain)+x.self-floor <= x.maxSkew
		}
	}
	hasPods := func(x *census.Counter) bool { return x.Total > 0 }
	if a.affinitySelf && slices.Contains(a.affinityPods, k) && (evicts || !slices.ContainsFunc(a.affinityPods, hasPods)) {
		for _, w := range a.members {
			c.waits.markAll(w)
		}
	}
	ofOthers := slices.Contains(a.antiAffinityOfOthers, k)
	if ofOthers || slices.Contains(a.antiAffinityPods, k) {
		here = here || evicts || k.At(domain) == 0
	}
	if ofOthers && k.Total == 0 { // nominated pods count differently now; see podAffinityFilter.judge
		for _, nominee := range c.nominations {
			for _, w := range a.members {
				c.waits.markRow(w, nominee.Row)
			}
		}
	}
	return here
}

// rejectedBy returns the rules that reject all waiters of a on row r because of pods on rows. It is computed once for
// each event.
func (a *audience) rejectedBy(r row, event uint64) RuleSet {
	if a.event == event {
		return a.rejecting
	}
	a.event, a.rejecting = event, 0
	for i := range filters {
		if f := &filters[i]; f.surround != nil && !f.surround.meets(&a.surroundings, r) {
			a.rejecting |= f.rule
		}
	}
	return a.rejecting
}
