package allocatable

import (
	"fmt"
	"math"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Lowering lowers the memory limit of a cgroup to a target while the processes in it may use more memory than that.
//
// Writing the target at once harms pods (k/k #141609): cgroup v2 reclaims everything above the target in one go and
// then kills processes. cgroup v1 reclaims as much and then refuses the write. A Lowering takes small steps instead:
//
//   - A *dip* reclaims some cold page cache above the target: the limit is set below the usage for a moment and then
//     raised again.
//   - Between dips a *ceiling*, a temporary limit above the usage, follows the usage down, so that the reclaimed memory
//     is not used again at once. The ceiling rises when the usage rises, at most to the old limit. On v2 the ceiling is
//     memory.high, which throttles and never kills, and memory.max stays at the old limit. v1 has one limit only, so
//     there the ceiling leaves much room above the usage.
//   - The target is written as soon as the memory that is not cheap to reclaim fits below it. Until then pods must end
//     or be evicted. This package does not decide that.
//
// The zero Lowering is not usable. Make one with NewLowering. It is for one goroutine.
type Lowering struct {
	// Set by NewLowering, never changed.
	target  unit.Bytes
	unified bool // the machine has cgroup v2

	// What Step has seen so far. Only Step writes these fields.
	begun     bool       // Step was called at least once: oldLimit is valid
	oldLimit  unit.Bytes // the limit at the first Step, which no ceiling exceeds; math.MaxInt64: there was none
	lastUsage unit.Bytes // usage at the last Step
	lastDip   unit.Bytes // how much the last LoweringDecision's dip asked the kernel to reclaim; 0: it had no dip

	// The next dip waits after a dip that freed too little. Then either the kernel could not reclaim, or pods filled
	// the cache again at once, and another dip would only make them read their disks.
	pause   time.Duration // the pause after the next useless dip is twice this
	nextDip unit.Instant  // no dip before this moment
}

// GroupMemory is the state of the cgroup, as just read.
type GroupMemory struct {
	Limit   unit.Limit[unit.Bytes]
	Usage   unit.Bytes // memory charged to the cgroup
	Cold    unit.Bytes // the part of Usage that is page cache and cheap to reclaim (inactive_file)
	Refused bool       // the kernel refused a write of the last LoweringDecision, because it could not reclaim enough
}

// LimitFile is a file of a memory cgroup.
type LimitFile string

// The files.
const (
	Max  LimitFile = "max"  // the limit: memory.max, on v1 memory.limit_in_bytes
	High LimitFile = "high" // memory.high, v2 only
)

// Write is a value to write to a file.
type Write struct {
	File LimitFile
	To   unit.Limit[unit.Bytes]
}

// LoweringDecision is what the caller does next: make Writes in order, and skip the rest after one that fails.
type LoweringDecision struct {
	Writes []Write
	Done   bool         // the target is the limit if all Writes succeed
	Wake   unit.Instant // when to call Step again; zero when Done
	Reason string       // why, with the numbers that decided it
}

const (
	// lowerEvery is the time between two Steps while the limit is above its target. Chosen: a Step reads two files
	// (some 50 us). A shorter time follows the usage closer. A longer time lets pods use up the room below a ceiling.
	lowerEvery = time.Second

	// dipPauseMax is the longest pause between dips. The pause doubles with each dip that freed less than one part in
	// dipWorth of what it asked for. Upstream tries again once a minute.
	dipPauseMax = time.Minute
	dipWorth    = 4

	// One dip reclaims at most one part in dipShare of the usage, or dipMin if that is more. Chosen: lowering
	// by a third takes half a minute, and at 64 GiB one dip drops 2 GiB of clean cache, which takes some 0.2 s of one
	// CPU. A larger part is faster and stalls the pods longer.
	dipShare            = 32
	dipMin   unit.Bytes = 16 * unit.MiB

	// A dip reclaims at most one part in coldShare of the cold cache, so that a pod that allocates during the dip finds
	// memory to reclaim.
	coldShare = 2

	// A ceiling is above the usage by one part in ceilingShare of the usage, or by ceilingMin if that is more. On v1 a
	// pod that takes more than this between two Steps is killed although it is below the old limit. More room is safer
	// and keeps less of what was reclaimed.
	ceilingShare            = 4
	ceilingMin   unit.Bytes = 256 * unit.MiB

	// One part in marginShare of the target plus marginMin must be free when the target is written: the kernel charges
	// pages in batches of 64 per CPU (MEMCG_CHARGE_BATCH), and the usage may have grown since it was read.
	marginShare            = 256
	marginMin   unit.Bytes = unit.MiB
)

// NewLowering returns a Lowering to target. unified: the machine has cgroup v2.
func NewLowering(target unit.Bytes, unified bool) *Lowering {
	return &Lowering{target: target, unified: unified, pause: lowerEvery}
}

// Target returns the limit to reach.
func (l *Lowering) Target() unit.Bytes { return l.target }

// Step takes the state of the cgroup at now, which must not go backwards, and returns what to do.
func (l *Lowering) Step(now unit.Instant, seen GroupMemory) LoweringDecision {
	if !l.begun {
		l.begun, l.lastUsage = true, seen.Usage
		l.oldLimit = math.MaxInt64
		if limit, ok := seen.Limit.Get(); ok {
			l.oldLimit = limit
		}
	}
	growth := max(0, seen.Usage-l.lastUsage)
	if won := l.lastUsage - seen.Usage; seen.Refused || l.lastDip > 0 && won < l.lastDip/dipWorth {
		l.pause = min(2*l.pause, dipPauseMax)
		l.nextDip = now.Add(l.pause)
	} else if l.lastDip > 0 {
		l.pause = lowerEvery
	}
	l.lastUsage, l.lastDip = seen.Usage, 0
	margin := max(marginMin+l.target/marginShare, 2*growth)
	hot := max(0, seen.Usage-seen.Cold/coldShare)
	dip := min(seen.Cold/coldShare, max(seen.Usage/dipShare, dipMin))
	switch {
	case l.target >= l.oldLimit && l.oldLimit < math.MaxInt64, seen.Usage == 0:
		return l.finish(fmt.Sprintf("limit is %v, was %v", l.target, seen.Limit))
	case seen.Usage+margin <= l.target, hot+margin <= l.target && seen.Usage-dip <= l.target && now >= l.nextDip:
		return l.finish(fmt.Sprintf("limit is %v, usage %v", l.target, seen.Usage))
	}
	return l.descend(now, seen, dip)
}

// finish writes the target. On v2 memory.high is set to the target first, so that the usage does not grow past the
// target between the read and the write. memory.high is removed last, also one that a previous agent process left.
func (l *Lowering) finish(reason string) LoweringDecision {
	target := unit.LimitTo(l.target)
	m := LoweringDecision{Done: true, Reason: reason, Writes: []Write{{Max, target}}}
	if l.unified {
		m.Writes = []Write{{Max, target}, {High, unit.Unlimited[unit.Bytes]()}}
		if l.target < l.oldLimit {
			m.Writes = append([]Write{{High, target}}, m.Writes...)
		}
	}
	return m
}

func (l *Lowering) descend(now unit.Instant, seen GroupMemory, dip unit.Bytes) LoweringDecision {
	file := Max
	if l.unified {
		file = High
	}
	m := LoweringDecision{
		Wake: now.Add(lowerEvery),
		Reason: fmt.Sprintf("usage %v, %v of it cold, is above the target of %v by %v", seen.Usage, seen.Cold, l.target,
			max(0, seen.Usage-l.target)),
	}
	after := seen.Usage
	if now >= l.nextDip && dip >= marginMin {
		after -= dip
		l.lastDip = dip
		m.Writes = append(m.Writes, Write{file, unit.LimitTo(max(l.target, after))})
	}
	// Whole MiB are easier to read
	ceiling := max(l.target, (after+max(after/ceilingShare, ceilingMin))/unit.MiB*unit.MiB)
	to := unit.LimitTo(ceiling)
	if ceiling >= l.oldLimit {
		to = unit.LimitTo(l.oldLimit)
		if l.unified || l.oldLimit == math.MaxInt64 {
			to = unit.Unlimited[unit.Bytes]()
		}
	}
	m.Writes = append(m.Writes, Write{file, to})
	return m
}
