package eviction

import (
	"cmp"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// State is all that a Decider remembers, as plain data. Together with the facts of a step, it is what a journal must
// keep so that the step can be repeated.
type State struct {
	Disks  Disks
	Since  []Lasting                           // thresholds met in the previous step, in the order of Config
	Seen   map[Condition]unit.Instant          // when a condition was observed last
	Spent  map[allocatable.Signal]unit.Instant // time of the observation for which victims were last chosen
	Trends map[allocatable.Signal]Trend
	Asked  map[Step]unit.Instant   // when a reclaim was last asked for
	Kills  map[string]unit.Instant // when the own victims are killed, by pod id

	PodsDue unit.Instant // when pods must be observed again, because a threshold acts; zero: none acts
}

// Lasting is a threshold that is met since At, and whether it acted.
type Lasting struct {
	Threshold
	At    unit.Instant
	Acted bool
}

// Trend is how fast a signal falls, in its unit per second.
type Trend struct {
	At              unit.Instant
	Available, Fall int64
}

// State returns a copy of what d remembers.
func (d *Decider) State() State {
	s := State{
		Disks:   d.disks,
		Seen:    maps.Clone(d.seen),
		Spent:   maps.Clone(d.spent),
		Asked:   maps.Clone(d.asked),
		Kills:   maps.Clone(d.kills),
		PodsDue: d.podsDue,
		Trends:  map[allocatable.Signal]Trend{},
	}
	for t, at := range d.since {
		s.Since = append(s.Since, Lasting{t, at, d.acting[t]})
	}
	place := func(t Threshold) int { return slices.Index(d.thresholds, t) }
	slices.SortFunc(s.Since, func(a, b Lasting) int { return cmp.Compare(place(a.Threshold), place(b.Threshold)) })
	for signal, t := range d.trends {
		s.Trends[signal] = Trend{t.at, t.available, t.fall}
	}
	return s
}

// Resume returns a Decider that continues from the State of another with the same Config.
func Resume(c Config, s State) *Decider {
	d := New(c)
	d.podsDue = s.PodsDue
	d.disks, d.thresholds = s.Disks, withContainerFS(c.Thresholds, s.Disks)
	for _, l := range s.Since {
		d.since[l.Threshold] = l.At
		if l.Acted {
			d.acting[l.Threshold] = true
		}
	}
	maps.Copy(d.seen, s.Seen)
	maps.Copy(d.spent, s.Spent)
	maps.Copy(d.asked, s.Asked)
	maps.Copy(d.kills, s.Kills)
	for signal, t := range s.Trends {
		d.trends[signal] = trend{t.At, t.Available, t.Fall}
	}
	return d
}
