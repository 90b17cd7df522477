package probe

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/scenario"
)

// TestScenarios plays testdata/*.txt in virtual time. A block is a new container, one command per line, and the
// outcome: which probes began, and what changed. CONTRIBUTING.md says how to rewrite outcomes.
//
//	container [KIND=DELAY/PERIOD/FAILURES/SUCCESSES[/eager]]... [adopted=started,ready] [phase=0.5]
//	    KIND: startup, readiness, liveness; times in seconds; adopted: it ran before the agent began, in that state
//	script KIND OUTCOMES   answers of that probe from now on, one letter each: s, f, u; the last one repeats
//	takes KIND DURATION    how long that probe takes to answer
//	run DURATION           time passes
//	stop                   the container is being stopped
func TestScenarios(t *testing.T) {
	scenario.Play(t, "testdata", "container", func(t *testing.T, d *datadriven.TestData) string {
		w := newWorld(d)
		for command := range strings.Lines(d.Input) {
			w.command(t, d, strings.Fields(command))
		}
		return w.out.String()
	})
}

// world is one container in virtual time.
type world struct {
	now     unit.Instant
	began   unit.Instant
	run     *Run
	scripts [kinds]string
	takes   [kinds]time.Duration
	pending []pending
	out     strings.Builder
}

type pending struct {
	at     unit.Instant
	answer Answer
}

func kindOf(s string) Kind {
	for k, name := range kindNames {
		if strings.EqualFold(name, s) {
			return Kind(k)
		}
	}
	panic("unknown kind " + s)
}

func seconds(s string) time.Duration {
	n, err := strconv.ParseFloat(s, 64)
	if err != nil {
		panic(err)
	}
	return time.Duration(n * float64(time.Second))
}

func (w *world) command(t *testing.T, d *datadriven.TestData, fields []string) {
	duration := func(text string) time.Duration { return scenario.Duration(t, d, text) }
	switch fields[0] {
	case "script":
		w.scripts[kindOf(fields[1])] = fields[2]
	case "takes":
		w.takes[kindOf(fields[1])] = duration(fields[2])
	case "stop":
		w.run.Stop()
		w.print("stopping", "")
	case "run":
		w.pass(w.now.Add(duration(fields[1])))
	default:
		d.Fatalf(t, "unknown command %q", fields[0])
	}
}

func newWorld(d *datadriven.TestData) *world {
	w := &world{now: unit.Instant(1e15), began: unit.Instant(1e15)}
	var specs Specs
	var adopted *Adopted
	for _, arg := range d.CmdArgs {
		value := arg.Vals[0]
		switch arg.Key {
		case "adopted":
			adopted = &Adopted{Started: strings.Contains(value, "started"), Ready: strings.Contains(value, "ready")}
		case "phase":
			adopted.Phase = seconds(value).Seconds()
		default:
			parts := strings.Split(value, "/")
			failures, _ := strconv.Atoi(parts[2])
			successes, _ := strconv.Atoi(parts[3])
			specs[kindOf(arg.Key)] = &Spec{
				InitialDelay: seconds(parts[0]),
				Period:       seconds(parts[1]),
				Failures:     failures,
				Successes:    successes,
				Eager:        len(parts) > 4,
			}
		}
	}
	started := w.now
	if adopted != nil {
		started = w.now.Add(-time.Hour)
	}
	w.run = NewRun(specs, w.now, started, adopted)
	for k := range kinds {
		w.scripts[k] = "s"
	}
	w.print("begins", "")
	return w
}

func (w *world) print(what, detail string) {
	v := w.run.Verdict()
	state := []string{}
	if v.Starting {
		state = append(state, "starting")
	}
	if v.Unready {
		state = append(state, "unready")
	} else if !v.Starting {
		state = append(state, "ready")
	}
	if v.Dead {
		state = append(state, "dead by "+v.By.String())
	}
	fmt.Fprintf(&w.out, "%6.1fs %-18s %s\n", w.now.Sub(w.began).Seconds(), strings.TrimSpace(what+" "+detail),
		strings.Join(state, ", "))
}

// pass lets time pass until end, from one event to the next.
func (w *world) pass(end unit.Instant) {
	for {
		var answers []Answer
		rest := w.pending[:0]
		for _, p := range w.pending {
			if p.at <= w.now {
				answers = append(answers, p.answer)
			} else {
				rest = append(rest, p)
			}
		}
		w.pending = rest
		d := w.run.Step(w.now, answers...)
		if d.Changed {
			w.print("changed", "")
		}
		for _, b := range d.Begin {
			k := b.Kind
			early := ""
			if b.Early {
				early = " early"
			}
			outcome := Success
			switch w.scripts[k][0] {
			case 'f':
				outcome = Failure
			case 'u':
				outcome = Unknown
			}
			if len(w.scripts[k]) > 1 {
				w.scripts[k] = w.scripts[k][1:]
			}
			w.pending = append(w.pending, pending{w.now.Add(w.takes[k]), Answer{k, outcome}})
			w.print(k.String(), map[Outcome]string{Success: "ok", Failure: "fails", Unknown: "unknown"}[outcome]+early)
		}
		next := d.Wake
		for _, p := range w.pending {
			next = next.Earlier(p.at)
		}
		if next.IsZero() || next > end {
			w.now = end
			return
		}
		w.now = max(w.now, next)
	}
}
