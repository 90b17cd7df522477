package serverchoice

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/scenario"
)

// begin is an arbitrary moment.
const begin = unit.Instant(time.Hour)

// TestScenarios plays testdata/*.txt. "node use=A known=A,B" begins the choice of a node that uses A. Lines of its
// input:
//
//	up NAME... / down NAME...   from now on these servers answer, or do not; all answer at first
//	known NAME...               the cluster says that it has these
//	until TIME                  plays the time since the begin, asking as the decisions say
//
// Printed is the first decision, and each one that differs from that before.
func TestScenarios(t *testing.T) {
	scenario.Play(t, "testdata", "node", func(t *testing.T, d *datadriven.TestData) string {
		var use, known string
		d.ScanArgs(t, "use", &use)
		d.ScanArgs(t, "known", &known)
		c := New(use, strings.Split(known, ","))
		down := map[string]bool{}
		now := begin
		var out strings.Builder
		var last string
		step := func(seen Seen) Decision {
			decision := c.Step(now, seen)
			said := fmt.Sprintf("uses %s, asks %v every %v", decision.Use, decision.Ask, decision.Wake.Sub(now))
			if said != last {
				fmt.Fprintf(&out, "%v: %s\n", now.Sub(begin), said)
			}
			last = said
			return decision
		}
		decision := step(Seen{})
		for line := range strings.Lines(d.Input) {
			words := strings.Fields(line)
			switch words[0] {
			case "up", "down":
				for _, name := range words[1:] {
					down[name] = words[0] == "down"
				}
			case "known":
				decision = step(Seen{Known: words[1:]})
			case "until":
				for end := begin.Add(scenario.Duration(t, d, words[1])); decision.Wake <= end; {
					now = decision.Wake
					answered := map[string]bool{}
					for _, name := range decision.Ask {
						answered[name] = !down[name]
					}
					decision = step(Seen{Answered: answered})
				}
			default:
				d.Fatalf(t, "unknown line %q", line)
			}
		}
		return out.String()
	})
}

// TestHistories: whatever servers do, the one in use is known, is left only for one that answers and only after it was
// silent, and once one server answers for long enough, the node uses one that answers.
func TestHistories(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		all := []string{"a", "b", "c", "d"}
		c := New("a", []string{"a", "b"})
		now := begin
		decision := c.Step(now, Seen{})
		up := map[string]bool{"a": true, "b": true}
		lastAnswer := now
		for range 300 {
			now = decision.Wake.Add(time.Duration(r.IntN(3)) * time.Second)
			if r.IntN(20) == 0 {
				up[all[r.IntN(len(all))]] = r.IntN(2) == 0
			}
			seen := Seen{Answered: map[string]bool{}}
			for _, name := range decision.Ask {
				seen.Answered[name] = up[name]
			}
			if r.IntN(30) == 0 {
				seen.Known = all[:1+r.IntN(len(all))]
			}
			before := decision.Use
			if seen.Answered[before] {
				lastAnswer = now
			}
			decision = c.Step(now, seen)
			switch {
			case !slices.Contains(c.Known(), decision.Use):
				t.Fatalf("seed %d: uses %s, knows %v", seed, decision.Use, c.Known())
			case decision.Moved != (decision.Use != before):
				t.Fatalf("seed %d: from %s to %s, moved %v", seed, before, decision.Use, decision.Moved)
			case decision.Moved && (!seen.Answered[decision.Use] || now.Sub(lastAnswer) < silenceMax):
				t.Fatalf("seed %d: to %s, answers %v, %v after the last answer", seed, decision.Use, seen.Answered,
					now.Sub(lastAnswer))
			case decision.Wake <= now:
				t.Fatalf("seed %d: wake %v at %v", seed, decision.Wake, now)
			}
			if decision.Moved {
				lastAnswer = now
			}
		}
		for _, name := range all {
			up[name] = name == "c"
		}
		seen := Seen{Known: all}
		for end := now.Add(time.Minute); now < end; now = decision.Wake {
			decision = c.Step(now, seen)
			seen = Seen{Answered: map[string]bool{}}
			for _, name := range decision.Ask {
				seen.Answered[name] = up[name]
			}
		}
		if decision.Use != "c" {
			t.Fatalf("seed %d: uses %s a minute after only c answers", seed, decision.Use)
		}
	}
}

// TestAtOnce: at its start a node does not wait for a server that is silent.
func TestAtOnce(t *testing.T) {
	for _, c := range []struct {
		up   string
		want string
	}{{"a b c", "b"}, {"c", "c"}, {"a", "a"}, {"", "b"}} {
		answered := map[string]bool{}
		for _, name := range strings.Fields(c.up) {
			answered[name] = true
		}
		if got := New("b", []string{"a", "b", "c"}).AtOnce(answered); got != c.want {
			t.Errorf("%q answer: uses %s, want %s", c.up, got, c.want)
		}
	}
}
