package scheduler

import (
	"cmp"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/census"
	"github.com/plimsoll-dev/plimsoll/internal/core/scheduler/volumes"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// A waiter is a demand with pods in the unschedulable pool: it fits on no row, and no eviction makes it fit on one.
//
// What keeps it off each row is one of rules at least, with and without the pods that it could evict. So it need hear
// only of what may undo one of these, there, and is asked about that row then: another rule that objects joins rules.
// This is what SAT solvers do with watched literals. Where one reason holds on every row (block), it hears of the end
// of that reason only.
type waiter struct {
	demand *demand
	number uint64 // of waiters, in the order in which they began to wait
	pods   map[PodID]*entry
	gone   bool // its last pod has left

	rules RuleSet
	block block
	// known: all rows were asked, with evictions as without, and what has happened since it has heard.
	known bool
	heard registration
	// audience is by whom w hears what happens to counters; nil: it does not.
	audience *audience

	// What has happened since it was last asked: on rows; to domains; anything anywhere.
	concerned  bool
	rows       []row
	marks      []mark
	everywhere bool

	search search
	place  int          // in waits.checking
	checks unit.Instant // when all rows are asked again though nothing is known to have happened; see flushAfter
}

// block is a reason for which a demand fits on no row at all.
type block uint8

const (
	blockNone    block = iota
	blockForGood       // no fact ends it: the terms of the pod contradict each other, or no rule can honour it
	blockVolumes       // its claims; see demand.whole
	blockPartner       // nobody is there to join
)

// mark is a set of rows: those of a domain, or those that a spread constraint keeps the demand off no longer.
type mark struct {
	topo   *census.Topology
	domain int32
	spread *spreadAsk // if not nil: of the domains, those that were full when the fewest was floor, and are not now
	floor  int32
}

// marksMax is after how many marks a waiter is asked about all rows. Chosen: to look whether a row is in one takes a
// nanosecond, to ask about it a hundred.
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
	return filled > m.floor && filled <= m.spread.floorOf()
}

// floorOf is what a domain's count is compared with: that of the domain with the fewest, or zero where there are too
// few domains.
func (a *spreadAsk) floorOf() int32 {
	if a.counter == nil || a.counter.Ground.Domains < int(a.minDomains) {
		return 0
	}
	return a.counter.Fewest()
}

// waits are the waiters, and by what each is found.
type waits struct {
	of      map[*demand]*waiter
	numbers uint64

	room   rowIndex // those that hear where something has left, or grown
	node   rowIndex // those that hear of nodes whose facts are others
	events uint64   // that either was asked about
	// audiences are found by the first counter that they look at.
	audiences map[*census.Counter][]*audience
	// By what claims come down to.
	byClaim map[volumes.ClaimKey][]*waiter
	byClass map[string][]*waiter

	// What has happened since waiters were last asked.
	left, changed []row
	redrawn       bool // rows have come to domains and scopes, or left them
	concerned     []*waiter

	searching []*waiter
	turn      uint64 // of the search that was gone on with last
	checking  heap.Heap[*waiter]
	// preemptors is how many waiters of each priority may evict.
	preemptors map[int32]int
}

func newWaits() waits {
	return waits{
		of: map[*demand]*waiter{}, room: newRowIndex(true), node: newRowIndex(false), byClaim: map[volumes.ClaimKey][]*waiter{}, byClass: map[string][]*waiter{},
		audiences: map[*census.Counter][]*audience{}, preemptors: map[int32]int{},
		checking: heap.New(
			func(a, b *waiter) int {
				return cmp.Or(cmp.Compare(a.checks, b.checks), cmp.Compare(a.number, b.number))
			},
			func(w *waiter) *int { return &w.place },
		),
	}
}

// park lets e wait with the others of its demand.
func (c *cluster) park(now unit.Instant, e *entry) *waiter {
	s := &c.waits
	w := s.of[e.demand]
	if w == nil {
		s.numbers++
		w = &waiter{demand: e.demand, number: s.numbers, pods: map[PodID]*entry{}}
		s.of[e.demand] = w
		s.checkLater(now, w)
		if w.maySearch() {
			s.preemptors[w.demand.priority]++
		}
	}
	w.pods[e.pod.ID] = e
	return w
}

// unpark ends the waiting of e.
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
	if w.maySearch() {
		if s.preemptors[w.demand.priority]--; s.preemptors[w.demand.priority] == 0 {
			delete(s.preemptors, w.demand.priority)
		}
	}
}

// maySearch reports whether the pods of w may ever evict others.
func (w *waiter) maySearch() bool { return !w.demand.neverPreempts && !w.demand.profile.NoPreemption }

