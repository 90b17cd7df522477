package watchdog

import (
	"cmp"
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

// TestScenarios plays testdata/*.txt: one service that begins to start at 0s. "watchdog timeout=D loops=D" says the
// timeout of its watchdog and how long a turn of a loop may take. Lines of the input:
//
//	begin NAME...             these loops are started
//	works NAME...             they no longer wait for what they need to begin
//	run TIME [NAME...]        time passes; these loops turn whenever Step is called, the others do not
//
// Printed is what systemd is told, and when.
func TestScenarios(t *testing.T) {
	scenario.Play(t, "testdata", "watchdog", func(t *testing.T, d *datadriven.TestData) string {
		p := &player{w: New(Config{Timeout: argument(t, d, "timeout"), LoopMax: argument(t, d, "loops")}), now: start}
		p.step(nil)
		for line := range strings.Lines(d.Input) {
			words := strings.Fields(line)
			switch words[0] {
			case "begin":
				for _, name := range words[1:] {
					p.loops = append(p.loops, Loop{Name: name})
				}
				p.step(nil)
			case "works":
				for i, l := range p.loops {
					p.loops[i].Works = l.Works || slices.Contains(words[1:], l.Name)
				}
			case "run":
				p.run(scenario.Duration(t, d, words[1]), words[2:])
			default:
				d.Fatalf(t, "unknown line %q", line)
			}
		}
		return p.out.String()
	})
}

func argument(t *testing.T, d *datadriven.TestData, name string) time.Duration {
	t.Helper()
	var text string
	d.ScanArgs(t, name, &text)
	return scenario.Duration(t, d, text)
}

// start is an arbitrary moment.
const start = unit.Instant(1000 * time.Second)

// player plays one scenario.
type player struct {
	w     *Watchdog
	now   unit.Instant
	wake  unit.Instant
	loops []Loop
	said  string
	out   strings.Builder
}

// step calls Step, as the shell does when it wakes, and prints what is new.
func (p *player) step(turning []string) {
	for i, l := range p.loops {
		if slices.Contains(turning, l.Name) {
			p.loops[i].Turned = p.now
		}
	}
	d := p.w.Step(p.now, p.loops)
	p.wake = d.Wake
	var says []string
	if d.Extend > 0 {
		says = append(says, fmt.Sprintf("needs %v more to start", d.Extend))
	}
	if d.Ready {
		says = append(says, "ready")
	}
	if d.Alive {
		says = append(says, "alive")
	}
	if stuck := strings.Join(d.Stuck, " "); stuck != p.said {
		p.said = stuck
		if stuck != "" {
			stuck = "stuck: " + stuck
		}
		says = append(says, cmp.Or(stuck, "all turn"))
	}
	if len(says) > 0 {
		fmt.Fprintf(&p.out, "%v %s\n", p.now.Sub(start), strings.Join(says, ", "))
	}
}

// run lets time pass, from wake-up to wake-up.
func (p *player) run(length time.Duration, turning []string) {
	end := p.now.Add(length)
	for !p.wake.IsZero() && max(p.wake, p.now) < end {
		p.now = max(p.wake, p.now)
		p.step(turning)
	}
	p.now = end
	p.step(turning)
}

// TestRandom: whatever the loops do, what the package promises holds.
func TestRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		c := Config{Timeout: time.Duration(r.IntN(20)) * time.Second, LoopMax: time.Duration(1+r.IntN(60)) * time.Second}
		history(t, r, c)
	}
}

// history plays one random service. Its shell is at most a second late.
func history(t *testing.T, r *rand.Rand, c Config) {
	t.Helper()
	w := New(c)
	var loops []Loop
	var began, ready, said unit.Instant
	for now := start; now < start.Add(20*time.Minute); {
		if loops == nil && r.IntN(20) == 0 {
			began = now
			loops = []Loop{{Name: "a"}, {Name: "b"}}
		}
		stuck := false
		for i := range loops {
			if r.IntN(3) > 0 {
				loops[i].Turned = now
			}
			loops[i].Works = loops[i].Works || r.IntN(10) == 0
			stuck = stuck || now.Sub(max(loops[i].Turned, began)) > c.LoopMax
		}
		d := w.Step(now, loops)
		if d.Ready && (!ready.IsZero() || stuck || loops == nil) || d.Alive && (ready.IsZero() && !d.Ready || stuck) ||
			d.Extend > 0 && (!ready.IsZero() || stuck) || stuck != (len(d.Stuck) > 0) {
			t.Fatalf("%+v at %v: stuck %v, ready since %v: %+v", c, now, stuck, ready, d)
		}
		if d.Ready {
			ready = now
		}
		if d.Alive || stuck {
			said = now
		}
		if !ready.IsZero() && c.Timeout > 0 && now.Sub(said) > max(c.Timeout/2, aliveMin)+time.Second {
			t.Fatalf("%+v at %v: nothing said since %v", c, now, said)
		}
		if d.Wake.IsZero() {
			if ready.IsZero() || c.Timeout > 0 {
				t.Fatalf("%+v at %v: never again: %+v", c, now, d)
			}
			return
		}
		if d.Wake <= now {
			t.Fatalf("%+v at %v: wakes at %v", c, now, d.Wake)
		}
		now = d.Wake.Add(time.Duration(r.IntN(1000)) * time.Millisecond)
	}
}
