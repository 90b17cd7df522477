package eviction

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// checkMax is the longest time between two checks: the kubelet's period (evictionMonitoringPeriod at v1.36.3). A
	// longer time saves next to nothing.
	checkMax = 10 * time.Second
	// checkMet is the time between checks while a threshold is met and no change is expected soon: during a soft grace
	// period, or when no pod can be evicted. A shorter time costs more reads of all pods. A longer time is late to
	// notice that the pressure ended, or that a pod arrived that can be evicted.
	checkMet = time.Second
	// checkNotified is the shortest time between checks of a signal for which the kernel sends notifications. It is the
	// periodic check in case a notification was lost. A longer time is later in that case. A shorter one costs CPU
	// without benefit while no signal is near its threshold.
	checkNotified = time.Second
	// checkFreeing is the time between checks while memory or process ids are being freed, and checkFreeingDisk is the
	// same for disk space. Chosen: processes free some GiB a second, and one check should see the result.
	checkFreeing     = 50 * time.Millisecond
	checkFreeingDisk = 500 * time.Millisecond
	// trendHalfLife is the time in which half of a rate of fall is forgotten if it is not measured again. With a longer
	// time, checks stay frequent long after a fall. With a shorter time, checks are late for a fall that comes in
	// steps.
	trendHalfLife = 10 * time.Second
	// checkAhead divides the time until a threshold could be met: with 2, the next check is half-way.
	checkAhead = 2
)

// pace is the highest rate per second at which a signal may fall, and the shortest time between checks of it. burst
// covers a fall that the trend has not seen yet: the next check is at the time at which a fall of that rate would have
// covered half the way to the threshold. A higher burst costs checks, a lower one is late.
type pace struct {
	burst    int64
	checkMin time.Duration
}

// paceOf returns the pace of a signal. Chosen by what one machine with a few cores can do per second: touch 4 GiB of
// memory (the kernel zeroes the pages), write 1 GiB to a disk, create 100,000 files or 20,000 processes. Reading memory
// costs 50 us.
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

// trend is how fast a signal falls. Only follow writes it.
type trend struct {
	// The last observation, which the next one is compared with.
	at        unit.Instant
	available int64
	fall      int64 // per second; 0: it does not fall
}

// follow updates the trends with the new observations.
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

// perSecond returns the rate of a fall. A rise is 0.
func perSecond(n int64, d time.Duration) int64 {
	return int64(float64(max(0, n)) / d.Seconds())
}

// share returns how much of a rate is forgotten after d. It is linear: everything is forgotten after twice
// trendHalfLife.
func share(rate int64, d time.Duration) int64 {
	d = min(d, 2*trendHalfLife)
	return rate / (2 * trendHalfLife).Milliseconds() * d.Milliseconds()
}

// planCheck computes when to check again.
func (s *step) planCheck() {
	s.out.Wake = s.now.Add(checkMax)
	at := func(d time.Duration) { s.out.Wake = s.out.Wake.Earlier(s.now.Add(d)) }
	for _, t := range s.thresholds {
		switch o, ok := s.facts.Signals[t.Signal]; {
		case ok && s.facts.Notified[t.Signal]:
			at(max(checkNotified, s.untilNear(t, o)))
		case ok:
			at(s.untilNear(t, o))
		}
	}
	for _, m := range s.out.Met {
		if !m.Acts {
			at(min(checkMet, m.Since.Add(m.Grace).Sub(s.now)))
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

// planPodCheck computes when pods must be observed again: soon while something is being freed, otherwise at intervals.
func (s *step) planPodCheck() {
	s.podsDue = 0
	for _, m := range s.out.Met {
		if !m.Acts {
			continue
		}
		d := checkMet
		reclaims := []string{reclaimAsked, reclaimRuns, reclaimUnseen, countAsked, countRuns}
		if m.Coming+m.Taken > 0 && s.killed() || slices.Contains(reclaims, m.Held) {
			d = freeing(m.Signal)
		}
		s.podsDue = s.podsDue.Earlier(s.now.Add(d))
	}
}

// killed reports whether a pod that is being terminated has no grace period left.
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
		return checkFreeingDisk
	}
	return checkFreeing
}

// untilNear returns the shortest time in which a signal can come near a threshold that is not met: half of the time
// until the threshold, at the rate at which the signal falls or may fall.
func (s *step) untilNear(t Threshold, o Observation) time.Duration {
	left := o.Available - t.amount(o)
	if left < 0 {
		return checkMax // met, or about to be: Step uses the times of met thresholds instead
	}
	p := paceOf(t.Signal)
	if !t.IsHard() {
		p.checkMin = checkMet
	}
	fastest := max(p.burst, s.trends[t.Signal].fall)
	seconds := float64(left) / checkAhead / float64(fastest)
	if seconds > checkMax.Seconds() {
		return checkMax
	}
	return max(p.checkMin, time.Duration(seconds*float64(time.Second)))
}
