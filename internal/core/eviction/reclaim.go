package eviction

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// reclaimWithin is how long no pod is evicted because a reclaim was asked for and has not ended. Chosen: a runtime
	// removes an image of some GiB in seconds, so one that takes longer hangs. A longer time risks a full disk, a
	// shorter one evicts pods while space is being freed.
	reclaimWithin = 30 * time.Second
	// reclaimAgain is how long a reclaim that ended is not repeated while its need lasts. Chosen: within a minute there
	// is something new to remove (containers die, images become unused). Kubelets repeat it every 10 s.
	reclaimAgain = time.Minute
	// countWithin is how long no pod is evicted because the disk usage of pods is being counted. Chosen: counting a
	// million cached files takes 2 s, so a disk that needs longer is in trouble itself. A longer time leaves a full
	// disk full, a shorter one evicts by an old count.
	countWithin = 10 * time.Second
	// countLife is how old a count may be that was made after a threshold began to act. It equals the time between two
	// periodic counts. A longer time misses pods that have grown since. A shorter one repeats the count while something
	// is being removed.
	countLife = 10 * time.Second
	// easeEvery is how often the kernel is asked to reclaim memory of pods. Chosen: reclaim of some 10 MiB takes
	// milliseconds. More often makes programs fault the same pages in again and again.
	easeEvery = time.Second
	// Memory counts as near a threshold when less than threshold * (1 + easeShare) is available. A larger share begins
	// to reclaim earlier, also from pods for which it was never necessary.
	easeShare = 1
)

// Step is something that is done before pods are evicted.
type Step string

// The steps, in order.
const (
	PodDisks Step = "count of pods' disks" // count the disk usage of all pods again

	DeadContainers Step = "dead containers" // remove all containers that do not run and will not be restarted
	UnusedImages   Step = "unused images"   // remove images that no container uses, the least recently used first
	PodMemory      Step = "memory of pods"  // write memory.reclaim of pods
)

// Values of Met.Held: why no pod is evicted while something is removed or counted.
const (
	reclaimAsked  = "something is removed first"
	reclaimRuns   = "waits for what is being removed"
	reclaimUnseen = "waits for a reading after the removal"
	countAsked    = "what pods have on disks is counted first"
	countRuns     = "waits for the count of pods' disks"
)

// Reclaim asks for something to be done before pods are evicted. The shell reports its end in Facts.Done, except for
// PodMemory.
type Reclaim struct {
	Step
	Signal allocatable.Signal
	Until  int64  // of a removal: stop when so much of Signal is available; read Signal after each container or image
	Pods   []Ease // for PodMemory
}

// Ease is how much memory the kernel should reclaim from a pod.
type Ease struct {
	ID    string
	Bytes unit.Bytes
}

// stepsFor returns what can be removed for a signal of a file system, in order.
func stepsFor(signal allocatable.Signal, d Disks) []Step {
	onImages := signal == allocatable.ImageFSAvailable || signal == allocatable.ImageFSInodesFree
	onNode := signal == allocatable.NodeFSAvailable || signal == allocatable.NodeFSInodesFree
	switch {
	case d == ImageDisk && onNode, d == SplitDisk && !onImages:
		return []Step{DeadContainers} // frees logs, and writable layers where they are on that file system
	case d == SplitDisk:
		return []Step{UnusedImages}
	}
	return []Step{DeadContainers, UnusedImages}
}

// wait asks for what is done before pods are evicted, and reports whether the eviction must wait for it.
func (s *step) wait(m *Met) bool {
	if r := resourceOf(m.Signal); r == Memory || r == PIDs {
		return false
	}
	counts := s.count(m)
	return s.reclaim(m) || counts // both at the same time
}

// count asks for a count of the pods' disk usage, and reports whether the eviction must wait for it. A count made
// before the threshold acted may lead to the wrong victim, and does not say how much a victim will free.
func (s *step) count(m *Met) bool {
	asked, done := s.asked[PodDisks], s.facts.Done[PodDisks]
	runs := !asked.IsZero() && done < asked
	switch {
	case !asked.IsZero() && !runs && asked >= m.Since.Add(m.Grace) && s.now.Sub(done) < countLife:
		return false
	case runs && s.now.Sub(asked) < countWithin:
		m.Held = countRuns
		return true
	case runs && s.now.Sub(asked) < countWithin+reclaimAgain:
		return false // the count hangs
	case !slices.ContainsFunc(s.out.Reclaim, func(r Reclaim) bool { return r.Step == PodDisks }):
		s.out.Reclaim = append(s.out.Reclaim, Reclaim{Step: PodDisks, Signal: m.Signal})
	}
	m.Held = countAsked
	return true
}

