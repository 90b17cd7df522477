package eviction

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// lookMax is the longest time between two looks: the kubelet's period (evictionMonitoringPeriod at v1.36.3). Longer saves
	// next to nothing.
	lookMax = 10 * time.Second
	// lookMet is the time between looks while a threshold is met and nothing is about to happen: within a soft grace, or when
	// nothing can be done. Shorter costs readings of all pods; longer misses that pressure has ended, or that a pod came that
	// can go.
	lookMet = time.Second
	// lookRung is the least time between looks at a signal that the kernel rings for: the back-stop, should a ring be lost. Longer
	// is later then, shorter costs more than it is worth while nothing is near.
	lookRung = time.Second
	// lookFreeing is the same while memory or processes are being freed, disk space when it is. Chosen: what is freed in this
	// time at some GiB a second is what one look should find.
	lookFreeing     = 50 * time.Millisecond
	lookFreeingDisk = 500 * time.Millisecond
	// trendHold is how long it takes until half of a rate of fall is forgotten that is not measured again. Longer looks often
	// long after a fall; shorter is late for one that comes in steps.
	trendHold = 10 * time.Second
	// lookAhead divides the time that is left until a line would be reached: 2 looks again half-way.
	lookAhead = 2
)

// pace is how fast a signal may fall at most, per second, and the shortest time between looks at it. burst answers what no
// trend has seen coming: half the way to the line at that speed is a time to look. More costs looks, less is late.
type pace struct {
	burst   int64
	lookMin time.Duration
}

// paceOf returns the pace of a signal. Chosen from what one machine of some cores does: touching memory 4 GiB/s (it zeroes
// pages), writing 1 GiB/s to a disk, creating 100,000 files or 20,000 processes a second. Reading memory costs 50 us.
func paceOf(s allocatable.Signal) pace {
	switch resourceOf(s) {
	case Memory:
		return pace{int64(4 * unit.GiB), 10 * time.Millisecond}
	case Storage:
		return pace{int64(unit.GiB), 250 * time.Millisecond}
	case Inodes:
		return pace{100_000, 250 * time.Millisecond}
	}
	return pace{20_000, 50 * time.Millisecond}
}

// trend is how fast a signal falls.
type trend struct {
	at        unit.Instant
	available int64
	fall      int64 // per second; 0: it does not
}

// follow folds the observations into the trends.
func (s *step) follow() {
	for signal, o := range s.facts.Signals {
		if o.At.IsZero() {
			o.At = s.now
		}
		was, known := s.trends[signal]
		passed := o.At.Sub(was.at)
		if known && passed < time.Millisecond {
			continue
		}
		next := trend{at: o.At, available: o.Available}
		if known {
			next.fall = max(perSecond(was.available-o.Available, passed), was.fall-share(was.fall, passed))
		}
		s.trends[signal] = next
	}
}

// perSecond returns the rate of a fall; a rise is none.
func perSecond(n int64, d time.Duration) int64 {
	return int64(float64(max(0, n)) / d.Seconds())
}

// share returns what is forgotten of a rate after d: linear, all of it after twice trendHold.
func share(rate int64, d time.Duration) int64 {
	d = min(d, 2*trendHold)
	return rate / (2 * trendHold).Milliseconds() * d.Milliseconds()
}

// look finds when to look again.
func (s *step) look() {
	s.out.Wake = s.now.Add(lookMax)
	at := func(d time.Duration) { s.out.Wake = s.out.Wake.Earlier(s.now.Add(d)) }
	for _, t := range s.thresholds {
		switch o, ok := s.facts.Signals[t.Signal]; {
		case ok && s.facts.Rings[t.Signal]:
			at(max(lookRung, s.untilNear(t, o)))
		case ok:
			at(s.untilNear(t, o))
		}
	}
	for _, m := range s.out.Met {
		if !m.Acts {
			at(min(lookMet, m.Since.Add(m.Grace).Sub(s.now)))
		}
	}
	if !s.podsDue.IsZero() {
		at(max(0, s.podsDue.Sub(s.now)))
	}
	for _, observed := range s.seen {
		if observed != s.now {
			at(observed.Add(s.config.Transition).Sub(s.now))
		}
	}
}

// planPods finds when pods are to be looked at again: soon while something is being freed, else now and then.
func (s *step) planPods() {
	s.podsDue = 0
	for _, m := range s.out.Met {
		if !m.Acts {
			continue
		}
		d := lookMet
		if m.Coming+m.Taken > 0 && s.killed() || slices.Contains([]string{reclaimAsked, reclaimRuns, reclaimUnseen, countAsked, countRuns}, m.Held) {
			d = freeing(m.Signal)
		}
		s.podsDue = s.podsDue.Earlier(s.now.Add(d))
	}
}

// killed reports whether any pod that ends has no grace left.
func (s *step) killed() bool {
	for _, end := range s.ends {
		if end <= s.now.Add(graceLeast) {
			return true
		}
	}
	return false
}

func freeing(s allocatable.Signal) time.Duration {
	if r := resourceOf(s); r == Storage || r == Inodes {
		return lookFreeingDisk
	}
	return lookFreeing
}

// untilNear returns how long a signal needs at least to come near a threshold that is not met: half-way at the speed at
// which it falls, or at which it might.
func (s *step) untilNear(t Threshold, o Observation) time.Duration {
	left := o.Available - t.line(o)
	if left < 0 {
		return lookMax // met, or to be: what follows says when
	}
	p := paceOf(t.Signal)
	if !t.IsHard() {
		p.lookMin = lookMet
	}
	fastest := max(p.burst, s.trends[t.Signal].fall)
	seconds := float64(left) / lookAhead / float64(fastest)
	if seconds > lookMax.Seconds() {
		return lookMax
	}
	return max(p.lookMin, time.Duration(seconds*float64(time.Second)))
}
