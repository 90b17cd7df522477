// Package volumestats decides when it is asked how full each volume of the node's pods is.
//
// # Model
//
// A State is told which volumes there are (Have, Gone), that somebody wants to know how full they are (Demand), and
// when a question about one has ended (Ended). Step answers which volumes are to be asked about now, and when to call
// it again. While there is a demand, a volume is asked about when it comes, and then once in each interval. What
// answers is the volume's source: a CSI driver, a server of files, or the kernel.
//
// A demand lasts for two periods: one that is repeated sooner, as by a scraper, has each volume asked about at its own
// time. (The kubelet asks also when nobody wants to know, which with a thousand volumes takes a part of a CPU.)
//
// Who demands may wait for volumes without an answer, and for those whose answer is older than three periods (Lacks).
// Who has waited long enough calls GiveUp: nobody waits for those volumes again until they were answered once.
//
// # Invariants
//
//   - Without a demand nothing is asked, and no wake-up is wanted, unless the State is to ask always.
//   - At most one question about a volume is under way, also while the volume goes and comes back.
//   - At most AtOnce questions to one source are under way. A source that hangs delays its own volumes only, and takes
//     a bounded number of goroutines, however many volumes it has.
//   - The interval is the same for a volume each time, and lies between the period and twice the period, so that
//     volumes that came at the same time are not asked about at the same time. (The kubelet chooses it anew each time.)
//
// The package asks nobody and keeps no answers. Volumes whose content is counted against a pod's limits are measured by
// agent/stats instead.
package volumestats

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/heap"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// AtOnce is how many questions to one source may be under way (chosen: one that takes long does not delay the others
// of its source at once, and one that hangs takes two goroutines).
const AtOnce = 2

// ErrNone means that a source has no numbers of its volumes.
var ErrNone = errors.New("the driver has no statistics of volumes")

// Key names a volume of a pod.
type Key struct {
	Pod    string // UID
	Volume string // its name in the pod
}

// Usage is how full a volume is. A size that is not known is zero.
type Usage struct {
	Capacity, Available, Used      unit.Bytes
	Inodes, InodesFree, InodesUsed int64
	// Health is what a driver says about the volume's condition; nil: nothing.
	Health *Health
}

// Health is the condition of a volume.
type Health struct {
	Abnormal bool
	Message  string
}

// Check returns an error for numbers that cannot be true: the CSI specification forbids negative ones.
func (u Usage) Check() error {
	var problems []error
	for _, n := range []struct {
		what  string
		value int64
	}{
		{"capacity", int64(u.Capacity)},
		{"available bytes", int64(u.Available)},
		{"used bytes", int64(u.Used)},
		{"inodes", u.Inodes},
		{"free inodes", u.InodesFree},
		{"used inodes", u.InodesUsed},
	} {
		if n.value < 0 {
			problems = append(problems, fmt.Errorf("%s %d: must not be negative", n.what, n.value))
		}
	}
	return errors.Join(problems...)
}

const (
	demandPeriods = 2 // how many periods a demand lasts
	stalePeriods  = 3 // how many periods an answer is worth having; more than the longest interval, which is two
)

// State knows the volumes of a node. It is for one goroutine at a time.
type State struct {
	period  time.Duration
	always  bool         // there is a demand at all times
	until   unit.Instant // when the last demand ends
	lacks   int          // volumes that lack an answer
	volumes map[Key]*volume
	due     heap.Heap[*volume]   // volumes that nobody is asked about
	waiting map[string][]*volume // by source: they are due, and the source has no room; in order
	asked   map[string]int       // by source: questions under way
}

// volume is a volume that there is, or about which a question is under way.
type volume struct {
	key    Key
	source string
	due    unit.Instant
	asking bool
	gone   bool         // only while asking
	lacks  bool         // who demands waits for its answer
	late   bool         // somebody has waited for it long enough
	ended  unit.Instant // when the last question ended; zero: none has
	place  int          // in due
}

// New returns a State without volumes. period is the shortest interval (the kubelet's volumeStatsAggPeriod); if it is
// negative, nothing is asked. With always, volumes are asked about without a demand too.
func New(period time.Duration, always bool) *State {
	return &State{
		period:  period,
		always:  always,
		volumes: map[Key]*volume{},
		due: heap.New(
			func(a, b *volume) int {
				return cmp.Or(
					cmp.Compare(a.due, b.due), cmp.Compare(a.key.Pod, b.key.Pod), cmp.Compare(a.key.Volume, b.key.Volume))
			},
			func(v *volume) *int { return &v.place },
		),
		waiting: map[string][]*volume{},
		asked:   map[string]int{},
	}
}

