package eviction

import (
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/allocatable"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

const (
	// reclaimWithin bounds how long pods are spared for a reclaim that was asked for. Chosen: a runtime removes an image of
	// some GiB in seconds; one that takes longer hangs. Longer risks a full disk, shorter evicts while room is being made.
	reclaimWithin = 30 * time.Second
	// reclaimAgain is how long a reclaim that came to its end is not repeated while its need lasts. Chosen: as long as it takes
	// until there is something new to remove (containers die, images fall out of use); kubelets repeat it every 10 s.
	reclaimAgain = time.Minute
	// countWithin bounds how long pods are spared for a count of what they have on disks. Chosen: a million files take 2 s where
	// they are cached; a disk that is slower by more is in trouble itself. Longer lets a full disk stand, shorter blames by an old count.
	countWithin = 10 * time.Second
	// countLife is how old a count may be that was made after a threshold began to act: the time between two readings that nobody asks
	// for. Longer misses who has grown since; shorter counts again while something is removed.
	countLife = 10 * time.Second
	// easeEvery is how often the kernel is asked to reclaim memory of pods. Chosen: reclaim of some 10 MiB takes
	// milliseconds; more often makes programs fault the same pages in again and again.
	easeEvery = time.Second
	// easeShare is how far above a line of memory it is near, as a share of the line: 1 is as much again. Higher begins to
	// reclaim earlier, of pods that may never need it.
	easeShare = 1
)

// Step is something that is done before pods go.
type Step string

// Steps, in the order in which they come.
const (
	PodDisks Step = "count of pods' disks" // count anew what pods have on disks, all of it

	DeadContainers Step = "dead containers" // remove all containers that do not run and will not be restarted
	UnusedImages   Step = "unused images"   // remove images that no container uses, the least recently used first
	PodMemory      Step = "memory of pods"  // memory.reclaim
)

// Why no pod goes while there is something to remove.
const (
	reclaimAsked  = "something is removed first"
	reclaimRuns   = "waits for what is being removed"
	reclaimUnseen = "waits for a reading after the removal"
	countAsked    = "what pods have on disks is counted first"
	countRuns     = "waits for the count of pods' disks"
)

// Reclaim is something to do before pods go. The shell reports its end in Facts.Done, except of PodMemory.
type Reclaim struct {
	Step
	Signal allocatable.Signal
	Until  int64  // of removals: stop when so much of Signal is available; look after each container or image
	Pods   []Ease // of PodMemory
}

// Ease is how much memory the kernel should reclaim of a pod.
type Ease struct {
	ID    string
	Bytes unit.Bytes
}

// stepsFor returns what can be reclaimed for a signal of a disk, in order.
func stepsFor(signal allocatable.Signal, d Disks) []Step {
	onImages := signal == allocatable.ImageFSAvailable || signal == allocatable.ImageFSInodesFree
	onNode := signal == allocatable.NodeFSAvailable || signal == allocatable.NodeFSInodesFree
	switch {
	case d == ImageDisk && onNode, d == SplitDisk && !onImages:
		return []Step{DeadContainers} // their logs, and writable layers
	case d == SplitDisk:
		return []Step{UnusedImages}
	}
	return []Step{DeadContainers, UnusedImages}
}

// wait asks for what comes before pods go, and reports whether they are to wait for it.
func (s *step) wait(m *Met) bool {
	if r := resourceOf(m.Signal); r == Memory || r == PIDs {
		return false
	}
	counts := s.count(m)
	return s.reclaim(m) || counts // beside each other
}

// count asks what pods have on disks, and reports whether they are to wait for the answer: what was counted before the threshold
// acted may blame the wrong one, and does not say how much the right one will free.
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
		return false // it hangs
	case !slices.ContainsFunc(s.out.Reclaim, func(r Reclaim) bool { return r.Step == PodDisks }):
		s.out.Reclaim = append(s.out.Reclaim, Reclaim{Step: PodDisks, Signal: m.Signal})
	}
	m.Held = countAsked
	return true
}

// reclaim asks for the next reclaim that may answer m, and reports whether pods are to wait for one.
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
			continue // it hangs
		}
		s.ask(Reclaim{Step: kind, Signal: m.Signal, Until: s.until(kind, m)})
		s.out.Starved = append(s.out.Starved, resourceOf(m.Signal))
		m.Held = reclaimAsked
		return true
	}
	return false
}

// ask adds a reclaim, once per kind: two needs of one kind are two signals of one file system, or the larger one's.
func (s *step) ask(r Reclaim) {
	same := func(o Reclaim) bool { return o.Step == r.Step && o.Signal == r.Signal }
	if i := slices.IndexFunc(s.out.Reclaim, same); i >= 0 {
		s.out.Reclaim[i].Until = max(s.out.Reclaim[i].Until, r.Until)
		return
	}
	s.out.Reclaim = append(s.out.Reclaim, r)
}

// until returns how much of a signal is to be available when a reclaim may stop. Images go down to the low mark, as they do
// without pressure, and not all of them.
func (s *step) until(kind Step, m *Met) int64 {
	goal := m.goal(m.Observation)
	if kind == UnusedImages && resourceOf(m.Signal) == Storage && s.config.ImagesLow > 0 {
		goal = max(goal, m.Capacity-m.Capacity/100*s.config.ImagesLow)
	}
	return goal
}

// isNear reports whether a signal of memory comes near a threshold, met or not.
func isNear(t Threshold, o Observation) bool {
	return resourceOf(t.Signal) == Memory && o.Available < t.line(o)*(1+easeShare)
}

// easeDue reports whether the kernel may be asked to reclaim memory of pods again.
func (d *Decider) easeDue(now unit.Instant) bool {
	asked := d.asked[PodMemory]
	return d.config.ReclaimMemory && (asked.IsZero() || now.Sub(asked) >= easeEvery)
}

// near reports whether a threshold of memory is near.
func (s *step) near(t Threshold) bool {
	o, ok := s.facts.Signals[t.Signal]
	return ok && isNear(t, o)
}

// easeMemory asks the kernel to reclaim memory of pods above their request while a line of memory is near. Nothing waits for
// it: whoever has to go goes.
func (s *step) easeMemory() {
	if !s.easeDue(s.now) {
		return
	}
	for _, t := range s.thresholds {
		if !s.near(t) {
			continue
		}
		o := s.facts.Signals[t.Signal]
		r := Reclaim{Step: PodMemory, Signal: t.Signal, Until: t.line(o) * (1 + easeShare)}
		if r.Pods = s.easings(t, r.Until-o.Available); len(r.Pods) > 0 {
			s.out.Reclaim = append(s.out.Reclaim, r)
			return
		}
	}
}

// easings divides what is to be reclaimed among pods above their request, in their order: first what is page cache, which costs
// least and can always be had; then the rest, which is anonymous memory and needs swap.
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
