package eviction

import (
	"cmp"
	"maps"
	"slices"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// State is all that a Decider remembers, as plain data: beside the facts of a step it is what a journal must keep so that the
// step can be taken again.
type State struct {
	Disks  Disks
	Since  []Lasting                           // thresholds met in the step before, in the order of Config
	Seen   map[Condition]unit.Instant          // when a condition was observed last
	Spent  map[allocatable.Signal]unit.Instant // the observation for which victims were chosen last
	Trends map[allocatable.Signal]Trend
	Asked  map[Step]unit.Instant   // reclaim that was asked for last
	Kills  map[string]unit.Instant // own victims by id: when they are to be killed

	PodsDue unit.Instant // when pods are to be looked at again for what acts; zero: nothing does
}

// Lasting is a threshold that is met, and whether it acts.
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
		Disks: d.disks, Seen: maps.Clone(d.seen), Spent: maps.Clone(d.spent), Asked: maps.Clone(d.asked), Kills: maps.Clone(d.kills),
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

// Resume returns a Decider that goes on from what another remembered under the same Config.
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
