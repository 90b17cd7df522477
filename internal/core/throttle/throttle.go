// Package throttle decides how many writes of one component may wait for the API server at once, which goes next, and
// when: an adaptive concurrency limit, as congestion control has it.
//
// # Model
//
// A shell says what wants to be written (Want), starts what may start (Next), and says what came of each write (Done):
// how long the server took, or how it refused. From that alone the Limiter learns what the server bears; it is told no
// rate.
//
//   - The limit rises by one for each round of writes that the server answered about as fast as ever, and falls when it
//     took longer, refused or failed: additive increase, multiplicative decrease (RFC 5681). After the start, after a
//     pause and after a failure it doubles from one, until the first sign of trouble.
//   - "As fast as ever" is a class's rest value: what its writes took while no other of ours was in flight. A class is
//     a kind of request, because a deletion takes longer than a patch. Under load the Limiter goes down to one write at
//     a time every few seconds to measure it (as BBR does). It falls at once and rises slowly, so that a server which
//     others keep busy is left alone for a while before its slowness is taken as its nature.
//   - Slow answers alone leave three writes in flight (slowMin): a server may be slow because of others, and what it is
//     asked for is due all the same. Refusals and failures go below that; a limit below one is a pause between writes.
//   - What the server says in a Retry-After is obeyed. Failures one after another are followed by growing pauses.
//   - Else one write may start in each PeriodMax, whatever the limit, as long as there are few in flight
//     (floorInFlight): what is due to a server that is slow because of others is not to wait for them for ever, and is
//     not more than upstream's controllers send.
//
// # Who goes next
//
// Kinds stand in the order in which they protect the cluster. While something more important is in flight or waits, a
// kind has its share of the writes that start, and at most its share of the limit, or one write. A kind that has waited
// for StarveAfter with nothing in flight goes first.
//
// # Invariants
//
//   - Never more than Options.InFlightMax in flight.
//   - Each kind that waits and has nothing in flight starts one per StarveAfter and pause (RetryAfterMax at most), as
//     long as writes end or there are fewer than InFlightMax: writes of one kind that hang, at a webhook of theirs, do
//     not hold up the others.
//   - The same history gives the same decisions.
//
// It queues nothing itself and knows no request: the shell keeps those that wait, first come first served within their
// kind. Reads, and what must not be late (the renewal of a lease), are not its business.
//
// It is not safe for concurrent use.
package throttle

