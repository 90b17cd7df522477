package allocatable

import (
	"fmt"
	"math"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Lowering brings the memory limit of a group down to a target while what runs in the group may use more than that.
//
// Writing the target at once is what hurts (k/k #141609): cgroup v2 reclaims all that is above it in one go and then
// kills; v1 reclaims as much and then refuses. A Lowering does it in steps instead:
//
//   - Cold page cache above the target is squeezed out a little at a time: the limit dips below the usage and comes back.
//   - Between dips a ceiling above the usage follows it down, so that what was won is not lost again at once. It rises
//     again, as far as the old limit, when the usage does. On v2 the ceiling is memory.high, which throttles and never kills,
//     and memory.max stays where it was; v1 has the one limit only, so there the ceiling keeps well above the usage.
//   - The target itself is written when what cannot be dropped cheaply fits below it. Until then pods must end or be evicted;
//     that is not decided here.
//
// The zero Lowering is not ready: use Lower.
type Lowering struct {
	target  unit.Bytes
	unified bool

	begun  bool
	before unit.Bytes // the limit found at first: no ceiling is above it
	used   unit.Bytes // at the last look
	dipped unit.Bytes // what the last Move squeezed out; 0: it did not

	// After a dip that won nothing, be it that the kernel refused or that pods filled the cache again at once, the next one
	// waits: it would only make them read their disks.
	rest    time.Duration
	squeeze unit.Instant // no dip before then
}

// Seen is a group as it is now.
type Seen struct {
	Limit   unit.Limit[unit.Bytes]
	Usage   unit.Bytes // charged
	Cold    unit.Bytes // of it, page cache that is cheap to drop (inactive_file)
	Refused bool       // the kernel refused a write of the last Move: it could not reclaim enough
}

// Knob is a file of a memory cgroup.
type Knob string

// Knobs.
const (
	Max  Knob = "max"  // the limit: memory.max, on v1 memory.limit_in_bytes
	High Knob = "high" // memory.high, v2 only
)

// Write sets a knob.
type Write struct {
	Knob Knob
	To   unit.Limit[unit.Bytes]
}

// Move is what to do next. Writes are made in order; after one that fails, the rest is left out.
type Move struct {
	Writes []Write
	Done   bool         // the target is the limit, if all Writes succeed
	Wake   unit.Instant // when to look again; zero when Done
	Reason string       // with the numbers used
}

const (
	// lowerEvery is the time between two looks while a limit is above its target. Chosen: a look reads two files (some 50 us);
	// shorter follows the usage closer, longer lets pods outrun a ceiling.
	lowerEvery = time.Second

	// lowerRestMax bounds the pause after a dip that won less than one part in dipWorth of what it took, which doubles with
	// each. Upstream tries again once a minute.
	lowerRestMax = time.Minute
	dipWorth     = 4

	// squeezeShare of the usage is what one dip takes at most, but at least squeezeMin where there is as much. Chosen: a
	// descent of a third takes half a minute, and at 64 GiB one dip drops 2 GiB of clean cache, some 0.2 s of one CPU. Larger is
	// faster and stalls the pods longer.
	squeezeShare            = 32
	squeezeMin   unit.Bytes = 16 * unit.MiB

	// coldShare of the cold cache is what a dip leaves, so that a pod that allocates during the dip finds something to reclaim.
	coldShare = 2

	// ceilingShare of the usage, and at least ceilingMin, is the room below a ceiling. On v1 a pod that takes more than this
	// between two looks would be killed below the old limit: larger is safer and wins less.
	ceilingShare            = 4
	ceilingMin   unit.Bytes = 256 * unit.MiB

	// marginShare of the target and marginMin are left free when the target is written: pages are charged in batches of 64 per
	// CPU (MEMCG_CHARGE_BATCH), and the usage was read a moment ago.
	marginShare            = 256
	marginMin   unit.Bytes = unit.MiB
)

// Lower returns a Lowering to target; unified says that the machine has cgroup v2.
func Lower(target unit.Bytes, unified bool) *Lowering {
	return &Lowering{target: target, unified: unified, rest: lowerEvery}
}

// Target returns the limit to reach.
func (l *Lowering) Target() unit.Bytes { return l.target }

// Step looks at the group at now, which must not go backwards, and returns what to do.
func (l *Lowering) Step(now unit.Instant, seen Seen) Move {
	if !l.begun {
		l.begun, l.used = true, seen.Usage
		l.before = math.MaxInt64
		if limit, ok := seen.Limit.Get(); ok {
			l.before = limit
		}
	}
	growth := max(0, seen.Usage-l.used)
	if won := l.used - seen.Usage; seen.Refused || l.dipped > 0 && won < l.dipped/dipWorth {
		l.rest = min(2*l.rest, lowerRestMax)
		l.squeeze = now.Add(l.rest)
	} else if l.dipped > 0 {
		l.rest = lowerEvery
	}
	l.used, l.dipped = seen.Usage, 0
	margin := max(marginMin+l.target/marginShare, 2*growth)
	hot := max(0, seen.Usage-seen.Cold/coldShare)
	dip := min(seen.Cold/coldShare, max(seen.Usage/squeezeShare, squeezeMin))
	switch {
	case l.target >= l.before && l.before < math.MaxInt64, seen.Usage == 0:
		return l.finish(fmt.Sprintf("limit is %v, was %v", l.target, seen.Limit))
	case seen.Usage+margin <= l.target, hot+margin <= l.target && seen.Usage-dip <= l.target && now >= l.squeeze:
		return l.finish(fmt.Sprintf("limit is %v, usage %v", l.target, seen.Usage))
	}
	return l.descend(now, seen, dip)
}

// finish writes the target. On v2 throttling at the target goes first, so that nothing grows past it between our look and
// the write, and is lifted last: also one that an agent before us left.
func (l *Lowering) finish(reason string) Move {
	target := unit.LimitTo(l.target)
	m := Move{Done: true, Reason: reason, Writes: []Write{{Max, target}}}
	if l.unified {
		m.Writes = []Write{{Max, target}, {High, unit.Unlimited[unit.Bytes]()}}
		if l.target < l.before {
			m.Writes = append([]Write{{High, target}}, m.Writes...)
		}
	}
	return m
}

func (l *Lowering) descend(now unit.Instant, seen Seen, dip unit.Bytes) Move {
	knob := Max
	if l.unified {
		knob = High
	}
	m := Move{Wake: now.Add(lowerEvery), Reason: fmt.Sprintf("usage %v, of it %v cold, is above the limit of %v to come: %v to go", seen.Usage, seen.Cold, l.target, max(0, seen.Usage-l.target))}
	after := seen.Usage
	if now >= l.squeeze && dip >= marginMin {
		after -= dip
		l.dipped = dip
		m.Writes = append(m.Writes, Write{knob, unit.LimitTo(max(l.target, after))})
	}
	ceiling := max(l.target, (after+max(after/ceilingShare, ceilingMin))/unit.MiB*unit.MiB) // whole MiB: easier to read
	to := unit.LimitTo(ceiling)
	if ceiling >= l.before {
		to = unit.LimitTo(l.before)
		if l.unified || l.before == math.MaxInt64 {
			to = unit.Unlimited[unit.Bytes]()
		}
	}
	m.Writes = append(m.Writes, Write{knob, to})
	return m
}
