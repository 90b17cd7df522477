package scheduler

// A rowEvent is a change on a row, with results that are shared by the waiters that may be notified of it.
type rowEvent struct {
	c          *cluster
	row        row
	number     uint64             // the value of waits.events
	preemptors bool               // some waiter could evict some pod on any row
	above      map[aboveKey]int64 // results of freeAbove
	below      map[int32]bool     // by priority: some pod on the row has a lower one
}

type aboveKey struct {
	column   int
	priority int32
}

// mayHelp reports whether w may fit on the row now, or may be able to preempt pods there. Neither is so if a rule still
// rejects w there and w can evict no pod there.
func (e *rowEvent) mayHelp(w *waiter) bool {
	rules := w.rules
	if a := w.audience; a != nil && rules&rulesAround != 0 && a.rejectedBy(e.row, e.number)&rules != 0 {
		return w.mayPreempt() && e.anyBelow(w.demand.priority) && e.hasRoom(w, true)
	}
	return e.hasRoom(w, false) || w.mayPreempt() && e.anyBelow(w.demand.priority) && e.hasRoom(w, true)
}

// hasRoom reports whether the row has room for w. If evicting is true, the pods that w may evict do not count. It
// returns true for waiters that were not rejected because of resources: another of their rejections may have ended.
func (e *rowEvent) hasRoom(w *waiter, evicting bool) bool {
	asks := w.registered.node.asks
	if w.rules&RuleResources == 0 || asks[0].value == anyRoom {
		return true
	}
	if !evicting {
		return passesResources(&e.c.state, &w.demand.needs, e.row)
	}
	for _, q := range asks {
		if q.value > e.freeAbove(q.column, w.demand.priority) {
			return false
		}
	}
	return true
}

// freeAbove returns how much of a column's resource would be free without the pods below a priority.
func (e *rowEvent) freeAbove(column int, priority int32) int64 {
	key := aboveKey{column: column, priority: priority}
	free, known := e.above[key]
	if !known {
		if e.above == nil {
			e.above = map[aboveKey]int64{}
		}
		free = e.c.freeAbove(e.row, column, priority)
		e.above[key] = free
	}
	return free
}

// anyBelow reports whether a pod on the row has a priority below p.
func (e *rowEvent) anyBelow(p int32) bool {
	if !e.preemptors {
		return false
	}
	any, known := e.below[p]
	if !known {
		if e.below == nil {
			e.below = map[int32]bool{}
		}
		any = e.c.anyBelowOn(e.row, p)
		e.below[p] = any
	}
	return any
}

// freeIn returns how much of a column's resource is free on row r, and how much could be if all pods were evicted.
func (c *cluster) freeIn(r row, column int) (free, most int64) {
	if column == podsColumn {
		return c.podsMax[r] - c.podCount[r], c.podsMax[r]
	}
	most = c.columns.has(column, r)
	return most - c.columns.takes(column, r), most
}

// freeAbove is rowEvent.freeAbove for any row; it keeps no results.
func (c *cluster) freeAbove(r row, column int, priority int32) (free int64) {
	free, _ = c.freeIn(r, column)
	for _, h := range c.podsOn[r] {
		if h.class.priority >= priority {
			continue
		}
		if column == podsColumn {
			free++
			continue
		}
		for _, q := range h.class.requests {
			if q.column == column {
				free += q.value
			}
		}
	}
	return free
}

// anyPreemptor reports whether some waiter could evict some pod on a row.
func (s *waits) anyPreemptor(c *cluster) bool {
	for p := range s.preemptors {
		if c.anyBelow(p) {
			return true
		}
	}
	return false
}
