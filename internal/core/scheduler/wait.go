package scheduler

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A waiter is a demand with pods in the unschedulable pool: it fits on no row, and preemption does not help on any.
//
// On each row, at least one of the rules in the field rules rejects it, with and without the pods that it could evict.
// So it must be notified only of changes that may end the rejection by one of these rules. It is then evaluated for the
// changed row. If another rule rejects it there, that rule is added. SAT solvers use the same idea (watched literals).
// If one reason holds on every row (block), it is only notified when that reason may have ended.
type waiter struct {
	demand *demand
	number uint64 // numbers waiters in the order in which they began to wait
	pods   map[PodID]*entry
	gone   bool // its last pod has left; it must not be used any more

	rules RuleSet
	block block
	// known says that all rows were evaluated, with and without preemption, and that w was notified of every change
	// since then.
	known bool
	// registered is where the waiter is indexed.
	registered registration
	// audience notifies w of changes of counters; nil: no counter matters to it.
	audience *audience

	// Where something has changed since it was last evaluated.
	marked     bool   // it is in waits.marked
	rows       []row  // on these rows
	marks      []mark // in these domains
	everywhere bool   // on any row

	search search
	place  int          // its index in waits.checking
	checks unit.Instant // when all rows are evaluated again without any known change; see flushAfter
}

// block is one reason why a demand fits on no row at all.
type block uint8

const (
	blockNone     block = iota
	blockForever        // no change ends it: the pod's terms contradict each other, or no rule supports a requirement
	blockVolumes        // because of its claims; see demand.claimsProblem
	blockAffinity       // no pod matches its required affinity
)

// mark is a set of rows: those of a domain, or those that a spread constraint no longer rejects.
type mark struct {
	topo   *census.Topology
	domain int32 // if spread is nil
	// spread, if not nil, stands for all domains that were too full when its fewest was floor, and are not now.
	spread *countedSpread
	floor  int32
}

// marksMax is how many marks a waiter has at most; with more, it is evaluated for all rows. Chosen: testing whether a
// row is in a mark takes a nanosecond, evaluating it a hundred.
const marksMax = 16

func (m *mark) has(r row) bool {
	domain := m.topo.At(r)
	if domain == census.NoDomain {
		return false
	}
	if m.spread == nil {
		return domain == m.domain
	}
	filled := m.spread.counter.At(domain) + m.spread.self - m.spread.maxSkew
	return filled > m.floor && filled <= m.spread.fewest()
}

// fewest returns the fewest pods of any domain, with which the count of a domain is compared. It is zero if there are
// fewer than minDomains domains.
func (a *countedSpread) fewest() int32 {
	if a.counter == nil || a.counter.Coverage.Domains < int(a.minDomains) {
		return 0
	}
	return a.counter.Fewest()
}

// waits are all waiters, with the indexes by which they are found.
type waits struct {
	of      map[*demand]*waiter
	numbers uint64 // counts waiters, to number them

	room   rowIndex // the waiters to notify when a pod has left a row or its allocatable has grown
	node   rowIndex // the waiters to notify when facts about a node have changed
	events uint64   // counts the uses of both indexes
	// audiences are indexed by the first counter on which they depend.
	audiences map[*census.Counter][]*audience
	// By claim and by storage class of claims.
	byClaim map[volumes.ClaimKey][]*waiter
	byClass map[string][]*waiter

	// What has changed since markByRows was last called.
	left         []row // rows that a pod has left, or whose allocatable has grown
	changed      []row // rows with changed facts about the node
	domainsMoved bool  // rows have moved between domains and scopes
	// The waiters that evaluateWaiters will evaluate.
	marked []*waiter

	searching []*waiter // those whose search is in progress
	round     uint64    // search.round of the search that was last continued
	// checking orders waiters by waiter.checks.
	checking heap.Heap[*waiter]
	// preemptors is how many waiters of each priority may preempt.
	preemptors map[int32]int
}

func newWaits() waits {
	return waits{
		of:         map[*demand]*waiter{},
		room:       newRowIndex(true),
		node:       newRowIndex(false),
		byClaim:    map[volumes.ClaimKey][]*waiter{},
		byClass:    map[string][]*waiter{},
		audiences:  map[*census.Counter][]*audience{},
		preemptors: map[int32]int{},
		checking: heap.New(
			func(a, b *waiter) int {
				return cmp.Or(cmp.Compare(a.checks, b.checks), cmp.Compare(a.number, b.number))
			},
			func(w *waiter) *int { return &w.place },
		),
	}
}

// park adds e to the waiter of its demand.
func (c *cluster) park(now unit.Instant, e *entry) *waiter {
	s := &c.waits
	w := s.of[e.demand]
	if w == nil {
		s.numbers++
		w = &waiter{demand: e.demand, number: s.numbers, pods: map[PodID]*entry{}}
		s.of[e.demand] = w
		s.checkLater(now, w)
		if w.mayPreempt() {
			s.preemptors[w.demand.priority]++
		}
	}
	w.pods[e.pod.ID] = e
	return w
}

// unpark removes e from its waiter.
func (c *cluster) unpark(e *entry) {
	s := &c.waits
	w := s.of[e.demand]
	delete(w.pods, e.pod.ID)
	if len(w.pods) > 0 {
		return
	}
	w.gone = true
	delete(s.of, e.demand)
	s.forget(w)
	s.checking.Remove(w)
	if w.mayPreempt() {
		if s.preemptors[w.demand.priority]--; s.preemptors[w.demand.priority] == 0 {
			delete(s.preemptors, w.demand.priority)
		}
	}
}

