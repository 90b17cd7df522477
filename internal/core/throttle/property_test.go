package throttle

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// history drives a Limiter at random and checks its invariants. It returns the decisions as text.
func history(t *testing.T, seed uint64) string {
	t.Helper()
	chance := rand.New(rand.NewPCG(seed, 1))
	o := Options{InFlightMax: 1 + chance.IntN(40), Tolerance: 1.1 + 10*chance.Float64()}
	w := &world{
		now:    start,
		l:      New(start, o),
		server: server{base: time.Duration(1+chance.IntN(50)) * time.Millisecond, parallel: 1 + chance.IntN(30)},
	}
	trace := ""
	closed := unit.Instant(0) // until when a refusal forbade writes
	longest := time.Duration(0)
	for range 400 {
		switch chance.IntN(8) {
		case 0:
			w.server.answer, w.server.retryAfter = Refused, time.Duration(chance.IntN(15))*time.Second
		case 1:
			w.server.answer, w.server.failsAfter, w.server.retryAfter = Failed,
				time.Duration(chance.IntN(3000))*time.Millisecond, 0
		case 2:
			w.server.others = chance.IntN(40)
		case 3:
			if k := Kind(chance.IntN(int(kindCount))); w.l.Waiting(k) > 0 {
				w.l.Quit(k)
			}
		case 4, 5:
			w.server.answer = Answered
		default:
			k := Kind(chance.IntN(int(kindCount)))
			for range chance.IntN(100) {
				w.l.Want(w.now, k)
			}
		}
		before := w.began
		w.start()
		if w.now < closed && w.began != before {
			t.Fatalf("seed %d: a write began at %v, although a refusal asked for nothing before %v", seed, w.now.Sub(start),
				closed.Sub(start))
		}
		if w.l.InFlight() > o.InFlightMax || w.l.Limit() > float64(o.InFlightMax) || w.l.Limit() < limitMin {
			t.Fatalf("seed %d: %d in flight, limit %v, at most %d", seed, w.l.InFlight(), w.l.Limit(), o.InFlightMax)
		}
		for _, f := range w.flights {
			longest = max(longest, f.Took)
			if f.Answer == Refused && f.ends <= w.now.Add(time.Millisecond) {
				closed = max(closed, f.ends.Add(min(f.RetryAfter, RetryAfterMax)))
			}
		}
		w.run(w.now.Add(time.Duration(chance.IntN(3000)) * time.Millisecond))
		for k := range kindCount {
			waited := w.now.Sub(w.l.since[k])
			if limit := time.Duration(kindCount)*(RetryAfterMax+longest) + StarveAfter; w.l.waiting[k] > 0 && waited > limit {
				t.Fatalf("seed %d: %s waits for %v, at most %v", seed, k, waited, limit)
			}
			if w.l.waiting[k] < 0 || w.l.inFlight[k] < 0 {
				t.Fatalf("seed %d: %s: %d wait, %d in flight", seed, k, w.l.waiting[k], w.l.inFlight[k])
			}
		}
		trace += fmt.Sprintln(w.now, w.l.Limit(), w.began)
	}
	return trace
}

// TestRandomHistories: whatever the server does, the limit is kept, refusals are obeyed, no kind starves, and the same
// history gives the same decisions.
func TestRandomHistories(t *testing.T) {
	for seed := range uint64(60) {
		if a, b := history(t, seed), history(t, seed); a != b {
			t.Fatalf("seed %d: the same history gave other decisions", seed)
		}
	}
}

// TestRandomServers: under a burst that does not end, any server is well used, and its answers, also those to other
// clients, take hardly longer than at rest.
func TestRandomServers(t *testing.T) {
	for seed := range uint64(60) {
		chance := rand.New(rand.NewPCG(seed, 2))
		s := server{base: time.Duration(2+chance.IntN(100)) * time.Millisecond, parallel: 2 + chance.IntN(12)}
		w := &world{now: start, l: New(start, Options{InFlightMax: 64, Tolerance: ToleranceDefault}), server: s}
		for range 500_000 {
			w.l.Want(w.now, Mark)
		}
		w.start()
		w.run(start.Add(20 * time.Second))
		before, total, flying := w.began[Mark], 0.0, 0
		for range 1000 {
			w.run(w.now.Add(10 * time.Millisecond))
			total += float64(w.l.InFlight())
			flying++
		}
		rate, most := float64(w.began[Mark]-before)/10, float64(s.parallel)/s.base.Seconds()
		took := total / float64(flying) / rate // Little's law
		slow := took > 2*s.base.Seconds()+slack.Seconds()
		if most < 1.25/PeriodMax.Seconds() {
			slow = false // it handles little more than one write in each PeriodMax, which is sent whatever the limit
		}
		if rate < 0.7*most || slow {
			t.Errorf("seed %d: base %v, %d at once: %.0f/s of %.0f, %.1f ms each, limit %.1f", seed, s.base, s.parallel, rate,
				most, 1000*took, w.l.Limit())
		}
	}
}