import (
	"fmt"
	"math"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Kind is what a write is for, the most important first.
type Kind int

// The kinds, in the order in which they protect the cluster.
const (
	Mark      Kind = iota // conditions and taints of nodes: nothing more is sent to a node that is lost
	Readiness             // readiness of pods on lost nodes: takes them out of Services
	Evict                 // the end of pods that have to leave
	Bind                  // a pod's node
	Status                // what a pod is doing, or why it waits
	Overdue               // Events that have waited for too long (EventKind)
	Warning               // Events of type Warning
	Event                 // other Events
	kindCount
)

// kinds says of each what it is called, and its share while something more important is active: of the writes that
// start, and of the limit. Chosen so that marks keep two thirds of a busy server when all else waits too, binds nine
// tenths beside what follows them, and so that Events, which cost the server as much as a bind, cost a burst of binds
// or marks a few hundredths. Those that are overdue go out one for each other write: whoever lets its Events become
// overdue makes one per write, and more than that are never left behind.
var kinds = [kindCount]struct {
	name  string
	share float64
}{
	Mark:      {"mark", 1},
	Readiness: {"readiness", 1. / 8},
	Evict:     {"evict", 1. / 8},
	Bind:      {"bind", 3. / 4},
	Status:    {"status", 1. / 16},
	Overdue:   {"overdue", 1},
	Warning:   {"warning", 1. / 32},
	Event:     {"event", 1. / 64},
}

// Kinds are all kinds, the most important first.
func Kinds() []Kind {
	all := make([]Kind, kindCount)
	for k := range all {
		all[k] = Kind(k)
	}
	return all
}

func (k Kind) String() string {
	if k < 0 || k >= kindCount {
		return fmt.Sprintf("kind %d", int(k))
	}
	return kinds[k].name
}

const (
	// WarningOverdueAfter and EventOverdueAfter are how long Events give way to a burst. Chosen: who looks why a pod is
	// not placed waits a second; a burst of some thousand pods, which takes a server that bears 800 binds a second 10
	// s, is not slowed by telling of it.
	WarningOverdueAfter = time.Second
	EventOverdueAfter   = 10 * time.Second
)

// EventKind says as what an Event counts at first, and as what after it has waited for so long, for who makes an Event
// for each of its writes: in a burst they give way, in a rush that does not end they keep up with it.
func EventKind(warning bool) (first Kind, then Kind, after time.Duration) {
	if warning {
		return Warning, Overdue, WarningOverdueAfter
	}
	return Event, Overdue, EventOverdueAfter
}

// Class is what a write asks of the server: method and resource. Those of one class take about as long.
type Class string

// An Answer is how a write ended.
type Answer int

// The answers.
const (
	Answered  Answer = iota // by the server, be it with an error of the caller's: the time it took counts
	Refused                 // the server has too much to do (429)
	Failed                  // 5xx, no answer in time, no connection
	Withdrawn               // the caller gave up: says nothing
)

var answers = [...]string{Answered: "answered", Refused: "refused", Failed: "failed", Withdrawn: "withdrawn"}

func (a Answer) String() string {
	if a < 0 || int(a) >= len(answers) {
		return fmt.Sprintf("answer %d", int(a))
	}
	return answers[a]
}

// Outcome is what came of a write.
type Outcome struct {
	Kind       Kind
	Class      Class
	Took       time.Duration // from its start to its answer
	Answer     Answer
	RetryAfter time.Duration // what a refusal asked for; zero: nothing
}

// Options configure a Limiter.
type Options struct {
	// InFlightMax is the most writes in flight. It bounds what a server that answers in no time is given.
	InFlightMax int
	// Tolerance is how many times its rest value an answer may take and the server count as well. It is what our writes
	// may add to everybody's latency. Raising it fills the server's queue more; 1 would take noise for trouble.
	Tolerance float64
}

// ToleranceDefault is for who writes in bursts that nobody waits for within the second: half of what the project allows
// others to feel, a p99 of twice its value at rest.
const ToleranceDefault = 1.5

const (
	// slack is added to what Tolerance allows. Below it lies the noise of a machine's scheduler, at rest too. Chosen: 1
	// ms.
	slack = time.Millisecond
	// cutSlow is what remains of the limit after a round of slow answers: CUBIC's, RFC 9438 section 4.6.
	cutSlow = 0.7
	// cutRefused is the same after a refusal or a failure: RFC 5681 section 3.1.
	cutRefused = 0.5
	// slowMin is the least limit for slow answers: ToleranceDefault times what a server bears that can do only two
	// writes at once. Measured (bench/lifecycle, 5,000 nodes that beat, two cores): with 0.25 the noise of the nodes'
	// own renewals held marks of 200 silent nodes up for 14 s, with 2 for 0.6 s, with 4 for 0.3 s. When all 5,000 died,
	// another client's p99 was 1.08 times its rest value with 2, 1.15 times with 4. Raising it adds to what others
	// feel.
	slowMin = 3
	// limitMin is the least limit for refusals and failures: a quarter of the time one write is in flight. Lower waits
	// longer for a server that is slow by nature.
	limitMin = 0.25
	// roundMin is how many answers make a round at least. Chosen: fewer tell nothing about a server whose garbage
	// collector runs.
	roundMin = 8
	// probeEvery is how often the rest value is measured under load: BBR's 10 s (draft-cardwell-iccrg-bbr,
	// ProbeRTTInterval).
	probeEvery = 10 * time.Second
	// probeMax is how long that lasts at most, on a server that takes longer for its answers. Chosen: a tenth of the
	// time.
	probeMax = time.Second
	// probeSoon is the least time between two probes, for a class that appears in the middle of a burst.
	probeSoon = time.Second
	// idleAfter is the pause after which the server is felt for anew: what it bore then says little (RFC 5681 section
	// 4.1).
	idleAfter = 5 * time.Second
	// failurePause is the pause after a failure, doubled with each that follows without an answer between. Chosen: ten
	// attempts a second, and in the end one every two, are nothing to a server that fails.
	failurePause    = 100 * time.Millisecond
	failurePauseMax = 2 * time.Second
)

const (
	// StarveAfter is how long a kind waits at most for what is more important. Chosen: one Event a second is nothing
	// beside hundreds of binds, and tells a user that somebody is there.
	StarveAfter = time.Second
	// PeriodMax is the longest time from one write to the next that the limit makes: 20 writes a second, at which
	// upstream's controllers write at all times (--kube-api-qps).
	PeriodMax = 50 * time.Millisecond
	// floorInFlight is how many writes may be in flight because of it: the workers with which upstream's node lifecycle
	// controller writes nodes (scheduler.UpdateWorkerSize). A server that answers nothing has so many to answer.
	floorInFlight = 8
	// RetryAfterMax bounds what a Retry-After can ask for. The API server asks for 1 s (priority and fairness) to 10 s.
	RetryAfterMax = 10 * time.Second
	// RetryAfterDefault is for a refusal that asks for nothing: what priority and fairness asks for.
	RetryAfterDefault = time.Second
)

// A phase is how the limit rises.
type phase int

const (
	rising phase = iota // doubling, as nothing is known against it
	steady              // by one
)

// Limiter is the limit of one component towards one server.
type Limiter struct {
	o     Options
	limit float64 // of writes in flight
	phase phase

	waiting  [kindCount]int
	inFlight [kindCount]int
	since    [kindCount]unit.Instant // of a kind that waits: since when it has not started one
	credit   [kindCount]float64      // of a kind that waits: writes that are due to it by its share
	flying   int

	round     round
	changed   unit.Instant // when the limit last was: writes begun before say nothing about what it is now
	last      unit.Instant // when the last write started
	nextTurn  unit.Instant // when the next may, by a limit below one
	notBefore unit.Instant // no write starts before: the server asked for it, or failed
	failures  int          // without an answer between
	heard     unit.Instant // the last outcome
	rests     map[Class]*rest
	probe     probe
}

// round is the answers that are judged together.
type round struct {
	answers, slow int
	most          int // in flight
}

// New returns a Limiter that knows nothing of its server.
func New(now unit.Instant, o Options) *Limiter {
	return &Limiter{o: o, limit: 1, heard: now, changed: now, rests: map[Class]*rest{}, probe: probe{next: now.Add(probeEvery)}}
}

// Limit is how many writes may be in flight now; below one it is the share of the time that one may.
func (l *Limiter) Limit() float64 { return l.limit }

// InFlight is how many writes are.
func (l *Limiter) InFlight() int { return l.flying }

// Waiting is how many writes of a kind wait.
func (l *Limiter) Waiting(k Kind) int { return l.waiting[k] }

// Want notes that one more write of this kind waits.
func (l *Limiter) Want(now unit.Instant, k Kind) {
	if l.waiting[k] == 0 {
		l.since[k], l.credit[k] = now, 0
	}
	l.waiting[k]++
}

// Quit notes that one of those that waited does not want to any more.
func (l *Limiter) Quit(k Kind) { l.waiting[k]-- }

// Next starts a write, if one may start now, and says of which kind. Call it until it says no, after Want and Done and
// at Wake.
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

// Wake is when Next may say otherwise although nothing happened. Zero: only after Want or Done.
func (l *Limiter) Wake(now unit.Instant) unit.Instant {
	if at := l.mayStart(now); at > now && at != never && l.anyWaits() {
		return at
	}
	return 0
}

// never is later than any moment.
const never = unit.Instant(math.MaxInt64)

// mayStart is when the next write may start if none ends.
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

// starvesAt is when the first kind that waits and has nothing in flight may start one beyond the limit.
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

// slots is the limit in whole writes.
func (l *Limiter) slots(now unit.Instant) int {
	if l.probe.isOn(now) {
		return 1
	}
	return min(max(int(l.limit), 1), l.o.InFlightMax)
}

// choose returns the kind that has waited too long, else one to which a write is due by its share, else the most
// important; those that have their share of the limit wait.
func (l *Limiter) choose(now unit.Instant) (chosen Kind, ok bool) {
	starving, due, first := kindCount, kindCount, kindCount
	active := false // something more important is
	for k := range kindCount {
		if may := l.waiting[k] > 0 && (!active || l.inFlight[k] < max(1, int(l.limit*kinds[k].share))); may {
			first = min(first, k)
			if l.credit[k] >= 1 {
				due = min(due, k)
			}
			if l.inFlight[k] == 0 && now.Sub(l.since[k]) >= StarveAfter && (starving == kindCount || l.since[k] < l.since[starving]) {
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

// idle forgets what the server bore.
func (l *Limiter) idle(now unit.Instant) {
	l.heard = now
	l.limit = min(l.limit, 1)
	l.phase = rising
	l.restart(now)
	l.probe = probe{next: now.Add(probeEvery), crowded: l.probe.crowded}
}

// restart begins a new round under a limit that has changed.
func (l *Limiter) restart(now unit.Instant) {
	l.changed = now
	l.round = round{most: l.flying}
}

// Done notes the end of a write. why is not empty if the server pushed back and the limit was lowered for it.
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

// judge ends a round that has enough answers: most of them slow, and the limit falls; few, and it rises, if it was
// reached.
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
		return // more was not wanted, or is not allowed
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

// cut lowers the limit to a share of what it is, but not below least.
func (l *Limiter) cut(now unit.Instant, to, least float64) {
	l.phase = steady
	l.limit = min(l.limit, max(l.limit*to, least))
	l.restart(now)
}

// pushedBack lowers the limit once for what was begun under it, and pauses.
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
	return fmt.Sprintf("%s after %v: %s; limit of writes in flight %.2g, was %.2g; next in %v", o.Class, o.Took.Round(time.Millisecond), what, l.limit, before,
		l.notBefore.Sub(now).Round(time.Millisecond))
}

func failurePauseOf(failures int) time.Duration {
	d := failurePause
	for i := 1; i < failures && d < failurePauseMax; i++ {
		d *= 2
	}
	return min(d, failurePauseMax)
}
