package throttle

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt against a server whose answers take longer the more requests it has. Commands:
//
//	new max=N tolerance=X                  a Limiter without knowledge, and a server at rest
//	server base=D parallel=N others=N      from now on: how long an answer takes alone, how many requests it handles without
//	                                       delay, and how many requests of others it always has
//	server refuse retry-after=D | fail after=D | ok
//	want KIND=N ...                        so many more writes wait
//	run for=D every=D                      virtual time passes; prints a line each period
//
// A line has the moment, the limit, the number of writes in flight, and for each kind that was wanted how many writes
// began in the period and how many wait.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := &world{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			switch d.Cmd {
			case "new":
				o := Options{InFlightMax: 32, Tolerance: ToleranceDefault}
				if d.HasArg("max") {
					d.ScanArgs(t, "max", &o.InFlightMax)
				}
				if d.HasArg("tolerance") {
					var err error
					if o.Tolerance, err = strconv.ParseFloat(arg(t, d, "tolerance"), 64); err != nil {
						d.Fatalf(t, "tolerance: %v", err)
					}
				}
				*w = world{now: start, server: server{base: 5 * time.Millisecond, parallel: 4}, l: New(start, o)}
			case "server":
				w.server.order(t, d)
			case "want":
				for _, arg := range d.CmdArgs {
					k, n := kindNamed(t, arg.Key), 0
					arg.Scan(t, 0, &n)
					w.wanted[k] = true
					for range n {
						w.l.Want(w.now, k)
					}
				}
				w.start()
			case "run":
				length, every := durationArg(t, d, "for"), durationArg(t, d, "every")
				for end := w.now.Add(length); w.now < end; {
					w.run(w.now.Add(every))
					w.line(&out)
				}
			default:
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			return out.String()
		})
	})
}

const start = unit.Instant(time.Hour)

func arg(t *testing.T, d *datadriven.TestData, key string) (text string) {
	d.ScanArgs(t, key, &text)
	return text
}

func durationArg(t *testing.T, d *datadriven.TestData, key string) time.Duration {
	v, err := time.ParseDuration(arg(t, d, key))
	if err != nil {
		d.Fatalf(t, "%s: %v", key, err)
	}
	return v
}

func kindNamed(t *testing.T, name string) Kind {
	for _, k := range Kinds() {
		if k.String() == name {
			return k
		}
	}
	t.Fatalf("no kind %q", name)
	return 0
}

// server takes base for an answer, and proportionally longer when it has more than parallel requests.
type server struct {
	base       time.Duration
	parallel   int
	others     int
	answer     Answer
	retryAfter time.Duration
	failsAfter time.Duration
}

func (s *server) order(t *testing.T, d *datadriven.TestData) {
	for _, arg := range d.CmdArgs {
		switch arg.Key {
		case "base":
			s.base = durationArg(t, d, "base")
		case "parallel":
			arg.Scan(t, 0, &s.parallel)
		case "others":
			arg.Scan(t, 0, &s.others)
		case "refuse":
			s.answer, s.retryAfter = Refused, 0
		case "retry-after":
			s.retryAfter = durationArg(t, d, "retry-after")
		case "fail":
			s.answer, s.retryAfter = Failed, 0
		case "after":
			s.failsAfter = durationArg(t, d, "after")
		case "ok":
			s.answer = Answered
		default:
			d.Fatalf(t, "unknown argument %s", arg)
		}
	}
}

// serve returns the outcome of a write that begins while so many are in flight, including itself.
func (s *server) serve(k Kind, flying int) Outcome {
	o := Outcome{
		Kind:   k,
		Class:  Class(k.String()),
		Took:   time.Duration(float64(s.base) * max(1, float64(flying+s.others)/float64(s.parallel))),
		Answer: s.answer,
	}
	switch s.answer {
	case Refused:
		o.Took, o.RetryAfter = time.Millisecond, s.retryAfter
	case Failed:
		o.Took = s.failsAfter
	}
	return o
}

// flight is a write in flight.
type flight struct {
	Outcome
	ends unit.Instant
}

// world is a Limiter, its server and the clock.
type world struct {
	now     unit.Instant
	l       *Limiter
	server  server
	flights []flight
	wanted  [kindCount]bool
	began   [kindCount]int
	whys    []string
}

func (w *world) start() {
	for k, ok := w.l.Next(w.now); ok; k, ok = w.l.Next(w.now) {
		w.began[k]++
		o := w.server.serve(k, w.l.InFlight())
		w.flights = append(w.flights, flight{o, w.now.Add(o.Took)})
	}
}

// run plays until the given moment.
func (w *world) run(to unit.Instant) {
	for {
		next, ends := to, -1
		if wake := w.l.Wake(w.now); !wake.IsZero() {
			next = min(next, wake)
		}
		for i, f := range w.flights {
			if f.ends <= next && (ends < 0 || f.ends < w.flights[ends].ends) {
				ends = i
			}
		}
		if ends >= 0 {
			next = w.flights[ends].ends
		}
		w.now = max(w.now, next)
		if ends >= 0 {
			o := w.flights[ends].Outcome
			w.flights = append(w.flights[:ends], w.flights[ends+1:]...)
			if why := w.l.Done(w.now, o); why != "" {
				w.whys = append(w.whys, why)
			}
		}
		w.start()
		if w.now >= to {
			return
		}
	}
}

func (w *world) line(out *strings.Builder) {
	for _, why := range w.whys[:min(len(w.whys), 2)] {
		fmt.Fprintf(out, "  %s\n", why)
	}
	if len(w.whys) > 2 {
		fmt.Fprintf(out, "  ... %d in all\n", len(w.whys))
	}
	w.whys = nil
	fmt.Fprintf(out, "%-7v limit %-5.3g in flight %-3d", w.now.Sub(start), w.l.Limit(), w.l.InFlight())
	for k := range kindCount {
		if w.wanted[k] {
			fmt.Fprintf(out, " %s +%d, %d wait", k, w.began[k], w.l.Waiting(k))
		}
		w.began[k] = 0
	}
	out.WriteString("\n")
}
