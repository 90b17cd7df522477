// Package probe decides when to probe a container, and what the answers mean: whether it has started, is ready, or must
// be restarted.
//
// # Model
//
// There is one Run per run of a container. Step takes the answers of probes since the last step, and says which probes
// to run now. The shell runs them and reports each answer once. Every probe has a period, which counts from when it
// last began, and thresholds of consecutive answers that change the verdict. The startup probe comes first: until it
// has succeeded, no other probe runs. If it fails, the container is dead, as if its liveness probe had failed.
//
// # Invariants
//
//   - A probe does not begin while the last one of its kind has not been answered.
//   - A probe never begins before it is due. One that is not early begins up to 50 ms after, with those of other
//     containers. The next is due one period after the last was due, so that these delays do not add up.
//   - The verdict changes only by answers, never because time passes.
//   - An unknown answer (the runtime failed, not the container) changes nothing, and does not interrupt a row of
//     failures.
//   - Once dead, a run stays dead and is not probed for liveness any more. Only a new run changes that.
//   - A container that is being stopped is never found dead. Its readiness is still probed, because it may still serve.
//
// # What it does not do
//
// It sends nothing and knows no protocols. It is not for the health of nodes: that is core/lifecycle.
package probe

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Kind is the kind of a probe.
type Kind int

// The kinds, in the order in which due probes begin.
const (
	Startup   Kind = iota // has it started?
	Readiness             // should it get traffic?
	Liveness              // must it be restarted?
	kinds
)

var kindNames = [kinds]string{"Startup", "Readiness", "Liveness"}

// String returns the kind as upstream's Events spell it.
func (k Kind) String() string { return kindNames[k] }

// Spec is one probe of a container. Zero values are replaced by upstream's defaults, because the API server sets none
// for static pods.
type Spec struct {
	InitialDelay time.Duration // from the container's start to the first probe
	Period       time.Duration // from one beginning to the next; zero: 10 s
	Timeout      time.Duration // of one probe; zero: 1 s; the shell enforces it
	Failures     int           // consecutive failures that make it fail; zero: 3
	Successes    int           // consecutive successes that make it succeed after a failure; zero: 1

	// Eager: a probe costs next to nothing. A startup or readiness probe then runs more often within its first period,
	// until it first succeeds. So a container that is up after 0.4 s does not wait for 10 s because its first probe
	// came too soon. Failures of such early probes do not count.
	Eager bool
}

const (
	// eagerMin is the time between the first two early probes; each next one is twice as long. Chosen: a program in a
	// container listens 50 ms to a few seconds after its start.
	eagerMin = 100 * time.Millisecond

	// firstAfter is the shortest time from a container's start to a probe that is not eager. Chosen: upstream's first
	// probe follows its relist of containers, up to a second after the start. A probe before that would only fail, and
	// the next would come a period later.
	firstAfter = time.Second

	// together is what the times of probes that are not early are rounded up to. So the probes of many containers begin
	// at the same moments, and the process wakes up once for all of them. It is at most a twentieth of a period, which
	// the API gives in whole seconds. Measured 2026-11-25 with bench/node, 110 pods with a probe each second on two
	// CPUs: a probe costs 0.37 ms of CPU; 0.60 ms if each begins at a moment of its own. Most of both is the kernel's
	// work for a new connection.
	together = 50 * time.Millisecond
)

// FailuresDefault is how many failures in a row count, unless a Spec says otherwise (kubelet: 3).
const FailuresDefault = 3

// WithDefaults returns s with zero values replaced by the defaults.
func (s Spec) WithDefaults() Spec {
	if s.Period <= 0 {
		s.Period = 10 * time.Second
	}
	if s.Timeout <= 0 {
		s.Timeout = time.Second
	}
	if s.Failures <= 0 {
		s.Failures = FailuresDefault
	}
	if s.Successes <= 0 {
		s.Successes = 1
	}
	return s
}

// Specs are the probes of a container, by kind; nil: no probe of that kind.
type Specs [kinds]*Spec

// Any reports whether there is any probe.
func (s Specs) Any() bool { return s != Specs{} }

// Outcome is the result of one probe.
type Outcome int

// The outcomes.
const (
	Success Outcome = iota
	Failure
	Unknown // the probe says nothing about the container
)

// Answer is the result of one probe that a Decision asked for.
type Answer struct {
	Kind    Kind
	Outcome Outcome
}

// Verdict is what the probes say about a run. A container passes probes that it does not have.
type Verdict struct {
	Starting bool // its startup probe has not succeeded yet
	Unready  bool // its readiness probe does not succeed now
	Dead     bool // it must be restarted
	By       Kind // the probe that failed
}

// Adopted is what a previous agent process had found about a container that still runs.
type Adopted struct {
	Started, Ready bool
	// Phase, in [0, 1), delays the first probes by that part of their period, so that an agent that starts with a
	// hundred running containers does not probe them all at once.
	Phase float64
}

// Run is the probes of one run of a container. It is used by one goroutine at a time. Only Step and Stop change it.
type Run struct {
	specs    Specs        // with defaults
	started  unit.Instant // when the container started
	verdict  Verdict
	stopping bool // the container is being stopped on purpose
	tracks   [kinds]track
}

