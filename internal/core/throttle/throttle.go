// Package throttle decides how many writes of one component to the API server may be in flight at once, which goes
// next, and when. It is an adaptive concurrency limit, similar to congestion control.
//
// # Model
//
// A shell reports what is waiting to be written (Want), starts what may start (Next), and reports the outcome of each
// write (Done): how long the server took, or how it refused. From that alone the Limiter learns how much the server can
// handle. No rate is configured.
//
//   - The limit rises by one for each round of writes that the server answered about as fast as at rest. It falls when
//     the server took longer, refused or failed: additive increase, multiplicative decrease (RFC 5681). After the
//     start, after a pause and after a failure it starts at or below one and doubles with each round until the first
//     sign of overload.
//   - As fast as at rest means: compared with the rest value of the write's class, which is how long such writes took
//     while no other write of this component was in flight. A class is a kind of request, because a deletion takes
//     longer than a patch. Under load, a *probe* lowers the limit to one write at a time every few seconds to measure
//     rest values (as BBR does). A rest value falls at once and rises slowly. So a server that is kept busy by others
//     gets fewer writes for a while, before its slowness is regarded as normal.
//   - Slow answers alone never lower the limit below three writes in flight (slowMin), because the server may be slow
//     because of others, and the writes must be made all the same. Refusals and failures lower it further. A limit
//     below one is a pause between writes.
//   - A Retry-After of the server is obeyed. Consecutive failures are followed by growing pauses.
//   - Otherwise, one write may start in each PeriodMax whatever the limit, as long as few are in flight
//     (floorInFlight). So writes to a server that is slow because of others do not wait forever. Upstream's controllers
//     send at least as many.
//
// # Which kind goes next
//
// Kinds are ordered by how much they protect the cluster. While a more important kind is in flight or waiting, a kind
// gets its share of the writes that start, and at most its share of the limit, or one write. A kind that has waited for
// StarveAfter with nothing in flight goes first.
//
// # Invariants
//
//   - There are never more than Options.InFlightMax writes in flight.
//   - Each kind that waits and has nothing in flight starts one write per StarveAfter and pause (RetryAfterMax at
//     most), as long as writes end or fewer than InFlightMax are in flight. So writes of one kind that hang, for
//     example at a webhook, do not stop the others.
//   - The same history gives the same decisions.
//
// # What it does not do
//
// It has no queue and does not know requests: the shell queues waiting writes, first come first served within their
// kind. It does not limit reads, or writes that must not be late (the renewal of a lease).
//
// It is not safe for concurrent use.
package throttle

