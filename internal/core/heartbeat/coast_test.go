package heartbeat

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestCoastIsStep plays the same node by Coast and by Step, for random durations, and compares the complete state.
func TestCoastIsStep(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		c := Config{
			Seed:         seed,
			RuntimeEvery: -1,
			MainLoopMax:  -1,
			ReportEvery:  time.Duration(1+random.IntN(60)) * 5 * time.Second,
		}
		latency := time.Duration(1 + random.IntN(int(3*time.Second)))
		start := unit.Instant(0).Add(time.Hour)
		slow := newCoaster(c, start, latency)
		slow.until(start.Add(time.Minute)) // registered, and no longer synchronous with other nodes
		slow.settle()
		fast := *slow.beat
		now := slow.now
		for range 20 {
			now = now.Add(time.Duration(random.Int64N(int64(10 * time.Minute))))
			renewed, reported := slow.renewed, slow.reported
			slow.until(now)
			gotRenewed, gotReported := fast.Coast(now, latency)
			if slow.beat.coasts() {
				want := *slow.beat
				if want != fast {
					t.Fatalf("seed %d at %v: Coast leaves\n%+v, Step\n%+v", seed, now.Sub(start), fast, want)
				}
				if gotRenewed != 0 && gotRenewed != slow.renewed || gotRenewed == 0 && slow.renewed != renewed ||
					gotReported != 0 && gotReported != slow.reported || gotReported == 0 && slow.reported != reported {
					t.Fatalf("seed %d at %v: Coast renewed at %v and reported at %v, Step at %v and %v", seed, now.Sub(start),
						gotRenewed, gotReported, slow.renewed, slow.reported)
				}
			} else { // a request of Step is in flight that Coast has not begun: both finish it
				slow.settle()
				now = max(now, slow.now)
				fast = *slow.beat
			}
		}
	}
}

// coaster plays a Beat by calls of Step.
type coaster struct {
	beat              *Beat
	now               unit.Instant
	latency           time.Duration
	answers           map[FactKind]unit.Instant
	renewed, reported unit.Instant // when the last ones were sent that were answered
	sent              map[FactKind]unit.Instant
}

func newCoaster(c Config, now unit.Instant, latency time.Duration) *coaster {
	return &coaster{
		beat:    New(c, now),
		now:     now,
		latency: latency,
		answers: map[FactKind]unit.Instant{},
		sent:    map[FactKind]unit.Instant{},
	}
}

// until plays everything that happens before end.
func (c *coaster) until(end unit.Instant) {
	for c.now < end {
		c.now = c.step()
	}
}

// settle plays until nothing is in flight.
func (c *coaster) settle() {
	for !c.beat.coasts() {
		c.now = c.step()
	}
}

// step reports what is due at c.now, and returns when something is due next.
func (c *coaster) step() unit.Instant {
	var facts []Fact
	// In the order in which Coast takes answers of one moment.
	for _, kind := range []FactKind{Registered, Renewed, Reported} {
		if at, waits := c.answers[kind]; waits && at <= c.now {
			delete(c.answers, kind)
			facts = append(facts, Fact{Kind: kind, OK: true})
			switch kind {
			case Renewed:
				c.renewed = c.sent[kind]
			case Reported:
				c.reported = c.sent[kind]
			}
		}
	}
	d := c.beat.Step(c.now, facts...)
	for again := true; again; {
		for kind, wanted := range map[FactKind]bool{Registered: d.Register, Renewed: d.Renew, Reported: d.Report} {
			if wanted {
				c.answers[kind], c.sent[kind] = c.now.Add(c.latency), c.now
			}
		}
		if again = d.Compute; again {
			d = c.beat.Step(c.now, Fact{Kind: Computed, OK: true})
		}
	}
	next := d.Wake
	for _, at := range c.answers {
		next = next.Earlier(at)
	}
	return next
}

func TestCoastWaitsForTrouble(t *testing.T) {
	now := unit.Instant(0).Add(time.Hour)
	c := newCoaster(Config{Seed: 1, RuntimeEvery: -1, MainLoopMax: -1}, now, time.Millisecond)
	if renewed, _ := c.beat.Coast(now.Add(time.Hour), time.Millisecond); renewed != 0 {
		t.Error("it coasts before it is registered")
	}
	c.until(now.Add(time.Minute))
	c.beat.Step(now.Add(time.Minute), Fact{Kind: NodeGone})
	if renewed, _ := c.beat.Coast(now.Add(time.Hour), time.Millisecond); renewed != 0 {
		t.Error("it coasts without its Node")
	}
}

func BenchmarkCoast(b *testing.B) {
	now := unit.Instant(0).Add(time.Hour)
	c := newCoaster(Config{Seed: 1, RuntimeEvery: -1, MainLoopMax: -1}, now, time.Millisecond)
	c.until(now.Add(time.Minute))
	now = now.Add(time.Minute)
	for b.Loop() { // one operation is ten seconds of a node
		now = now.Add(10 * time.Second)
		c.beat.Coast(now, time.Millisecond)
	}
}