// reclaim asks for the next removal that may answer m, and reports whether the eviction must wait for one.
func (s *step) reclaim(m *Met) bool {
	for _, kind := range stepsFor(m.Signal, s.disks) {
		asked, done := s.asked[kind], s.facts.Done[kind]
		switch ended := !asked.IsZero() && done >= asked; {
		case ended && !m.At.IsZero() && m.At <= done:
			m.Held = reclaimUnseen
			return true
		case ended && s.now.Sub(done) < reclaimAgain:
			continue
		case !asked.IsZero() && !ended && s.now.Sub(asked) < reclaimWithin:
			m.Held = reclaimRuns
			return true
		case !asked.IsZero() && !ended && s.now.Sub(asked) < reclaimWithin+reclaimAgain:
			continue // the removal hangs
		}
		s.ask(Reclaim{Step: kind, Signal: m.Signal, Until: s.until(kind, m)})
		s.out.Starved = append(s.out.Starved, resourceOf(m.Signal))
		m.Held = reclaimAsked
		return true
	}
	return false
}

// ask adds a reclaim. If one of the same step and signal is asked for already, that one continues to the higher of both
// goals.
func (s *step) ask(r Reclaim) {
	same := func(o Reclaim) bool { return o.Step == r.Step && o.Signal == r.Signal }
	if i := slices.IndexFunc(s.out.Reclaim, same); i >= 0 {
		s.out.Reclaim[i].Until = max(s.out.Reclaim[i].Until, r.Until)
		return
	}
	s.out.Reclaim = append(s.out.Reclaim, r)
}

// until returns how much of a signal must be available when a reclaim may stop. Removal of images stops at the low
// mark, as it does without pressure, so that not all images are removed.
func (s *step) until(kind Step, m *Met) int64 {
	goal := m.goal(m.Observation)
	if kind == UnusedImages && resourceOf(m.Signal) == Storage && s.config.ImagesLow > 0 {
		goal = max(goal, m.Capacity-m.Capacity/100*s.config.ImagesLow)
	}
	return goal
}

// isNear reports whether a memory signal is near a threshold, above or below it.
func isNear(t Threshold, o Observation) bool {
	return resourceOf(t.Signal) == Memory && o.Available < t.amount(o)*(1+easeShare)
}

// easeDue reports whether the kernel may be asked again to reclaim memory of pods.
func (d *Decider) easeDue(now unit.Instant) bool {
	asked := d.asked[PodMemory]
	return d.config.ReclaimMemory && (asked.IsZero() || now.Sub(asked) >= easeEvery)
}

// near reports whether t is a memory threshold and its signal is near.
func (s *step) near(t Threshold) bool {
	o, ok := s.facts.Signals[t.Signal]
	return ok && isNear(t, o)
}

// easeMemory asks the kernel to reclaim memory of pods above their request while memory is near a threshold. Evictions
// do not wait for it.
func (s *step) easeMemory() {
	if !s.easeDue(s.now) {
		return
	}
	for _, t := range s.thresholds {
		if !s.near(t) {
			continue
		}
		o := s.facts.Signals[t.Signal]
		r := Reclaim{Step: PodMemory, Signal: t.Signal, Until: t.amount(o) * (1 + easeShare)}
		if r.Pods = s.easings(t, r.Until-o.Available); len(r.Pods) > 0 {
			s.out.Reclaim = append(s.out.Reclaim, r)
			return
		}
	}
}

// easings divides the amount to reclaim among pods above their request, in eviction order. Page cache comes first,
// because it is cheap and can always be reclaimed. Then comes anonymous memory, which needs swap.
func (s *step) easings(t Threshold, left int64) []Ease {
	var over []Ranked
	for _, p := range Rank(t.Signal, s.facts.Pods, s.config.Memory, s.disks) {
		if _, ends := s.ends[p.ID]; p.Over && !ends {
			over = append(over, p)
		}
	}
	parts := make([]int64, len(over))
	share := func(most func(Ranked) int64) {
		for i, p := range over {
			n := min(left, most(p), p.Usage-p.Request-parts[i])
			parts[i], left = parts[i]+max(0, n), left-max(0, n)
		}
	}
	share(func(p Ranked) int64 { return int64(s.pod(p.ID).Used.Cache) })
	share(func(p Ranked) int64 { return p.Usage })
	var out []Ease
	for i, p := range over {
		if parts[i] > 0 {
			out = append(out, Ease{p.ID, unit.Bytes(parts[i])})
		}
	}
	return out
}
