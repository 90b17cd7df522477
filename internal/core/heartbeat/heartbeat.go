// Package heartbeat decides when a node writes to the API: when it registers, renews its Lease, computes its status and
// reports it. The agent and the hollow nodes of the fleet both use it.
//
// # Model
//
// A Beat is the schedule of one node. Its shell calls Step with the time and with what happened since the last call
// (Facts), does what the Decision says, and calls Step again when an action ended, when something happened, or at
// Decision.Wake. There are five actions:
//
//	AskRuntime   ask the container runtime whether it and the network are ready
//	Register     create or take over the Node object, with a complete status in it
//	Renew        renew the Lease
//	Compute      compute the Node's status and compare it with the one last reported
//	Report       send the difference
//
// # Invariants
//
//   - At most one attempt of each action is in flight: an action is not given again before its outcome was passed to
//     Step. The shell limits the time of every attempt (AttemptMax) and always reports an outcome.
//   - Register comes before Renew, Compute and Report. It waits a short time for the runtime's first answer, so that a
//     node whose runtime is up is Ready in its first write.
//   - The Lease stands for more than a process. It is renewed only if the main loop has run and the runtime has
//     answered recently enough (Config.MainLoopMax, RuntimeMax). Reports stop together with the Lease, because the node
//     lifecycle controller takes either as a sign of life. Before that, the shell has reported what is silent.
//   - Failed attempts are repeated with exponential back-off and jitter, so that the retries of a fleet are spread. A
//     failed report of an unchanged status is not urgent: its retry is spread over half a period.
//   - Nodes that start together, or change together for one cause, do not stay synchronous: each node draws its first
//     renewal and computation at random within one period, and its reports half a period to one and a half periods
//     later.
//   - The same configuration and the same facts at the same times give the same decisions. Config.Seed is the only
//     source of randomness.
//
// # What it does not do
//
// It does not know the API, the contents of a status, or calendar time: facts are "changed", "ready", "failed".
// core/lifecycle decides what a silent node means.
package heartbeat

