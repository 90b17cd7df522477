package probe

import (
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestTogether runs containers that started at different moments for a minute. Their probes begin at common moments,
// each at most 50 ms after it is due, and in a minute each has as many as without that delay.
func TestTogether(t *testing.T) {
	const period = time.Second
	started := unit.Instant(time.Hour)
	end := started.Add(time.Minute)
	moments := map[unit.Instant]bool{}
	for i := range 100 {
		began := started.Add(time.Duration(i) * 7919 * time.Microsecond) // up to 0.8 s apart
		r := NewRun(Specs{Liveness: {Period: period}}, began, began, nil)
		count := 0
		for now := began; now <= end; {
			d := r.Step(now)
			if len(d.Begin) == 1 {
				due := began.Add(firstAfter + time.Duration(count)*period)
				if late := now.Sub(due); late < 0 || late >= 50*time.Millisecond {
					t.Fatalf("container %d: probe %d began %v after it was due", i, count, late)
				}
				moments[now] = true
				count++
				d = r.Step(now, Answer{Kind: Liveness, Outcome: Success})
			}
			if now = d.Wake; now.IsZero() {
				t.Fatalf("container %d: nothing is due after %d probes", i, count)
			}
		}
		if without := int((end.Sub(began) - firstAfter) / period); count < without {
			t.Errorf("container %d: %d probes in a minute, want at least %d", i, count, without)
		}
	}
	if most := int(time.Minute / (50 * time.Millisecond)); len(moments) > most {
		t.Errorf("probes began at %d moments, want at most %d", len(moments), most)
	}
}

// TestEarlyAlone checks that early probes, which make a quick start visible, are not delayed.
func TestEarlyAlone(t *testing.T) {
	began := unit.Instant(time.Hour).Add(7 * time.Millisecond)
	r := NewRun(Specs{Readiness: {Period: 10 * time.Second, Eager: true}}, began, began, nil)
	if d := r.Step(began); len(d.Begin) != 1 {
		t.Fatalf("at the start: %+v, want a readiness probe", d)
	}
	d := r.Step(began, Answer{Kind: Readiness, Outcome: Failure})
	if want := began.Add(eagerMin); d.Wake != want {
		t.Errorf("the second early probe is due %v after the start, want %v", d.Wake.Sub(began), want.Sub(began))
	}
}
