package eviction

import (
	"cmp"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Decision is what to do, and why. It does not change after Step returned it.
type Decision struct {
	Conditions []Condition // node conditions that are true, sorted
	Met        []Met       // in the order in which they are answered
	Starved    []Resource  // resources that Reclaim or Victims are for
	Reclaim    []Reclaim   // to begin at once, all at the same time
	Ranking    []Ranked    // of the first need that was answered with pods; nil if there was none
	Victims    []Victim    // in the order of choice; to be killed at the same time

	// Near: available memory is near a threshold, whether below or above it. A process that must act soon should then
	// lock its memory.
	Near bool

	// Wake is the latest moment for the next Step. A kernel notification may make it earlier.
	Wake unit.Instant
}

// Met is a threshold that is met, and what follows from it.
type Met struct {
	Threshold
	Observation
	Amount int64        `json:"Line"` // the threshold in the unit of the signal; journals have had it as Line
	Since  unit.Instant // met without interruption since then
	Acts   bool         // the grace period is over
	// How much is missing up to Amount plus minimum reclaim; like the fields below only set when Acts.
	Deficit int64
	Coming  int64  // the part of Deficit that pods which are being killed will free
	Taken   int64  // the part of Deficit that the victims of this decision will free
	Held    string // why nothing, or less than the rest of Deficit, is done now; empty: everything is done
}

// Decider decides for one node. It is not safe for concurrent use. Only Step changes the fields below config, and State
// returns them.
type Decider struct {
	config     Config
	disks      Disks       // as last observed
	thresholds []Threshold // those of config, and those of containerfs that follow from disks

	since map[Threshold]unit.Instant // since when a threshold is met; no entry: it is not met
	// Thresholds that acted in the previous step; they stay met until their minimum reclaim is available.
	acting map[Threshold]bool
	seen   map[Condition]unit.Instant          // when a condition was observed last; no entry: it is false
	spent  map[allocatable.Signal]unit.Instant // time of the observation for which victims were last chosen
	trends map[allocatable.Signal]trend        // how fast each signal falls
	asked  map[Step]unit.Instant               // when a reclaim was last asked for
	kills  map[string]unit.Instant             // when the own victims are killed, by pod id

	podsDue unit.Instant // when pods must be observed again, because a threshold acts; zero: none acts
}

// New returns a Decider without history.
func New(c Config) *Decider {
	return &Decider{
		config: c, thresholds: withContainerFS(c.Thresholds, OneDisk),
		since: map[Threshold]unit.Instant{}, acting: map[Threshold]bool{}, seen: map[Condition]unit.Instant{},
		spent: map[allocatable.Signal]unit.Instant{}, trends: map[allocatable.Signal]trend{}, asked: map[Step]unit.Instant{},
		kills: map[string]unit.Instant{},
	}
}

// Quiet reports whether a Step at now can do without observations of pods (Facts.Quick). It cannot when a threshold
// begins to act, and not at the times that the previous step asked for while one acts. Limits of local storage are
// checked at other times, which the shell chooses.
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
		if o.Available < t.amount(o) && !d.acting[t] && now.Sub(since) >= t.Grace {
			return false
		}
		if isNear(t, o) && d.easeDue(now) {
			return false
		}
	}
	return true
}

// Step takes what was observed at now, which must not go backwards, and decides.
func (d *Decider) Step(now unit.Instant, f Facts) Decision {
	if f.Disks != d.disks {
		d.disks, d.thresholds = f.Disks, withContainerFS(d.config.Thresholds, f.Disks)
	}
	s := &step{Decider: d, now: now, facts: f, chosen: map[string]int{}, limited: map[string]bool{}}
	s.follow()
	s.judge()
	s.updateConditions()
	s.readEnds()
	s.out.Near = slices.ContainsFunc(s.thresholds, s.near)
	if !f.Quick {
		s.enforceLimits()
		for i := range s.out.Met {
			s.answer(&s.out.Met[i])
		}
		s.easeMemory()
		s.remember()
		s.planPodCheck()
	}
	s.planCheck()
	return s.out
}

// step is one call of Step.
type step struct {
	*Decider
	now   unit.Instant
	facts Facts
	// When pods that are being killed are killed, by pod id; includes the victims chosen so far.
	ends    map[string]unit.Instant
	chosen  map[string]int  // index of a victim in out.Victims, by pod id
	limited map[string]bool // victims that exceeded a limit of local storage
	needs   []*need         // needs that are answered with pods
	out     Decision
}

// amount returns the threshold in the unit of its signal.
func (t Threshold) amount(o Observation) int64 { return t.Value.Of(o.Capacity) }

// goal returns how much must be available after an eviction: the threshold plus its minimum reclaim.
func (t Threshold) goal(o Observation) int64 { return t.amount(o) + t.Reclaim.Of(o.Capacity) }

// judge finds the thresholds that are met. A threshold that acted in the previous step stays met until its minimum
// reclaim is available.
func (s *step) judge() {
	since := map[Threshold]unit.Instant{}
	for _, t := range s.thresholds {
		o, ok := s.facts.Signals[t.Signal]
		if !ok || o.Available >= t.amount(o) && !(s.acting[t] && o.Available < t.goal(o)) {
			continue
		}
		if _, again := since[t]; again {
			continue // equal thresholds count as one
		}
		from, known := s.since[t]
		if !known {
			from = s.now
		}
		since[t] = from
		m := Met{Threshold: t, Observation: o, Amount: t.amount(o), Since: from, Acts: s.now.Sub(from) >= t.Grace}
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

// inOrder sorts by the order in which thresholds are answered: those that act first, hard before soft, memory before
// the rest.
func inOrder(a, b Met) int {
	return cmp.Or(
		trueFirst(a.Acts, b.Acts), trueFirst(a.IsHard(), b.IsHard()),
		trueFirst(resourceOf(a.Signal) == Memory, resourceOf(b.Signal) == Memory),
		cmp.Compare(slices.Index(allocatable.Signals(), a.Signal), slices.Index(allocatable.Signals(), b.Signal)),
		cmp.Compare(b.Amount, a.Amount),
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

// updateConditions finds the conditions that are true: those observed now, and those observed less than the transition
// period ago.
func (s *step) updateConditions() {
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

// remember remembers what this step decided.
func (s *step) remember() {
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
