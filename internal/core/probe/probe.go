// Package probe decides when to probe a container and what the answers mean: whether it has started, is ready, or must
// be restarted.
//
// Model. One Run per run of a container. Step takes what probes have answered since the last step and says which to run
// now; the shell runs them and reports each once. Every probe has a period, counted from when it was last begun, and
// thresholds of answers in a row that change the verdict. A startup probe comes first: until it has succeeded nothing
// else is probed, and when it fails for good the container is as dead as by its liveness probe.
//
// Invariants:
//   - A probe is not begun while the last of its kind has not answered.
//   - The verdict changes only by answers: time alone makes nobody dead or ready.
//   - An answer that is none (the runtime failed, not the container) changes nothing, not even a run of failures.
//   - Once dead, a run stays dead and is probed for death no more; only a new run helps.
//   - A stopping container is not judged dead; whether it is ready is still asked, because it may still be serving.
//
// It sends nothing and knows no protocols. Do not use it for health of nodes: that is core/lifecycle.
package probe

import (
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// Kind is what a probe asks.
type Kind int

// The kinds, in the order in which due ones are begun.
const (
	Startup   Kind = iota // has it started?
	Readiness             // should it get traffic?
	Liveness              // must it be restarted?
	kinds
)

var kindNames = [kinds]string{"Startup", "Readiness", "Liveness"}

// String spells the kind as upstream's events do.
func (k Kind) String() string { return kindNames[k] }

// Spec is one probe of a container. Zero values are upstream's defaults where the API fills none in (static pods).
type Spec struct {
	InitialDelay time.Duration // from the container's start to the first probe
	Period       time.Duration // from one begin to the next; zero: 10 s
	Timeout      time.Duration // of one probe; zero: 1 s. The shell's to keep
	Failures     int           // in a row that make it fail; zero: 3
	Successes    int           // in a row that make it succeed after a failure; zero: 1

	// Eager says that a probe costs next to nothing. A startup or readiness probe is then asked more often within its
	// first period, until it first succeeds: a container that is up after 0.4 s is not kept waiting for 10 s because it
	// was not up at once. Such early failures are nobody's fault and do not count.
	Eager bool
}

const (
	// eagerMin is the first wait between early probes; each next one is twice as long. Chosen: a program in a container
	// listens 50 ms to a few seconds after its start.
	eagerMin = 100 * time.Millisecond

	// settle is the least time from a container's start to a probe that is not eager. Chosen: upstream's first probe
	// comes with its relist of containers, up to a second after the start; sooner, it would only fail and wait a period.
	settle = time.Second
)

// WithDefaults returns s with zero values replaced.
func (s Spec) WithDefaults() Spec {
	if s.Period <= 0 {
		s.Period = 10 * time.Second
	}
	if s.Timeout <= 0 {
		s.Timeout = time.Second
	}
	if s.Failures <= 0 {
		s.Failures = 3
	}
	if s.Successes <= 0 {
		s.Successes = 1
	}
	return s
}

// Specs are the probes of a container by kind; nil: none of that kind.
type Specs [kinds]*Spec

// Any reports whether there is any probe at all.
func (s Specs) Any() bool { return s != Specs{} }

// Outcome is what one probe answered.
type Outcome int

// The outcomes.
const (
	Success Outcome = iota
	Failure
	Unknown // no answer about the container
)

// Answer is the end of one probe that a Decision asked for.
type Answer struct {
	Kind    Kind
	Outcome Outcome
}

// Verdict is what is known of a run. A container without a probe of a kind passes it.
type Verdict struct {
	Starting bool // its startup probe has not succeeded yet
	Unready  bool // its readiness probe does not succeed now
	Dead     bool // it must be restarted
	By       Kind // the probe that found it dead
}

// Adopted is what an earlier agent had found of a container that it started and that still runs.
type Adopted struct {
	Started, Ready bool
	// Phase in [0, 1) puts the first probes off by that part of their period, so that an agent that starts among a
	// hundred containers does not probe them all at once.
	Phase float64
}

// Run is the probes of one run of a container. It is used by one goroutine at a time.
type Run struct {
	specs    Specs
	started  unit.Instant // when the container started
	verdict  Verdict
	stopping bool
	tracks   [kinds]track
}

// track is one probe's course.
type track struct {
	due   unit.Instant
	busy  bool          // begun and not answered
	early bool          // the one that is busy is early
	until unit.Instant  // probes before this are early; zero: none
	wait  time.Duration // before the next early one
	last  Outcome       // of the current row
	row   int           // answers in a row that were last
}

// NewRun begins to probe a run of a container that started at started. adopted is nil for one that this agent started.
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

// first sets when kind k is first probed, now or later.
func (r *Run) first(k Kind, now unit.Instant) {
	spec := r.specs[k]
	t := track{due: max(now, r.started.Add(max(spec.InitialDelay, settle)))}
	if spec.Eager && k != Liveness {
		t.due = max(now, r.started.Add(spec.InitialDelay))
		t.until, t.wait = t.due.Add(spec.Period), eagerMin
	}
	r.tracks[k] = t
}

// Verdict returns what is known now.
func (r *Run) Verdict() Verdict { return r.verdict }

// Timeout returns how long a probe of kind k may take.
func (r *Run) Timeout(k Kind) time.Duration { return r.specs[k].Timeout }

// Stop says that the container is being stopped on purpose.
func (r *Run) Stop() {
	r.stopping = true
	r.verdict.Dead = false
}

// Begin is a probe to run now. The failure of an early one is not worth telling.
type Begin struct {
	Kind  Kind
	Early bool
}

// Decision is the outcome of a step.
type Decision struct {
	Begin   []Begin      // probes to run now, each to be answered once
	Changed bool         // the verdict is another than before the step
	Wake    unit.Instant // when the next probe is due; zero: not before an answer
}

// Step folds answers into the run and says what to do next.
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
		d.Wake = d.Wake.Earlier(t.due)
	}
	d.Changed = r.verdict != before
	return d
}

// begin notes that the probe begins and sets when it is next due: in step with the period, unless that moment is past
// too: a machine that slept does not catch up.
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

// asks reports whether probes of kind k are run at this stage.
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

// take folds one answer in.
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
		for _, k := range []Kind{Readiness, Liveness} { // from now on, not before their own delays
			if r.specs[k] != nil {
				r.first(k, now)
			}
		}
	}
}
