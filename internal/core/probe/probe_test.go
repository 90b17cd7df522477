package probe

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

func randomSpecs(rnd *rand.Rand) (specs Specs) {
	for k := range specs {
		if rnd.IntN(3) > 0 {
			specs[k] = &Spec{
				InitialDelay: time.Duration(rnd.IntN(5)) * time.Second,
				Period:       time.Duration(rnd.IntN(4)) * time.Second,
				Failures:     rnd.IntN(4),
				Successes:    rnd.IntN(3),
				Eager:        rnd.IntN(2) == 0,
			}
		}
	}
	return specs
}

// TestRandomHistories checks the package's invariants on random probes, answers and times.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		specs := randomSpecs(rnd)
		now := unit.Instant(time.Hour)
		var adopted *Adopted
		if rnd.IntN(3) == 0 {
			adopted = &Adopted{Started: rnd.IntN(2) == 0, Ready: rnd.IntN(2) == 0, Phase: rnd.Float64()}
		}
		begun := now
		r := NewRun(specs, now, now, adopted)
		busy := map[Kind]bool{}
		stopping := false
		failures := 0 // consecutive counted failures of the probes that may make it dead
		for step := range 200 {
			var answers []Answer
			for k := range kinds {
				if busy[k] && rnd.IntN(2) == 0 {
					a := Answer{k, Outcome(rnd.IntN(3))}
					answers = append(answers, a)
					busy[k] = false
					if k != Readiness && a.Outcome == Failure {
						failures++
					}
				}
			}
			if rnd.IntN(100) == 0 {
				r.Stop()
				stopping = true
			}
			was := r.Verdict()
			d := r.Step(now, answers...)
			v := r.Verdict()
			for _, b := range d.Begin {
				if busy[b.Kind] || specs[b.Kind] == nil {
					t.Fatalf("seed %d step %d: %v begun while busy or without a spec", seed, step, b.Kind)
				}
				if b.Kind != Startup && v.Starting || v.Dead && b.Kind != Readiness || stopping && b.Kind != Readiness {
					t.Fatalf("seed %d step %d: %v begun in %+v, stopping %v", seed, step, b.Kind, v, stopping)
				}
				if now < begun.Add(specs[b.Kind].InitialDelay) {
					t.Fatalf("seed %d step %d: %v begun before its delay", seed, step, b.Kind)
				}
				busy[b.Kind] = true
			}
			switch {
			case d.Changed != (was != v), len(answers) == 0 && d.Changed:
				t.Fatalf("seed %d step %d: changed %v from %+v to %+v by %v", seed, step, d.Changed, was, v, answers)
			case was.Dead && !v.Dead, v.Dead && failures == 0, stopping && v.Dead && !was.Dead:
				t.Fatalf("seed %d step %d: %+v then %+v", seed, step, was, v)
			case !was.Starting && v.Starting:
				t.Fatalf("seed %d step %d: starting again", seed, step)
			case !d.Wake.IsZero() && d.Wake <= now:
				t.Fatalf("seed %d step %d: wake %v is not after %v", seed, step, d.Wake, now)
			}
			anyBusy := false
			for _, b := range busy {
				anyBusy = anyBusy || b
			}
			if d.Wake.IsZero() && !anyBusy && !v.Dead && !stopping && specs.Any() {
				// With a startup probe only, nothing is left to do once it has succeeded.
				if specs[Readiness] != nil || specs[Liveness] != nil || v.Starting {
					t.Fatalf("seed %d step %d: nothing busy, no wake: forgotten", seed, step)
				}
			}
			now = now.Add(time.Duration(rnd.IntN(1500)) * time.Millisecond)
		}
	}
}
