// Package heartbeat decides when a node speaks: when to register, when to renew its Lease, when to look at itself and
// when to report what it saw. The agent and the hollow nodes of the fleet run the same Beat.
//
// # Model
//
// A Beat is one node's rhythm. Its shell calls Step with the time and with what happened since (Facts), does what the
// Decision says, and calls again when an action ended, when something happened, or at Decision.Wake. Five actions:
//
//	AskRuntime   ask the container runtime whether it and the network are ready
//	Register     create or take over the Node object, with a complete status in it
//	Renew        renew the Lease
//	Compute      work out the Node's status and compare it with the one last reported
//	Report       send what differs
//
// # Invariants
//
//   - At most one of each action is under way: an action is not given again before its outcome came back as a Fact. The
//     shell bounds every attempt (AttemptMax) and always brings an outcome.
//   - Register comes before Renew, Compute and Report, and waits shortly for the runtime's first answer, so that a node
//     whose runtime is up is Ready in its first write.
//   - The Lease stands for more than a process: it is renewed only while the main loop turned and the runtime answered
//     recently enough (Config.MainLoopMax, RuntimeMax). Reports are withheld with it, as a controller takes either for a
//     sign of life. Before that the shell has said in a report what is silent.
//   - Failed attempts are repeated with exponential back-off and jitter, so that a fleet comes back spread out. The report
//     of an unchanged status has no hurry at all: it comes back over half a period.
//   - Nodes that start together, or that one cause changes together, do not beat in step: each begins its renewals and
//     computations at a moment of its own within a period, and its reports half a period to one and a half later.
//   - Same configuration, same facts at the same times: same decisions. Chance comes from Config.Seed alone.
//
// # What it does not do
//
// It knows no API, no status and no calendar: facts are "changed", "ready", "failed". What a silent node means is
// core/lifecycle's business.
package heartbeat

import (
	"math/bits"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Config is a node's rhythm. Zero fields take the default; see Default.
type Config struct {
	// LeaseDuration is how long the Lease stands for the node (nodeLeaseDurationSeconds). It is renewed at a quarter of it.
	LeaseDuration time.Duration
	// UpdateEvery is how often the status is computed (nodeStatusUpdateFrequency). Shorter notices changes sooner and
	// costs CPU when idle.
	UpdateEvery time.Duration
	// ReportEvery is how often an unchanged status is reported (nodeStatusReportFrequency). Shorter costs the API server a
	// write of a large object per node; the Lease carries liveness, so it may be long.
	ReportEvery time.Duration
	// RuntimeEvery is how often the runtime is asked once it is ready; negative: never, the node has no runtime.
	RuntimeEvery time.Duration
	// RuntimeMax is how long the runtime may be silent before the Lease is withheld; negative: for ever. The Node says
	// NotReady long before: the Lease goes when even that can no longer be trusted.
	RuntimeMax time.Duration
	// MainLoopMax is the same for the agent's main loop; negative: it does not matter.
	MainLoopMax time.Duration
	// Seed makes this node's jitter its own. Derive it from the node's name and a random draw of the process.
	Seed uint64
}

// Default is the rhythm of the kubelet 1.36, and our bounds on silence.
func Default() Config {
	return Config{
		LeaseDuration: 40 * time.Second,
		UpdateEvery:   10 * time.Second,
		ReportEvery:   5 * time.Minute,
		RuntimeEvery:  5 * time.Second,
		RuntimeMax:    3 * time.Minute, // the kubelet calls its view of the runtime unhealthy at 3 min (PLEG relist threshold)
		MainLoopMax:   3 * time.Minute, // the same: the agent's loop turns when it has read what the runtime runs
	}
}

const (
	// renewFraction of the lease's duration passes between renewals: three attempts may fail before it lapses (upstream's
	// nodeLeaseRenewIntervalFraction 0.25).
	renewFraction = 4
	// jitterPermille spreads every period, so that nodes that started together drift apart (upstream: 0.04).
	jitterPermille = 40
	// retryMin and retryMax bound the back-off of failed attempts (upstream registers at 100 ms up to 7 s). A higher
	// maximum is gentler on an API server that comes back and slower to notice that it did.
	retryMin = 100 * time.Millisecond
	retryMax = 7 * time.Second
	// runtimeRetryMax bounds the wait between questions to a runtime that is not ready: it is how late a node can become
	// Ready, and a question costs a millisecond.
	runtimeRetryMax = time.Second
	// registerGrace is how long the first registration waits for the runtime's first answer. Longer risks a node that
	// appears late, shorter one that appears NotReady and is corrected by a second write.
	registerGrace = 250 * time.Millisecond
	// registerSpread parts nodes that register again because somebody deleted them all at once.
	registerSpread = time.Second
	// withheldEvery is how often a withheld Lease is thought over. The facts that free it come by Step anyway.
	withheldEvery = 1 * time.Second
)

// FactKind is what happened.
type FactKind uint8

const (
	// RuntimeAsked, Registered, Renewed, Computed and Reported are the outcomes of the actions. OK says that it worked.
	RuntimeAsked FactKind = iota + 1 // Ready: it and the network are ready
	Registered                       // the status that went with it counts as reported
	Renewed
	Computed // Changed: the status differs from the one last reported
	Reported
	// MainLoopTurned says that the agent's main loop made a pass.
	MainLoopTurned
	// Stale says that something the status speaks of changed: compute now, do not wait for the next period.
	Stale
	// NodeGone says that the Node object does not exist any more.
	NodeGone
)

// Fact is something that happened since the last Step.
type Fact struct {
	Kind    FactKind
	OK      bool
	Changed bool
	Ready   bool
}

// Source is somebody whose silence withholds the Lease.
type Source string

// Sources.
const (
	Runtime  Source = "container runtime"
	MainLoop Source = "main loop"
)

// Decision is what to do now, in the order of the fields.
type Decision struct {
	AskRuntime, Register, Renew, Compute, Report bool

	Withheld Source        // whose silence withholds the Lease that is due; empty: nobody's
	Silent   time.Duration // for how long; valid when Withheld is set

	Wake unit.Instant // latest moment to call Step again; zero: when an outcome arrives
}

// action is one thing that is done again and again.
type action struct {
	due     unit.Instant
	pending bool
	failed  int // attempts in a row
}

// Beat is one node's rhythm. Make it with New.
type Beat struct {
	c      Config
	random uint64

	runtime, register, lease, compute, report action

	registered   bool
	inStep       bool         // others may renew at our moments: they registered, or the API server came back to them, when it did to us
	runtimeReady bool         // by its last answer
	runtimeAt    unit.Instant // its last answer; the start before the first
	mainLoopAt   unit.Instant // its last turn; the start before the first
	unsent       bool         // the computed status differs from the one last reported
	reportBy     unit.Instant // when an unchanged status is reported; valid when registered
	again        bool         // the status became stale while it was computed
}

// New starts a rhythm at now.
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

// AttemptMax is the longest one attempt to register, renew or report may take.
func (b *Beat) AttemptMax() time.Duration { return b.c.LeaseDuration / renewFraction }

// Step takes in what happened and says what to do next. now must not go backwards.
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
	// Computing and reporting take turns, so that what is sent does not change while it is sent.
	if !b.report.pending {
		d.Compute = b.begin(now, &b.compute, &d)
	}
	if !b.compute.pending && source == "" {
		d.Report = b.begin(now, &b.report, &d)
	}
	return d
}