// Have records that there is a volume. It may be called again.
func (s *State) Have(now unit.Instant, key Key, source string) {
	v := s.volumes[key]
	switch {
	case v != nil && v.asking: // its source stays until the answer comes
		v.gone = false
		return
	case v != nil && v.source == source:
		return
	case v != nil:
		s.remove(v)
	}
	v = &volume{key: key, source: source, due: now}
	s.volumes[key] = v
	s.due.Set(v)
}

// Gone records that a volume is there no more.
func (s *State) Gone(key Key) {
	switch v := s.volumes[key]; {
	case v == nil:
	case v.asking:
		v.gone = true
		s.settle(v)
	default:
		s.remove(v)
	}
}

// Demand records that somebody wants to know how full the volumes are. It returns the volumes whose answers are too old
// to be of use. Step follows, and Lacks says whether there is something to wait for.
func (s *State) Demand(now unit.Instant) (stale []Key) {
	if s.period < 0 {
		return nil
	}
	s.until = now.Add(demandPeriods * s.period)
	for key, v := range s.volumes {
		if !v.ended.IsZero() && now.Sub(v.ended) <= stalePeriods*s.period || v.gone {
			continue
		}
		if !v.ended.IsZero() {
			stale = append(stale, key)
		}
		if !v.lacks && !v.late {
			v.lacks = true
			s.lacks++
		}
	}
	return stale
}

// Lacks reports whether volumes lack an answer for which who demands may wait.
func (s *State) Lacks() bool { return s.lacks > 0 }

// GiveUp records that somebody has waited long enough for the volumes that lack an answer.
func (s *State) GiveUp() {
	for _, v := range s.volumes {
		v.late = v.late || v.lacks
		s.settle(v)
	}
}

// settle records that nobody waits for a volume.
func (s *State) settle(v *volume) {
	if v.lacks {
		v.lacks = false
		s.lacks--
	}
}

func (s *State) remove(v *volume) {
	s.settle(v)
	delete(s.volumes, v.key)
	s.due.Remove(v)
	left := s.waiting[v.source][:0]
	for _, w := range s.waiting[v.source] {
		if w != v {
			left = append(left, w)
		}
	}
	s.keepWaiting(v.source, left)
}

func (s *State) keepWaiting(source string, left []*volume) {
	if len(left) == 0 {
		delete(s.waiting, source)
		return
	}
	s.waiting[source] = left
}

// Ended records that a question has ended, with an answer or not. It returns whether the volume is still there.
func (s *State) Ended(now unit.Instant, key Key) bool {
	v := s.volumes[key]
	if v == nil || !v.asking {
		return false
	}
	v.asking, v.late = false, false
	v.ended = now
	s.settle(v)
	if s.asked[v.source]--; s.asked[v.source] == 0 {
		delete(s.asked, v.source)
	}
	if v.gone {
		delete(s.volumes, key)
		return false
	}
	v.due = now.Add(s.interval(key))
	s.due.Set(v)
	return true
}

// interval returns the time between two questions about a volume: one to two periods, always the same for a volume, by
// the hash of its key (FNV-1a, 32 bits).
func (s *State) interval(key Key) time.Duration {
	const offset, prime = 2166136261, 16777619
	hash := uint32(offset)
	for _, b := range []byte(key.Pod + "/" + key.Volume) {
		hash = (hash ^ uint32(b)) * prime
	}
	return s.period + time.Duration(int64(s.period)/1000*int64(hash%1000))
}

// Step returns the volumes to ask about now, and the latest moment for the next call; zero: when something happens.
func (s *State) Step(now unit.Instant) (ask []Key, wake unit.Instant) {
	if s.period < 0 || !s.always && now >= s.until {
		return nil, 0
	}
	for s.due.Len() > 0 && s.due.First().due <= now {
		v := s.due.First()
		s.due.Remove(v)
		s.waiting[v.source] = append(s.waiting[v.source], v)
	}
	for _, source := range slices.Sorted(maps.Keys(s.waiting)) {
		queue := s.waiting[source]
		for len(queue) > 0 && s.asked[source] < AtOnce {
			v := queue[0]
			queue = queue[1:]
			v.asking = true
			s.asked[source]++
			ask = append(ask, v.key)
		}
		s.keepWaiting(source, queue)
	}
	if s.due.Len() > 0 && (s.always || s.due.First().due < s.until) {
		wake = s.due.First().due
	}
	return ask, wake
}