// concern notes that w is to be asked.
func (s *waits) concern(w *waiter) {
	if !w.concerned {
		w.concerned = true
		s.concerned = append(s.concerned, w)
	}
}

func (s *waits) concernRow(w *waiter, r row) {
	if n := len(w.rows); n == 0 || w.rows[n-1] != r {
		w.rows = append(w.rows, r)
	}
	s.concern(w)
}

func (s *waits) concernAll(w *waiter) {
	w.everywhere = true
	s.concern(w)
}

func (s *waits) concernMark(w *waiter, m mark) {
	switch {
	case w.everywhere || slices.Contains(w.marks, m):
	case len(w.marks) == marksMax:
		w.everywhere = true
	default:
		w.marks = append(w.marks, m)
	}
	s.concern(w)
}

// blockOf finds a reason for which d fits on no row.
func (c *cluster) blockOf(d *demand) block {
	switch {
	case len(d.unsupported) > 0, d.conflict:
		return blockForGood
	case d.whole() != "":
		return blockVolumes
	case d.partner() != nil:
		return blockPartner
	}
	return blockNone
}

// partner is a counter that keeps d off every row as long as it counts nobody; nil: none does.
func (d *demand) partner() *census.Counter {
	if d.togetherSelf || d.profile.Skip["InterPodAffinity"] {
		return nil
	}
	for _, k := range d.together {
		if k.Total == 0 {
			return k
		}
	}
	return nil
}

// registration is by what a waiter is found.
type registration struct {
	any     bool
	block   block
	rules   RuleSet
	volumes *volumes.Ask
	shunned []*census.Counter
	partner *census.Counter
	claims  []volumes.ClaimKey
	classes []string
	room    spot
	node    spot
}

// register lets w hear of what may undo what keeps its demand off, and of no more.
func (c *cluster) register(w *waiter) {
	s, d, was := &c.waits, w.demand, &w.heard
	if was.any && was.block == w.block && was.rules == w.rules && was.volumes == d.volumes && slices.Equal(was.shunned, d.shunnedBy) {
		return
	}
	if w.rules&rulesOfRoom != 0 {
		w.rules |= RuleResources // what is asked for decides whether it hears
	}
	s.forget(w)
	w.heard = registration{any: true, block: w.block, rules: w.rules, volumes: d.volumes, shunned: slices.Clone(d.shunnedBy)}
	s.registerClaims(w)
	switch w.block {
	case blockForGood, blockVolumes:
		return
	case blockPartner:
		w.heard.partner = d.partner()
		l := listenersOf(w.heard.partner)
		l.partners = append(l.partners, w)
		return
	}
	if w.rules&rulesAround != 0 {
		s.join(w)
	}
	w.heard.node = s.node.add(c, w)
	if w.rules&rulesOfRoom != 0 {
		w.heard.room = s.room.add(c, w)
	}
}

func (s *waits) registerClaims(w *waiter) {
	d := w.demand
	d.wants.EachClaim(func(key volumes.ClaimKey) {
		if !slices.Contains(w.heard.claims, key) {
			w.heard.claims = append(w.heard.claims, key)
			s.byClaim[key] = append(s.byClaim[key], w)
		}
	})
	if d.volumes == nil {
		return
	}
	for _, claim := range d.volumes.Claims {
		if class := claim.Seen.Class; !slices.Contains(w.heard.classes, class) {
			w.heard.classes = append(w.heard.classes, class)
			s.byClass[class] = append(s.byClass[class], w)
		}
	}
}

// forget undoes register.
func (s *waits) forget(w *waiter) {
	s.quit(w)
	if k := w.heard.partner; k != nil {
		l := listenersOf(k)
		l.partners = withoutOne(l.partners, w)
	}
	for _, key := range w.heard.claims {
		if s.byClaim[key] = withoutOne(s.byClaim[key], w); len(s.byClaim[key]) == 0 {
			delete(s.byClaim, key)
		}
	}
	for _, class := range w.heard.classes {
		if s.byClass[class] = withoutOne(s.byClass[class], w); len(s.byClass[class]) == 0 {
			delete(s.byClass, class)
		}
	}
	s.room.remove(w, w.heard.room)
	s.node.remove(w, w.heard.node)
	w.heard = registration{}
}

// withoutOne takes x out of list, and changes the order of the others.
func withoutOne[T comparable](list []T, x T) []T {
	var none T
	i := slices.Index(list, x)
	last := len(list) - 1
	list[i], list[last] = list[last], none
	return list[:last]
}