import (
	"fmt"
	"math"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Options configure a Limiter.
type Options struct {
	// InFlightMax is the largest number of writes in flight. It limits the load on a server that answers at once.
	InFlightMax int
	// Tolerance is how many times its rest value an answer may take without counting as slow. It is what this
	// component's writes may add to the latency of all clients. A higher value fills the server's queue more. With 1,
	// noise counts as overload.
	Tolerance float64
}

// ToleranceDefault is for components that write in bursts for which nothing waits within the second. It is half of what
// the project allows other clients to notice, a p99 of twice its rest value.
const ToleranceDefault = 1.5

const (
	// slack is added to what Tolerance allows. Smaller differences are noise of the machine's scheduler, at rest too.
	// Chosen: 1 ms.
	slack = time.Millisecond
	// cutSlow is what remains of the limit after a round of slow answers: as in CUBIC, RFC 9438 section 4.6.
	cutSlow = 0.7
	// cutRefused is the same after a refusal or a failure: as in RFC 5681 section 3.1.
	cutRefused = 0.5
	// slowMin is the lowest limit after slow answers: ToleranceDefault times what a server handles that can do only two
	// writes at once. Measured (bench/lifecycle, 5,000 nodes that renew their leases, two cores): with 0.25 the noise
	// of the nodes' renewals delayed the marks of 200 silent nodes by 14 s, with 2 by 0.6 s, with 4 by 0.3 s. When all
	// 5,000 nodes died, another client's p99 was 1.08 times its rest value with 2, and 1.15 times with 4. A higher
	// value adds to what other clients notice.
	slowMin = 3
	// limitMin is the lowest limit after refusals and failures: one write is in flight for a quarter of the time. With
	// a lower value, the limit needs longer to recover at a server that is slow in itself.
	limitMin = 0.25
	// roundMin is the smallest number of answers in a round. Chosen: fewer say nothing about a server whose garbage
	// collector runs.
	roundMin = 8
	// probeEvery is how often rest values are measured under load: BBR's 10 s (draft-cardwell-iccrg-bbr,
	// ProbeRTTInterval).
	probeEvery = 10 * time.Second
	// probeMax is the longest time of a probe, at a server whose answers take longer. Chosen: a tenth of the time.
	probeMax = time.Second
	// probeSoon is the shortest time between two probes, for a class that appears during a burst.
	probeSoon = time.Second
	// idleAfter is the pause after which the limit starts again at one: what the server handled before says little (RFC
	// 5681 section 4.1).
	idleAfter = 5 * time.Second
	// failurePause is the pause after a failure, doubled with each further failure without an answer in between.
	// Chosen: ten attempts a second, and later one every two seconds, do no harm to a server that fails.
	failurePause    = 100 * time.Millisecond
	failurePauseMax = 2 * time.Second
)

const (
	// StarveAfter is the longest time that a kind waits for more important kinds. Chosen: one Event a second is
	// negligible next to hundreds of binds, and shows a user that the component works.
	StarveAfter = time.Second
	// PeriodMax is the longest time between two writes that the limit causes: 20 writes a second, which is the default
	// rate of upstream's controllers (--kube-api-qps).
	PeriodMax = 50 * time.Millisecond
	// floorInFlight is how many writes may be in flight because of PeriodMax: as many as upstream's node lifecycle
	// controller has workers that write nodes (scheduler.UpdateWorkerSize). A server that answers nothing has at most
	// that many requests pending.
	floorInFlight = 8
	// RetryAfterMax is the longest Retry-After that is obeyed. The API server asks for 1 s (priority and fairness) to
	// 10 s.
	RetryAfterMax = 10 * time.Second
	// RetryAfterDefault is used for a refusal without Retry-After. It is what priority and fairness asks for.
	RetryAfterDefault = time.Second
)

// A phase says how the limit rises.
type phase int

const (
	rising phase = iota // it doubles: there was no sign of overload yet
	steady              // it rises by one
)

// Limiter limits the writes of one component to one server. Only its methods change its fields.
type Limiter struct {
	o     Options
	limit float64 // of writes in flight
	phase phase

	// By kind.
	waiting  [kindCount]int
	inFlight [kindCount]int
	since    [kindCount]unit.Instant // of a kind that waits: since when it has started no write
	credit   [kindCount]float64      // of a kind that waits: writes that it may start by its share, at most 1
	flying   int                     // sum of inFlight

	// The current round.
	round     round
	changed   unit.Instant // when limit was last changed; writes begun before say nothing about the present limit
	last      unit.Instant // when the last write started
	nextTurn  unit.Instant // with a limit below one: when the next write may start
	notBefore unit.Instant // no write starts before this moment, because the server asked for that or failed
	failures  int          // failures in a row
	heard     unit.Instant // when the last outcome arrived
	rests     map[Class]*rest
	probe     probe
}

// round is the answers that are evaluated together.
type round struct {
	answers, slow int
	most          int // largest number of writes in flight
}

// New returns a Limiter that knows nothing about its server.
func New(now unit.Instant, o Options) *Limiter {
	return &Limiter{
		o:       o,
		limit:   1,
		heard:   now,
		changed: now,
		rests:   map[Class]*rest{},
		probe:   probe{next: now.Add(probeEvery)},
	}
}

// Limit is how many writes may be in flight now. Below one it is the share of the time in which one write may be in
// flight.
func (l *Limiter) Limit() float64 { return l.limit }

// InFlight is how many writes are in flight.
func (l *Limiter) InFlight() int { return l.flying }

// Waiting is how many writes of a kind wait.
func (l *Limiter) Waiting(k Kind) int { return l.waiting[k] }

// Want records that one more write of this kind waits.
func (l *Limiter) Want(now unit.Instant, k Kind) {
	if l.waiting[k] == 0 {
		l.since[k], l.credit[k] = now, 0
	}
	l.waiting[k]++
}

// Quit records that one waiting write of this kind is no longer wanted.
func (l *Limiter) Quit(k Kind) { l.waiting[k]-- }

// Next starts a write if one may start now, and returns its kind. Call it until it returns false: after Want, after
// Done, and at Wake.
func (l *Limiter) Next(now unit.Instant) (k Kind, ok bool) {
	if !l.anyWaits() {
		return 0, false
	}
	if l.flying == 0 && now.Sub(l.heard) > idleAfter {
		l.idle(now)
	}
	if now < l.mayStart(now) {
		return 0, false
	}
	if k, ok = l.choose(now); !ok {
		return 0, false
	}
	l.waiting[k]--
	l.inFlight[k]++
	l.flying++
	l.since[k], l.last = now, now
	l.credit[k] = max(l.credit[k]-1, 0)
	for other := range kindCount {
		if other != k && l.waiting[other] > 0 {
			l.credit[other] = min(l.credit[other]+kinds[other].share, 1)
		}
	}
	l.round.most = max(l.round.most, l.flying)
	l.probe.started(l.flying)
	return k, true
}

// Wake is when Next may return something else although nothing has happened. Zero: only after Want or Done.
func (l *Limiter) Wake(now unit.Instant) unit.Instant {
	if at := l.mayStart(now); at > now && at != never && l.anyWaits() {
		return at
	}
	return 0
}

// never is later than any moment.
const never = unit.Instant(math.MaxInt64)

// mayStart is when the next write may start if no write ends before.
func (l *Limiter) mayStart(now unit.Instant) unit.Instant {
	floor := never
	if l.flying < min(floorInFlight, l.o.InFlightMax) && !l.probe.isOn(now) {
		floor = l.last.Add(PeriodMax)
	}
	if l.flying >= l.slots(now) {
		if l.probe.isOn(now) {
			floor = l.probe.until
		}
		return max(min(floor, l.starvesAt()), l.notBefore)
	}
	return max(min(l.nextTurn, floor), l.notBefore, now)
}

// starvesAt is when the first kind that waits and has nothing in flight may start a write beyond the limit.
func (l *Limiter) starvesAt() unit.Instant {
	at := never
	if l.flying >= l.o.InFlightMax {
		return at
	}
	for k := range kindCount {
		if l.waiting[k] > 0 && l.inFlight[k] == 0 {
			at = min(at, l.since[k].Add(StarveAfter))
		}
	}
	return at
}

func (l *Limiter) anyWaits() bool {
	for _, n := range l.waiting {
		if n > 0 {
			return true
		}
	}
	return false
}

// slots is the limit as a whole number of writes.
func (l *Limiter) slots(now unit.Instant) int {
	if l.probe.isOn(now) {
		return 1
	}
	return min(max(int(l.limit), 1), l.o.InFlightMax)
}

// choose returns the kind that has waited for too long; otherwise one that may start a write by its share; otherwise
// the most important one. Kinds that have reached their share of the limit wait.
func (l *Limiter) choose(now unit.Instant) (chosen Kind, ok bool) {
	starving := kindCount
	due := kindCount
	first := kindCount
	active := false // a more important kind waits or is in flight
	for k := range kindCount {
		if may := l.waiting[k] > 0 && (!active || l.inFlight[k] < max(1, int(l.limit*kinds[k].share))); may {
			first = min(first, k)
			if l.credit[k] >= 1 {
				due = min(due, k)
			}
			if l.inFlight[k] == 0 && now.Sub(l.since[k]) >= StarveAfter &&
				(starving == kindCount || l.since[k] < l.since[starving]) {
				starving = k
			}
		}
		active = active || l.waiting[k]+l.inFlight[k] > 0
	}
	for _, k := range []Kind{starving, due, first} {
		if k != kindCount {
			return k, true
		}
	}
	return 0, false
}

// idle drops what is known about how much the server handles.
func (l *Limiter) idle(now unit.Instant) {
	l.heard = now
	l.limit = min(l.limit, 1)
	l.phase = rising
	l.restart(now)
	l.probe = probe{next: now.Add(probeEvery), crowded: l.probe.crowded}
}

// restart begins a new round after the limit has changed.
func (l *Limiter) restart(now unit.Instant) {
	l.changed = now
	l.round = round{most: l.flying}
}

// Done records the end of a write. why is not empty if the server refused or failed and the limit was lowered because
// of that.
func (l *Limiter) Done(now unit.Instant, o Outcome) (why string) {
	alone := !l.probe.crowded
	l.flying--
	l.inFlight[o.Kind]--
	l.heard = now
	switch o.Answer {
	case Withdrawn:
		return ""
	case Refused, Failed:
		return l.pushedBack(now, o)
	}
	l.failures = 0
	began := now.Add(-o.Took)
	slow := l.isSlow(now, o)
	if alone {
		l.learn(now, o)
	}
	if began >= l.changed {
		l.round.answers++
		if slow {
			l.round.slow++
		}
		l.judge(now)
	}
	if l.limit < 1 {
		l.nextTurn = began.Add(time.Duration(float64(o.Took) / l.limit))
	}
	l.probe.turn(now, l)
	return ""
}

// judge ends a round that has enough answers. If most of them were slow, the limit falls. If few were, it rises,
// provided that it was reached.
func (l *Limiter) judge(now unit.Instant) {
	r := l.round
	if r.answers < max(roundMin, int(l.limit)) {
		return
	}
	switch {
	case 2*r.slow > r.answers:
		l.cut(now, cutSlow, slowMin)
	case 4*r.slow > r.answers:
		l.phase = steady
		l.round = round{most: l.flying}
	case l.probe.isOn(now):
		l.round = round{most: l.flying}
	default:
		l.rise(now, r.most)
	}
}

func (l *Limiter) rise(now unit.Instant, most int) {
	l.round = round{most: l.flying}
	if most < l.slots(now) || l.limit >= float64(l.o.InFlightMax) {
		return // more writes were not waiting, or are not allowed
	}
	switch {
	case l.limit < 1:
		l.limit = min(1, 2*l.limit)
	case l.phase == rising:
		l.limit *= 2
	default:
		l.limit++
	}
	l.limit = min(l.limit, float64(l.o.InFlightMax))
	l.restart(now)
}

// cut lowers the limit to a share of its value, but not below least.
func (l *Limiter) cut(now unit.Instant, to, least float64) {
	l.phase = steady
	l.limit = min(l.limit, max(l.limit*to, least))
	l.restart(now)
}

// pushedBack lowers the limit once for all writes that began under it, and sets a pause.
func (l *Limiter) pushedBack(now unit.Instant, o Outcome) (why string) {
	pause := o.RetryAfter
	if o.Answer == Failed {
		l.failures++
		pause = max(pause, failurePauseOf(l.failures))
	} else if pause <= 0 {
		pause = RetryAfterDefault
	}
	l.notBefore = max(l.notBefore, now.Add(min(pause, RetryAfterMax)))
	if now.Add(-o.Took) < l.changed {
		return ""
	}
	before := l.limit
	l.cut(now, cutRefused, limitMin)
	what := "refused: too many requests"
	if o.Answer == Failed {
		what = "failed or did not answer"
	}
	return fmt.Sprintf("%s after %v: %s; limit of writes in flight %.2g, was %.2g; next in %v",
		o.Class, o.Took.Round(time.Millisecond), what, l.limit, before, l.notBefore.Sub(now).Round(time.Millisecond))
}

func failurePauseOf(failures int) time.Duration {
	d := failurePause
	for i := 1; i < failures && d < failurePauseMax; i++ {
		d *= 2
	}
	return min(d, failurePauseMax)
}