// begin reports whether a is to be done now, and puts it under way; else it leaves word when to wake.
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
	b.registered, b.unsent, b.inStep = true, false, true
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

// learnReported parts the next reports of nodes that one cause changed in one moment. A failed report of an unchanged
// status is tried again much later: when the API server comes back, a fleet has more important things to say.
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

// nextReport is when an unchanged status is reported after a change (upstream draws as widely).
func (b *Beat) nextReport(now unit.Instant) unit.Instant {
	return now.Add(b.c.ReportEvery/2 + b.draw(b.c.ReportEvery))
}

// learnRuntime asks again soon while the runtime is not ready, and makes its becoming ready, or ceasing to be, known at
// once.
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

// stale makes the status be computed now, or once more when it is being computed now.
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
	b.report.due = b.reportBy // it changed back before anybody was told
	if f.Changed {
		b.report.due = now
	}
}

// end settles an attempt; a failed one is due again after a back-off.
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

// silence returns who has been silent for too long, and for how long.
func (b *Beat) silence(now unit.Instant) (Source, time.Duration) {
	if silent := now.Sub(b.mainLoopAt); b.c.MainLoopMax > 0 && silent > b.c.MainLoopMax {
		return MainLoop, silent
	}
	if silent := now.Sub(b.runtimeAt); b.hasRuntime() && b.c.RuntimeMax > 0 && silent > b.c.RuntimeMax {
		return Runtime, silent
	}
	return "", 0
}

// spread lengthens a period by its jitter.
func (b *Beat) spread(period time.Duration) time.Duration {
	return period + b.draw(period*jitterPermille/1000)
}

// draw returns a duration in [0, below). The generator is splitmix64 (Steele, Lea, Flood 2014): eight bytes of state,
// which ten thousand hollow nodes can afford.
func (b *Beat) draw(below time.Duration) time.Duration {
	if below <= 0 {
		return 0
	}
	b.random += 0x9e3779b97f4a7c15
	z := b.random
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	drawn, _ := bits.Mul64(z^z>>31, uint64(below)) // the share z has of 2^64: a division would cost more than the rest
	return time.Duration(drawn)
}