// track is the state of one probe.
type track struct {
	due   unit.Instant  // when it begins next
	busy  bool          // it began and was not answered yet
	early bool          // the one that is busy is an early probe
	until unit.Instant  // probes that begin before this are early; zero: none
	wait  time.Duration // time before the next early probe
	last  Outcome       // outcome of the current row of answers
	row   int           // number of consecutive answers with outcome last
}

// NewRun returns the Run of a container that started at started. adopted is nil if this agent started the container.
func NewRun(specs Specs, now, started unit.Instant, adopted *Adopted) *Run {
	r := &Run{started: started}
	for k, s := range specs {
		if s == nil {
			continue
		}
		filled := s.WithDefaults()
		r.specs[k] = &filled
		r.first(Kind(k), now)
		if adopted != nil {
			spread := now.Add(time.Duration(adopted.Phase * float64(filled.Period)))
			r.tracks[k] = track{due: max(r.tracks[k].due, spread)}
		}
	}
	r.verdict.Starting = specs[Startup] != nil && (adopted == nil || !adopted.Started)
	r.verdict.Unready = specs[Readiness] != nil && (adopted == nil || !adopted.Ready)
	return r
}

// first sets when kind k is first probed: now or later.
func (r *Run) first(k Kind, now unit.Instant) {
	spec := r.specs[k]
	t := track{due: max(now, r.started.Add(max(spec.InitialDelay, firstAfter)))}
	if spec.Eager && k != Liveness {
		t.due = max(now, r.started.Add(spec.InitialDelay))
		t.until, t.wait = t.due.Add(spec.Period), eagerMin
	}
	r.tracks[k] = t
}

// Verdict returns the current verdict.
func (r *Run) Verdict() Verdict { return r.verdict }

// Timeout returns how long a probe of kind k may take.
func (r *Run) Timeout(k Kind) time.Duration { return r.specs[k].Timeout }

// Stop records that the container is being stopped on purpose.
func (r *Run) Stop() {
	r.stopping = true
	r.verdict.Dead = false
}

// Begin is a probe to run now. The failure of an early probe should not be reported.
type Begin struct {
	Kind  Kind
	Early bool
}

// Decision is the result of a step.
type Decision struct {
	Begin   []Begin      // probes to run now, each to be answered once
	Changed bool         // the verdict differs from that before the step
	Wake    unit.Instant // when to step again for the next probe; zero: no probe is due before an answer
}

// Step takes answers and returns what to do next.
func (r *Run) Step(now unit.Instant, answers ...Answer) Decision {
	before := r.verdict
	for _, a := range answers {
		r.take(now, a)
	}
	var d Decision
	for k := range kinds {
		t := &r.tracks[k]
		if !r.asks(k) || t.busy {
			continue
		}
		if t.due <= now {
			t.begin(now, r.specs[k].Period)
			d.Begin = append(d.Begin, Begin{k, t.early})
			continue
		}
		d.Wake = d.Wake.Earlier(t.wake())
	}
	d.Changed = r.verdict != before
	return d
}

// begin records that the probe begins, and sets when it is due next: one period later, or, if that moment has passed
// (the machine slept), one period from now. It does not catch up on missed probes.
func (t *track) begin(now unit.Instant, period time.Duration) {
	t.busy, t.early = true, now < t.until
	if t.early {
		t.due = now.Add(t.wait)
		t.wait *= 2
		if t.due > t.until {
			t.due = t.until
		}
		return
	}
	if t.due = t.due.Add(period); t.due <= now {
		t.due = now.Add(period)
	}
}

// wake returns when the probe that is due next may begin. Early probes are not rounded: they are for a quick start.
func (t *track) wake() unit.Instant {
	if t.due < t.until {
		return t.due
	}
	return t.due.RoundUp(together)
}

// asks reports whether probes of kind k run at this stage.
func (r *Run) asks(k Kind) bool {
	switch {
	case r.specs[k] == nil:
		return false
	case k == Readiness:
		return !r.verdict.Starting && (!r.verdict.Dead || r.verdict.By == Liveness)
	case r.stopping || r.verdict.Dead:
		return false
	case k == Startup:
		return r.verdict.Starting
	}
	return !r.verdict.Starting
}

// take processes one answer.
func (r *Run) take(now unit.Instant, a Answer) {
	t := &r.tracks[a.Kind]
	t.busy = false
	if a.Outcome == Unknown || !r.asks(a.Kind) || t.early && a.Outcome == Failure {
		return
	}
	if t.row > 0 && t.last == a.Outcome {
		t.row++
	} else {
		t.last, t.row = a.Outcome, 1
	}
	spec := r.specs[a.Kind]
	switch {
	case a.Outcome == Failure && t.row < spec.Failures, a.Outcome == Success && t.row < spec.Successes:
		return
	case a.Kind == Readiness:
		r.verdict.Unready = a.Outcome == Failure
		if t.early { // it has succeeded: from now on by its period
			t.until, t.due = 0, now.Add(spec.Period)
		}
	case a.Outcome == Failure:
		r.verdict.Dead, r.verdict.By = true, a.Kind
	case a.Kind == Startup:
		r.verdict.Starting = false
		for _, k := range []Kind{Readiness, Liveness} { // they begin now, or later if their initial delay is not over
			if r.specs[k] != nil {
				r.first(k, now)
			}
		}
	}
}
