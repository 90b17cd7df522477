package probe

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/scenario"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

var rewrite = flag.Bool("rewrite", false, "write the real outcomes into testdata")

// world is one container in virtual time. Commands:
//
//	container startup=delay/period/failures/successes[/eager] readiness=... liveness=... [adopted=started,ready] [phase=0.5]
//	script <kind> <outcomes>   answers of that probe from now on, one letter each: s, f, u; the last one repeats
//	takes <kind> <duration>    how long that probe takes to answer
//	run <duration>             let time pass; prints what is begun and what changes
//	stop                       the container is being stopped
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

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			w := &world{}
			got := scenario.Run(string(text), w.command)
			if got == string(text) {
				return
			}
			if !*rewrite {
				t.Fatalf("outcome differs (run with -rewrite and read the diff):\n%s", got)
			}
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		})
	}
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

func (w *world) command(line string) string {
	w.out.Reset()
	fields := strings.Fields(line)
	switch fields[0] {
	case "container":
		w.container(fields[1:])
	case "script":
		w.scripts[kindOf(fields[1])] = fields[2]
	case "takes":
		d, err := time.ParseDuration(fields[2])
		if err != nil {
			return err.Error()
		}
		w.takes[kindOf(fields[1])] = d
	case "stop":
		w.run.Stop()
		w.print("stopping", "")
	case "run":
		d, err := time.ParseDuration(fields[1])
		if err != nil {
			return err.Error()
		}
		w.pass(w.now.Add(d))
	default:
		return "unknown command " + fields[0]
	}
	return w.out.String()
}

func (w *world) container(fields []string) {
	*w = world{now: unit.Instant(1e15), began: unit.Instant(1e15)}
	var specs Specs
	var adopted *Adopted
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		switch name {
		case "adopted":
			adopted = &Adopted{Started: strings.Contains(value, "started"), Ready: strings.Contains(value, "ready")}
		case "phase":
			adopted.Phase = seconds(value).Seconds()
		default:
			parts := strings.Split(value, "/")
			failures, _ := strconv.Atoi(parts[2])
			successes, _ := strconv.Atoi(parts[3])
			specs[kindOf(name)] = &Spec{InitialDelay: seconds(parts[0]), Period: seconds(parts[1]), Failures: failures, Successes: successes, Eager: len(parts) > 4}
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
	fmt.Fprintf(&w.out, "%6.1fs %-18s %s\n", w.now.Sub(w.began).Seconds(), strings.TrimSpace(what+" "+detail), strings.Join(state, ", "))
}

// pass lets time pass until end, jumping from one event to the next.
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