import (
	"math/bits"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Config says how often a node does what. Zero fields get the default; see Default.
type Config struct {
	// LeaseDuration is how long the Lease is valid (nodeLeaseDurationSeconds). It is renewed every quarter of that.
	LeaseDuration time.Duration
	// UpdateEvery is how often the status is computed (nodeStatusUpdateFrequency). A shorter time notices changes
	// sooner and costs CPU on an idle node.
	UpdateEvery time.Duration
	// ReportEvery is how often an unchanged status is reported (nodeStatusReportFrequency). A shorter time costs the
	// API server one write of a large object per node each time. It may be long, because the Lease shows that the node
	// is alive.
	ReportEvery time.Duration
	// RuntimeEvery is how often the runtime is asked while it is ready; negative: never, because the node has no
	// runtime.
	RuntimeEvery time.Duration
	// RuntimeMax is how long the runtime may be silent before the Lease is no longer renewed; negative: without limit.
	// The Node's condition is NotReady long before. The Lease is for the case that even the condition is not reliable.
	RuntimeMax time.Duration
	// MainLoopMax is the same for the agent's main loop; negative: the main loop is not watched.
	MainLoopMax time.Duration
	// Seed makes this node's jitter different from that of others. Derive it from the node's name and a random number
	// of the process.
	Seed uint64
}

// Default returns the intervals of the kubelet 1.36, and our limits on silence.
func Default() Config {
	return Config{
		LeaseDuration: 40 * time.Second,
		UpdateEvery:   10 * time.Second,
		ReportEvery:   5 * time.Minute,
		RuntimeEvery:  5 * time.Second,
		// The kubelet reports its view of the runtime as unhealthy after 3 min (PLEG relist threshold).
		RuntimeMax: 3 * time.Minute,
		// The same: the agent's main loop completes an iteration when it has read the runtime's containers.
		MainLoopMax: 3 * time.Minute,
	}
}

const (
	// A Lease is renewed after one renewFraction of its duration: three attempts may fail before it expires (upstream's
	// nodeLeaseRenewIntervalFraction 0.25).
	renewFraction = 4
	// jitterPermille is the random part of every period, so that nodes that started together drift apart (upstream:
	// 0.04).
	jitterPermille = 40
	// retryMin and retryMax are the shortest and the longest back-off of failed attempts (upstream registers at 100 ms
	// up to 7 s). A higher maximum is gentler on an API server that comes back, and later to notice it.
	retryMin = 100 * time.Millisecond
	retryMax = 7 * time.Second
	// runtimeRetryMax is the longest time between questions to a runtime that is not ready, and therefore how late a
	// node can become Ready. A question costs a millisecond.
	runtimeRetryMax = time.Second
	// registerGrace is how long the first registration waits for the runtime's first answer. With a longer time nodes
	// appear late. With a shorter one they appear NotReady and need a second write.
	registerGrace = 250 * time.Millisecond
	// registerSpread is the time over which nodes spread their new registrations when all Node objects were deleted at
	// once.
	registerSpread = time.Second
	// withheldEvery is how often Step checks whether a withheld Lease may be renewed. The facts that allow it are also
	// passed to Step when they happen.
	withheldEvery = 1 * time.Second
)

// FactKind says what happened.
type FactKind uint8

const (
	// RuntimeAsked, Registered, Renewed, Computed and Reported are the outcomes of the actions. OK: the action
	// succeeded.
	RuntimeAsked FactKind = iota + 1 // Ready: the runtime and the network are ready
	Registered                       // the status sent with the registration counts as reported
	Renewed
	Computed // Changed: the status differs from the one last reported
	Reported
	// MainLoopTurned: the agent's main loop completed an iteration.
	MainLoopTurned
	// Stale: something that the status depends on changed. Compute it now instead of at the next period.
	Stale
	// NodeGone: the Node object no longer exists.
	NodeGone
)

// Fact is something that happened since the last Step.
type Fact struct {
	Kind    FactKind
	OK      bool
	Changed bool
	Ready   bool
}

// Source is a part of the node whose silence stops the renewal of the Lease.
type Source string

// The sources.
const (
	Runtime  Source = "container runtime"
	MainLoop Source = "main loop"
)

// Decision says what to do now, in the order of the fields.
type Decision struct {
	AskRuntime, Register, Renew, Compute, Report bool

	Withheld Source        // the Lease is due, but not renewed, because this source is silent; empty: none
	Silent   time.Duration // how long Withheld has been silent; valid when it is set

	Wake unit.Instant // latest moment to call Step again; zero: when an outcome arrives
}

// action is the state of one of the five actions.
type action struct {
	// due is when the next attempt is made; zero: none is scheduled. pending: an attempt is in flight.
	due     unit.Instant
	pending bool
	failed  int // failed attempts in a row
}

// Beat is the schedule of one node. Make it with New. Only Step and Coast change it. It is for one goroutine at a time.
type Beat struct {
	// Set by New: c never changes, random is the state of draw.
	c      Config
	random uint64

	runtime, register, lease, compute, report action

	registered bool // the Node object exists, as far as is known
	// Other nodes may renew at the same moments: they registered, or regained the API server, when this node did.
	inStep       bool
	runtimeReady bool         // in the runtime's last answer
	runtimeAt    unit.Instant // when the runtime last answered; before the first answer, when the Beat was made
	// When the main loop last completed an iteration; before the first, when the Beat was made.
	mainLoopAt unit.Instant
	unsent     bool         // the computed status differs from the one last reported
	reportBy   unit.Instant // when an unchanged status is reported next; valid when registered
	again      bool         // the status must be computed again, because it became stale while it was being computed
}

// New returns the Beat of a node that starts at now.
func New(c Config, now unit.Instant) *Beat {
	d := Default()
	for _, f := range []struct{ field, byDefault *time.Duration }{
		{&c.LeaseDuration, &d.LeaseDuration}, {&c.UpdateEvery, &d.UpdateEvery}, {&c.ReportEvery, &d.ReportEvery},
		{&c.RuntimeEvery, &d.RuntimeEvery}, {&c.RuntimeMax, &d.RuntimeMax}, {&c.MainLoopMax, &d.MainLoopMax},
	} {
		if *f.field == 0 {
			*f.field = *f.byDefault
		}
	}
	b := &Beat{c: c, random: c.Seed, runtimeAt: now, mainLoopAt: now}
	b.runtime.due = now
	b.register.due = now
	if b.hasRuntime() {
		b.register.due = now.Add(registerGrace)
	}
	return b
}

// AttemptMax is the longest time that one attempt to register, renew or report may take.
func (b *Beat) AttemptMax() time.Duration { return b.c.LeaseDuration / renewFraction }

// Step takes what happened and returns what to do next. now must not go backwards.
func (b *Beat) Step(now unit.Instant, seen ...Fact) Decision {
	for _, f := range seen {
		b.learn(now, f)
	}
	var d Decision
	if b.hasRuntime() {
		d.AskRuntime = b.begin(now, &b.runtime, &d)
	}
	if !b.registered {
		d.Register = b.begin(now, &b.register, &d)
		return d
	}
	source, silent := b.silence(now)
	if source == "" {
		d.Renew = b.begin(now, &b.lease, &d)
	} else if !b.lease.pending && now >= b.lease.due {
		d.Withheld, d.Silent = source, silent
		d.Wake = d.Wake.Earlier(now.Add(withheldEvery))
	}
	// Compute and Report are never in flight together, so that a status does not change while it is sent.
	if !b.report.pending {
		d.Compute = b.begin(now, &b.compute, &d)
	}
	if !b.compute.pending && source == "" {
		d.Report = b.begin(now, &b.report, &d)
	}
	return d
}

// begin reports whether to start an attempt of a now, and marks it as in flight. If it is too early, it sets d.Wake.
func (b *Beat) begin(now unit.Instant, a *action, d *Decision) bool {
	if a.pending || a.due.IsZero() {
		return false
	}
	if now < a.due {
		d.Wake = d.Wake.Earlier(a.due)
		return false
	}
	a.pending = true
	return true
}

func (b *Beat) learn(now unit.Instant, f Fact) {
	switch f.Kind {
	case RuntimeAsked:
		b.learnRuntime(now, f)
	case Registered:
		if b.end(now, &b.register, f.OK) {
			b.learnRegistered(now)
		}
	case Renewed:
		b.learnRenewed(now, f.OK)
	case Computed:
		b.learnComputed(now, f)
	case Reported:
		b.learnReported(now, f.OK)
	case MainLoopTurned:
		b.mainLoopAt = now
	case Stale:
		b.stale(now)
	case NodeGone:
		if b.registered {
			b.registered = false
			b.register.due, b.register.failed = now.Add(b.draw(registerSpread)), 0
		}
	}
}

func (b *Beat) learnRegistered(now unit.Instant) {
	b.registered = true
	b.unsent = false
	b.inStep = true
	b.reportBy = b.nextReport(now)
	b.lease.due, b.lease.failed = now, 0
	b.report.due, b.report.failed = b.reportBy, 0
	b.compute.due, b.compute.failed = now.Add(b.draw(b.c.UpdateEvery)), 0
	if b.runtimeReady {
		b.stale(now) // it may have become ready after the status that went with the registration
	}
}

func (b *Beat) learnRenewed(now unit.Instant, ok bool) {
	if !b.end(now, &b.lease, ok) {
		b.inStep = true
		return
	}
	period := b.c.LeaseDuration / renewFraction
	b.lease.due = now.Add(b.spread(period))
	if b.inStep {
		b.lease.due, b.inStep = now.Add(b.draw(period)), false
	}
}

// learnReported draws the next report of a changed status at random, so that nodes that changed at the same moment do
// not report together. A failed report of an unchanged status is retried much later: when the API server comes back,
// other requests of the fleet are more important.
func (b *Beat) learnReported(now unit.Instant, ok bool) {
	parted := !b.unsent && b.report.failed == 0
	if !b.end(now, &b.report, ok) {
		if !b.unsent {
			b.report.due = now.Add(retryMax + b.draw(b.c.ReportEvery/2))
		}
		return
	}
	if parted {
		b.reportBy = now.Add(b.spread(b.c.ReportEvery))
	} else {
		b.reportBy = b.nextReport(now)
	}
	b.report.due, b.unsent = b.reportBy, false
}

// nextReport is when an unchanged status is reported after a change. Upstream draws from the same range.
func (b *Beat) nextReport(now unit.Instant) unit.Instant {
	return now.Add(b.c.ReportEvery/2 + b.draw(b.c.ReportEvery))
}

// learnRuntime schedules the next question, soon if the runtime is not ready. A change between ready and not ready
// makes the status stale at once.
func (b *Beat) learnRuntime(now unit.Instant, f Fact) {
	if f.OK {
		b.runtimeAt = now
	}
	was := b.runtimeReady
	b.runtimeReady = f.OK && f.Ready
	if b.end(now, &b.runtime, b.runtimeReady) {
		b.runtime.due = now.Add(b.spread(b.c.RuntimeEvery))
	} else {
		b.runtime.due = min(b.runtime.due, now.Add(min(b.c.RuntimeEvery, runtimeRetryMax)))
	}
	switch {
	case !b.registered && !b.register.pending && b.register.failed == 0:
		b.register.due = now
	case b.registered && was != b.runtimeReady:
		b.stale(now)
	}
}

// stale schedules the computation of the status now. If one is in flight, it schedules another one after that.
func (b *Beat) stale(now unit.Instant) {
	b.again = b.again || b.compute.pending
	b.compute.due = now
}

func (b *Beat) learnComputed(now unit.Instant, f Fact) {
	if b.end(now, &b.compute, f.OK) {
		b.compute.due = now.Add(b.spread(b.c.UpdateEvery))
	}
	if b.again {
		b.again, b.compute.due = false, now
	}
	if !f.OK || f.Changed == b.unsent {
		return
	}
	b.unsent = f.Changed
	b.report.failed = 0
	b.report.due = b.reportBy // it changed back before the change was reported
	if f.Changed {
		b.report.due = now
	}
}

// end ends an attempt. A failed one is due again after a back-off.
func (b *Beat) end(now unit.Instant, a *action, ok bool) bool {
	a.pending = false
	if ok {
		a.failed = 0
		return true
	}
	backoff := retryMax
	if a.failed < 7 { // 100 ms << 7 is above the maximum
		backoff = min(retryMin<<a.failed, retryMax)
	}
	a.failed++
	a.due = now.Add(backoff/2 + b.draw(backoff/2))
	return false
}

func (b *Beat) hasRuntime() bool { return b.c.RuntimeEvery > 0 }

// silence returns the source that has been silent for too long, and for how long.
func (b *Beat) silence(now unit.Instant) (Source, time.Duration) {
	if silent := now.Sub(b.mainLoopAt); b.c.MainLoopMax > 0 && silent > b.c.MainLoopMax {
		return MainLoop, silent
	}
	if silent := now.Sub(b.runtimeAt); b.hasRuntime() && b.c.RuntimeMax > 0 && silent > b.c.RuntimeMax {
		return Runtime, silent
	}
	return "", 0
}

// spread adds jitter to a period.
func (b *Beat) spread(period time.Duration) time.Duration {
	return period + b.draw(period*jitterPermille/1000)
}

// draw returns a random duration in [0, below). The generator is splitmix64 (Steele, Lea, Flood 2014), whose state is
// eight bytes, little enough for ten thousand hollow nodes.
func (b *Beat) draw(below time.Duration) time.Duration {
	if below <= 0 {
		return 0
	}
	b.random += 0x9e3779b97f4a7c15
	z := b.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	drawn, _ := bits.Mul64(z^z>>31, uint64(below)) // scaled by multiplication: a division would cost more than the rest
	return time.Duration(drawn)
}