// TestFirstThings: when all kinds wait, two thirds of the writes are marks, and every kind gets some.
func TestFirstThings(t *testing.T) {
	for parallel := 1; parallel <= 64; parallel *= 2 {
		w := &world{
			now:    start,
			l:      New(start, Options{InFlightMax: 64, Tolerance: ToleranceDefault}),
			server: server{base: 5 * time.Millisecond, parallel: parallel},
		}
		for _, k := range Kinds() {
			if k == Bind || k == Overdue {
				continue // a component that marks nodes does not bind, and its Events do not become overdue
			}
			for range 100_000 {
				w.l.Want(w.now, k)
			}
		}
		w.start()
		w.run(start.Add(10 * time.Second))
		all := 0
		for _, k := range Kinds() {
			all += w.began[k]
			if w.began[k] < 10 && k != Bind && k != Overdue {
				t.Errorf("%d at once: %d of kind %s in 10 s: at least one a second", parallel, w.began[k], k)
			}
		}
		if 3*w.began[Mark] < 2*all-3 || 50*w.began[Event] > all {
			t.Errorf("%d at once: of %d writes %d were marks, %d Events", parallel, all, w.began[Mark], w.began[Event])
		}
	}
}

// TestCrowdOfClasses: the memory for classes is limited, however many there are.
func TestCrowdOfClasses(t *testing.T) {
	l := New(start, Options{InFlightMax: 1, Tolerance: ToleranceDefault})
	now := start
	for i := range 10_000 {
		l.Want(now, Event)
		if _, ok := l.Next(now); !ok {
			now = l.Wake(now)
			if _, ok = l.Next(now); !ok {
				t.Fatal("no write may start although none is in flight")
			}
		}
		now = now.Add(time.Millisecond)
		l.Done(now, Outcome{Kind: Event, Class: Class(fmt.Sprint(i)), Took: time.Millisecond})
	}
	if len(l.rests) > classesMax {
		t.Errorf("%d classes are kept", len(l.rests))
	}
}

// TestSlowServerIsAskedAsUpstreamAsks: when others make all requests many times slower, writes do not wait forever:
// slowMin writes are in flight at all times, or 20 a second are sent, at most eight at once, until the server refuses.
func TestSlowServerIsAskedAsUpstreamAsks(t *testing.T) {
	for _, others := range []int{50, 200, 400} {
		w := &world{
			now:    start,
			l:      New(start, Options{InFlightMax: 32, Tolerance: ToleranceDefault}),
			server: server{base: 4 * time.Millisecond, parallel: 4},
		}
		for range 100_000 {
			w.l.Want(w.now, Mark)
		}
		w.start()
		w.run(start.Add(time.Second))
		w.server.others = others
		w.run(start.Add(2 * time.Second))
		before, most := w.began[Mark], 0
		for range 2000 {
			w.run(w.now.Add(5 * time.Millisecond))
			most = max(most, w.l.InFlight())
		}
		took := w.server.serve(Mark, slowMin).Took
		want := max(200, int(slowMin*10*time.Second/took))
		if n := w.began[Mark] - before; n < want*8/10 || n > want*11/10 || most > floorInFlight {
			t.Errorf("%d others: %d writes in 10 s, %d in flight, want about %d, and %d", others, n, most, want, floorInFlight)
		}
	}
}

// TestHangingBindsHoldUpNobody: while as many writes of one kind as the limit allows get no answer, each other kind
// starts one a second.
func TestHangingBindsHoldUpNobody(t *testing.T) {
	l := New(start, Options{InFlightMax: 72, Tolerance: 30})
	now := start
	for range 1000 {
		l.Want(now, Bind)
	}
	for n := 0; n < 200; n++ { // the limit rises to what the server handles
		if _, ok := l.Next(now); ok {
			now = now.Add(time.Millisecond)
			l.Done(now, Outcome{Kind: Bind, Class: "bind", Took: time.Millisecond})
		}
	}
	for _, ok := l.Next(now); ok; _, ok = l.Next(now) { // from now on nothing is answered
	}
	began := map[Kind]int{}
	for end := now.Add(20 * time.Second); now < end; now = now.Add(100 * time.Millisecond) {
		for _, k := range []Kind{Evict, Status} {
			l.Want(now, k)
		}
		for k, ok := l.Next(now); ok; k, ok = l.Next(now) {
			if began[k]++; k != Bind {
				l.Done(now, Outcome{Kind: k, Class: "other", Took: time.Millisecond})
			}
		}
	}
	if began[Evict] < 15 || began[Status] < 15 || l.InFlight() > 72 {
		t.Errorf("in 20 s of hanging binds: %v, %d in flight", began, l.InFlight())
	}
}