// mayPreempt reports whether the pods of w may ever preempt others.
func (w *waiter) mayPreempt() bool { return !w.demand.neverPreempts && !w.demand.profile.NoPreemption }

// mark marks w to be evaluated.
func (s *waits) mark(w *waiter) {
	if !w.marked {
		w.marked = true
		s.marked = append(s.marked, w)
	}
}

// markRow marks w to be evaluated for row r, markAll for all rows, markSome for the rows of m.
func (s *waits) markRow(w *waiter, r row) {
	if n := len(w.rows); n == 0 || w.rows[n-1] != r {
		w.rows = append(w.rows, r)
	}
	s.mark(w)
}

func (s *waits) markAll(w *waiter) {
	w.everywhere = true
	s.mark(w)
}

func (s *waits) markSome(w *waiter, m mark) {
	switch {
	case w.everywhere || slices.Contains(w.marks, m):
	case len(w.marks) == marksMax:
		w.everywhere = true
	default:
		w.marks = append(w.marks, m)
	}
	s.mark(w)
}

// blockOf returns the reason why d fits on no row, if there is one for all rows.
func (c *cluster) blockOf(d *demand) block {
	switch {
	case len(d.unsupported) > 0, d.conflict:
		return blockForever
	case d.claimsProblem() != "":
		return blockVolumes
	case d.unmatchedAffinity() != nil:
		return blockAffinity
	}
	return blockNone
}

// unmatchedAffinity returns a counter of a required affinity term that is zero, so that d fits nowhere; nil: there is
// none.
func (d *demand) unmatchedAffinity() *census.Counter {
	if d.affinitySelf || d.profile.Skip["InterPodAffinity"] {
		return nil
	}
	for _, k := range d.affinityPods {
		if k.Total == 0 {
			return k
		}
	}
	return nil
}

// registration is where a waiter is indexed, and what that depends on.
type registration struct {
	any bool // it is indexed at all

	// What the waiter and its demand had when it was indexed. If it is the same, register has nothing to do.
	block                block
	rules                RuleSet
	volumes              *volumes.Needs
	antiAffinityOfOthers []*census.Counter

	unmatched *census.Counter    // the counter whose listeners have it; nil: none
	claims    []volumes.ClaimKey // its keys in waits.byClaim
	classes   []string           // its keys in waits.byClass
	room      spot               // its place in waits.room
	node      spot               // its place in waits.node
}

// register indexes w so that it is notified of what may end the rejections of its demand, and of nothing else.
func (c *cluster) register(w *waiter) {
	s := &c.waits
	d := w.demand
	was := &w.registered
	if was.any && was.block == w.block && was.rules == w.rules && was.volumes == d.volumes &&
		slices.Equal(was.antiAffinityOfOthers, d.antiAffinityOfOthers) {
		return
	}
	if w.rules&rulesOfRoom != 0 {
		w.rules |= RuleResources // the index of resources decides whether it is notified
	}
	s.forget(w)
	w.registered = registration{
		any:                  true,
		block:                w.block,
		rules:                w.rules,
		volumes:              d.volumes,
		antiAffinityOfOthers: slices.Clone(d.antiAffinityOfOthers),
	}
	s.registerClaims(w)
	switch w.block {
	case blockForever, blockVolumes:
		return
	case blockAffinity:
		w.registered.unmatched = d.unmatchedAffinity()
		l := listenersOf(w.registered.unmatched)
		l.unmatched = append(l.unmatched, w)
		return
	}
	if w.rules&rulesAround != 0 {
		s.join(w)
	}
	w.registered.node = s.node.add(c, w)
	if w.rules&rulesOfRoom != 0 {
		w.registered.room = s.room.add(c, w)
	}
}

func (s *waits) registerClaims(w *waiter) {
	d := w.demand
	d.mounts.EachClaim(func(key volumes.ClaimKey) {
		if !slices.Contains(w.registered.claims, key) {
			w.registered.claims = append(w.registered.claims, key)
			s.byClaim[key] = append(s.byClaim[key], w)
		}
	})
	if d.volumes == nil {
		return
	}
	for _, claim := range d.volumes.Claims {
		if class := claim.Seen.Class; !slices.Contains(w.registered.classes, class) {
			w.registered.classes = append(w.registered.classes, class)
			s.byClass[class] = append(s.byClass[class], w)
		}
	}
}

// forget undoes register.
func (s *waits) forget(w *waiter) {
	s.leave(w)
	if k := w.registered.unmatched; k != nil {
		l := listenersOf(k)
		l.unmatched = withoutOne(l.unmatched, w)
	}
	for _, key := range w.registered.claims {
		if s.byClaim[key] = withoutOne(s.byClaim[key], w); len(s.byClaim[key]) == 0 {
			delete(s.byClaim, key)
		}
	}
	for _, class := range w.registered.classes {
		if s.byClass[class] = withoutOne(s.byClass[class], w); len(s.byClass[class]) == 0 {
			delete(s.byClass, class)
		}
	}
	s.room.remove(w, w.registered.room)
	s.node.remove(w, w.registered.node)
	w.registered = registration{}
}

// withoutOne removes x from list. It changes the order of the others.
func withoutOne[T comparable](list []T, x T) []T {
	var none T
	i := slices.Index(list, x)
	last := len(list) - 1
	list[i], list[last] = list[last], none
	return list[:last]
}
