package heartbeat

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestNoActionTwiceAndAlwaysAWake drives Beats through random histories, and checks what every shell relies on.
func TestNoActionTwiceAndAlwaysAWake(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0))
		now := unit.Instant(0).Add(time.Hour)
		b := New(Config{Seed: seed}, now)
		underWay := map[FactKind]bool{}
		var facts []Fact
		registered := false
		for range 2000 {
			d := b.Step(now, facts...)
			facts = nil
			for kind, do := range map[FactKind]bool{
				RuntimeAsked: d.AskRuntime,
				Registered:   d.Register,
				Renewed:      d.Renew,
				Computed:     d.Compute,
				Reported:     d.Report,
			} {
				if do && underWay[kind] {
					t.Fatalf("seed %d: action %d given while under way", seed, kind)
				}
				underWay[kind] = underWay[kind] || do
			}
			if (d.Renew || d.Compute || d.Report) && !registered {
				t.Fatalf("seed %d: %+v before registration", seed, d)
			}
			if d.Wake.IsZero() && !underWay[RuntimeAsked] && !underWay[Registered] && !underWay[Renewed] &&
				!underWay[Computed] && !underWay[Reported] {
				t.Fatalf("seed %d: sleeps for ever", seed)
			}
			if !d.Wake.IsZero() && d.Wake <= now {
				t.Fatalf("seed %d: wake %v is not after now %v", seed, d.Wake, now)
			}
			for kind := RuntimeAsked; kind <= Reported; kind++ {
				if underWay[kind] && random.IntN(3) == 0 {
					delete(underWay, kind)
					f := Fact{Kind: kind, OK: random.IntN(4) > 0, Changed: random.IntN(2) == 0, Ready: random.IntN(3) > 0}
					facts = append(facts, f)
					if kind == Registered && f.OK {
						registered = true
					}
				}
			}
			switch random.IntN(20) {
			case 0:
				facts = append(facts, Fact{Kind: Stale})
			case 1:
				facts = append(facts, Fact{Kind: MainLoopTurned})
			case 2:
				facts = append(facts, Fact{Kind: NodeGone})
				registered = false
			}
			now = now.Add(time.Duration(random.Int64N(int64(2 * time.Second))))
		}
	}
}

// TestSameSeedSameBeat: all randomness comes from the seed, and two seeds give different results.
func TestSameSeedSameBeat(t *testing.T) {
	play := func(seed uint64) (wakes []unit.Instant) {
		now := unit.Instant(0).Add(time.Hour)
		b := New(Config{Seed: seed, RuntimeEvery: -1, MainLoopMax: -1}, now)
		for range 50 {
			d := b.Step(now, Fact{Kind: Registered, OK: true}, Fact{Kind: Renewed, OK: true},
				Fact{Kind: Computed, OK: true}, Fact{Kind: Reported, OK: true})
			now = max(now.Add(time.Millisecond), d.Wake)
			wakes = append(wakes, d.Wake)
		}
		return wakes
	}
	a, same, other := play(1), play(1), play(2)
	differ := false
	for i := range a {
		if a[i] != same[i] {
			t.Fatalf("step %d: the same seed woke at %d and %d", i, a[i], same[i])
		}
		differ = differ || a[i] != other[i]
	}
	if !differ {
		t.Error("two nodes beat in step")
	}
}

func TestBackoffIsBoundedAndSpread(t *testing.T) {
	now := unit.Instant(0).Add(time.Hour)
	b := New(Config{Seed: 1, RuntimeEvery: -1}, now)
	for failures := range 50 {
		d := b.Step(now)
		if !d.Register {
			t.Fatalf("failure %d: no attempt", failures)
		}
		d = b.Step(now, Fact{Kind: Registered})
		wait := d.Wake.Sub(now)
		most := min(100*time.Millisecond<<min(failures, 20), 7*time.Second)
		if wait < most/2 || wait > most {
			t.Errorf("after %d failures: waits %v, want %v to %v", failures+1, wait, most/2, most)
		}
		now = d.Wake
	}
}

func BenchmarkStep(b *testing.B) {
	now := unit.Instant(0).Add(time.Hour)
	beat := New(Config{Seed: 1, RuntimeEvery: -1, MainLoopMax: -1}, now)
	beat.Step(now, Fact{Kind: Registered, OK: true})
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		d := beat.Step(now)
		if d.Renew {
			beat.Step(now, Fact{Kind: Renewed, OK: true})
		}
		if d.Compute {
			beat.Step(now, Fact{Kind: Computed, OK: true})
		}
		if d.Report {
			beat.Step(now, Fact{Kind: Reported, OK: true})
		}
	}
}
