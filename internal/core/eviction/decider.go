package eviction

import (
	"cmp"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Decision is what to do, and why.
type Decision struct {
	Conditions []Condition // those that hold, sorted
	Met        []Met       // in the order in which they are answered
	Starved    []Resource  // for which Reclaim or Victims are
	Reclaim    []Reclaim   // begin at once, beside each other
	Ranking    []Ranked    // of the first need, when one was to be answered by pods
	Victims    []Victim    // in order; kill beside each other

	// Near: a line of memory is near, met or not. Who has to act soon should keep what it needs for that in memory.
	Near bool

	// Wake is the latest moment at which to look again; events of the kernel may come first.
	Wake unit.Instant
}

// Met is a threshold that is met, and what follows from it.
type Met struct {
	Threshold
	Observation
	Line    int64        // the threshold in the unit of the signal
	Since   unit.Instant // met without a break
	Acts    bool         // its grace is over
	Deficit int64        // what is missing of Line and minimum reclaim; only when it acts, like what follows
	Coming  int64        // of that, what dying pods will free
	Taken   int64        // of that, what this decision's victims will free
	Held    string       // why nothing, or less, is done about the rest now; empty: all is
}

// Decider decides for one node. It is not safe for concurrent use.
type Decider struct {
	config     Config
	disks      Disks
	thresholds []Threshold // of config, and those of containerfs for disks

	since  map[Threshold]unit.Instant          // met since; not the others
	acting map[Threshold]bool                  // acted in the step before: met until its minimum reclaim is there, too
	seen   map[Condition]unit.Instant          // when a condition was observed last
	spent  map[allocatable.Signal]unit.Instant // the observation for which victims were chosen last
	trends map[allocatable.Signal]trend        // how fast signals fall
	asked  map[Step]unit.Instant               // reclaim that was asked for last
	kills  map[string]unit.Instant             // own victims by id: when they are to be killed

	podsDue unit.Instant // when pods are to be looked at again for what acts; zero: nothing does
}

// New returns a Decider to which nothing has happened yet.
func New(c Config) *Decider {
	return &Decider{
		config: c, thresholds: withContainerFS(c.Thresholds, OneDisk),
		since: map[Threshold]unit.Instant{}, acting: map[Threshold]bool{}, seen: map[Condition]unit.Instant{},
		spent: map[allocatable.Signal]unit.Instant{}, trends: map[allocatable.Signal]trend{}, asked: map[Step]unit.Instant{},
		kills: map[string]unit.Instant{},
	}
}

// Quiet reports whether pods need not be looked at for a Step at now: Facts may be Quick then. They need to be when a
// threshold begins to act, and as often as the step before asked for while one does. Limits of local storage have their own
// pace, which is the shell's.
func (d *Decider) Quiet(now unit.Instant, signals map[allocatable.Signal]Observation) bool {
	if !d.podsDue.IsZero() && now >= d.podsDue {
		return false
	}
	for _, t := range d.thresholds {
		o, ok := signals[t.Signal]
		if !ok {
			continue
		}
		since, met := d.since[t]
		if !met {
			since = now
		}
		if o.Available < t.line(o) && !d.acting[t] && now.Sub(since) >= t.Grace {
			return false
		}
		if isNear(t, o) && d.easeDue(now) {
			return false
		}
	}
	return true
}

// Step folds in what was observed at now, which must not go backwards, and decides.
func (d *Decider) Step(now unit.Instant, f Facts) Decision {
	if f.Disks != d.disks {
		d.disks, d.thresholds = f.Disks, withContainerFS(d.config.Thresholds, f.Disks)
	}
	s := &step{Decider: d, now: now, facts: f, chosen: map[string]int{}, limited: map[string]bool{}}
	s.follow()
	s.judge()
	s.holdConditions()
	s.readEnds()
	s.out.Near = slices.ContainsFunc(s.thresholds, s.near)
	if !f.Quick {
		s.enforceLimits()
		for i := range s.out.Met {
			s.answer(&s.out.Met[i])
		}
		s.easeMemory()
		s.settle()
		s.planPods()
	}
	s.look()
	return s.out
}

// step is one call of Step.
type step struct {
	*Decider
	now     unit.Instant
	facts   Facts
	ends    map[string]unit.Instant // by id of pods that end: when they are killed. Victims are added as they are chosen
	chosen  map[string]int          // victims' places in out.Victims by id
	limited map[string]bool         // of these, who exceeded a limit
	needs   []*need                 // answered by pods
	out     Decision
}

// line returns the threshold in the unit of its signal.
func (t Threshold) line(o Observation) int64 { return t.Value.Of(o.Capacity) }

// goal returns what is to be available when pods were evicted.
func (t Threshold) goal(o Observation) int64 { return t.line(o) + t.Reclaim.Of(o.Capacity) }

// judge finds the thresholds that are met. One that acted already is met until its minimum reclaim is there.
func (s *step) judge() {
	since := map[Threshold]unit.Instant{}
	for _, t := range s.thresholds {
		o, ok := s.facts.Signals[t.Signal]
		if !ok || o.Available >= t.line(o) && !(s.acting[t] && o.Available < t.goal(o)) {
			continue
		}
		if _, again := since[t]; again {
			continue // equal thresholds are one
		}
		from, known := s.since[t]
		if !known {
			from = s.now
		}
		since[t] = from
		m := Met{Threshold: t, Observation: o, Line: t.line(o), Since: from, Acts: s.now.Sub(from) >= t.Grace}
		if m.Acts {
			m.Deficit = max(0, t.goal(o)-o.Available)
		}
		s.out.Met = append(s.out.Met, m)
	}
	s.since, s.acting = since, map[Threshold]bool{}
	for _, m := range s.out.Met {
		if m.Acts {
			s.acting[m.Threshold] = true
		}
	}
	slices.SortStableFunc(s.out.Met, inOrder)
}

// inOrder sorts what is answered first to the front: what acts, hard before soft, memory before the rest.
func inOrder(a, b Met) int {
	return cmp.Or(
		trueFirst(a.Acts, b.Acts), trueFirst(a.IsHard(), b.IsHard()),
		trueFirst(resourceOf(a.Signal) == Memory, resourceOf(b.Signal) == Memory),
		cmp.Compare(slices.Index(allocatable.Signals(), a.Signal), slices.Index(allocatable.Signals(), b.Signal)),
		cmp.Compare(b.Line, a.Line),
	)
}

func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// holdConditions finds the conditions that hold: those observed, and those observed less than the transition period ago.
func (s *step) holdConditions() {
	for _, m := range s.out.Met {
		s.seen[conditionOf(m.Signal)] = s.now
	}
	for _, c := range slices.Sorted(maps.Keys(s.seen)) {
		if observed := s.seen[c]; observed == s.now || s.now.Sub(observed) < s.config.Transition {
			s.out.Conditions = append(s.out.Conditions, c)
		} else {
			delete(s.seen, c)
		}
	}
}

// settle remembers what this step decided.
func (s *step) settle() {
	for _, v := range s.out.Victims {
		s.kills[v.ID] = s.now.Add(v.Grace)
	}
	for _, n := range s.needs {
		if n.taken > 0 && !n.met.At.IsZero() {
			s.spent[n.met.Signal] = n.met.At
		}
	}
	for _, r := range s.out.Reclaim {
		s.asked[r.Step] = s.now
	}
	slices.Sort(s.out.Starved)
	s.out.Starved = slices.Compact(s.out.Starved)
}
