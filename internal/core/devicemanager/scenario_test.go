package devicemanager

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/machine"
	"github.com/plimsoll-dev/plimsoll/internal/core/numa"
	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// TestScenarios plays testdata/*.txt in virtual time. After each command it prints what the node publishes, as resource
// allocatable/capacity. CONTRIBUTING.md says how to rewrite outcomes. The commands:
//
//	node                              a new agent without knowledge
//	recall [RESOURCE=N ...]           it reads what the node published before
//	connect RESOURCE                  a plugin registers
//	list RESOURCE ID[@NODE][!] ...    its devices, ! for an unhealthy one
//	lose RESOURCE                     its connection is lost
//	run TIME                          time passes; prints what was given up
//	wait SINCE RESOURCE[: ID] ...      whether a pod that has waited so long must wait: for any devices, or for those that it has
//	facts                             the facts for the allocator
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var b *State
		var now unit.Instant
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var words []string
			for _, a := range d.CmdArgs {
				word := a.Key
				if len(a.Vals) > 0 {
					word += "=" + a.Vals[0]
				}
				words = append(words, word)
			}
			out := ""
			switch d.Cmd {
			case "node":
				b, now = NewState(), unit.Instant(time.Second)
			case "recall":
				b.Recall(now, amountsOf(t, words))
			case "connect":
				b.Connected(words[0], Options{})
			case "list":
				if !b.Listed(words[0], devicesOf(words[1:])) {
					out = "nothing new\n"
				}
			case "lose":
				b.Lost(now, words[0])
			case "run":
				out = advance(t, b, &now, words[0])
			case "wait":
				return wait(t, b, now, words)
			case "facts":
				for _, p := range b.Plugins() {
					out += fmt.Sprintf("%s gone=%t %v\n", p.Resource, p.Gone, p.Devices)
				}
				return out
			default:
				t.Fatalf("%s: unknown command %q", d.Pos, d.Cmd)
			}
			for _, a := range b.Amounts() {
				out += fmt.Sprintf("%s %d/%d\n", a.Resource, a.Allocatable, a.Capacity)
			}
			return out
		})
	})
}

func amountsOf(t *testing.T, words []string) []Amount {
	var out []Amount
	for _, w := range words {
		name, n, _ := strings.Cut(w, "=")
		a := Amount{Resource: name}
		if _, err := fmt.Sscan(n, &a.Capacity); err != nil {
			t.Fatal(err)
		}
		out = append(out, a)
	}
	return out
}

func devicesOf(words []string) []numa.Device {
	var out []numa.Device
	for _, w := range words {
		w, ill := strings.CutSuffix(w, "!")
		id, node, near := strings.Cut(w, "@")
		d := numa.Device{ID: id, Healthy: !ill}
		if near {
			d.Nodes = []machine.NUMAID{machine.NUMAID(node[0] - '0')}
		}
		out = append(out, d)
	}
	return out
}

// advance goes from one wake-up to the next, as a shell does.
func advance(t *testing.T, b *State, now *unit.Instant, text string) string {
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	out := ""
	for end := now.Add(d); ; {
		wake := b.Wake()
		if wake.IsZero() || wake > end {
			*now = end
			return out
		}
		*now = wake
		out += fmt.Sprintf("%v: given up %v\n", wake.Sub(unit.Instant(time.Second)), b.Expire(*now))
	}
}

func wait(t *testing.T, b *State, now unit.Instant, words []string) string {
	waited, err := time.ParseDuration(words[0])
	if err != nil {
		t.Fatal(err)
	}
	var asked []Ask
	for _, w := range words[1:] {
		resource, id, has := strings.Cut(w, ":")
		a := Ask{Resource: resource}
		if has {
			a.IDs = []string{id}
		}
		asked = append(asked, a)
	}
	why, until := b.Wait(now, now.Add(-waited), asked)
	switch {
	case why == "":
		return "goes on\n"
	case until.IsZero():
		return "over: " + why + "\n"
	}
	return fmt.Sprintf("waits up to %v: %s\n", until.Sub(now), why)
}

// TestRandomHistories checks the invariants of the package over long histories.
func TestRandomHistories(t *testing.T) {
	const seed = 20261120
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		b, now := NewState(), unit.Instant(1)
		lost := map[string]unit.Instant{}
		for range 200 {
			now = now.Add(time.Duration(rng.Int64N(int64(2 * time.Minute))))
			resource := fmt.Sprintf("a.b/r%d", rng.IntN(3))
			switch rng.IntN(6) {
			case 0:
				b.Recall(now, []Amount{{Resource: resource, Capacity: 1 + rng.IntN(3)}})
			case 1, 2:
				b.Connected(resource, Options{})
				delete(lost, resource)
			case 3, 4:
				b.Listed(resource, devicesOf([]string{"a", "b!", "c"}[:rng.IntN(4)]))
			case 5:
				if e := b.entries[resource]; e != nil && e.connected {
					lost[resource] = now
				}
				b.Lost(now, resource)
			}
			b.Expire(now)
			checkState(t, b, now, lost)
		}
	}
}

func checkState(t *testing.T, b *State, now unit.Instant, lost map[string]unit.Instant) {
	t.Helper()
	facts := b.Plugins()
	for _, a := range b.Amounts() {
		p := facts[slices.IndexFunc(facts, func(p numa.Plugin) bool { return p.Resource == a.Resource })]
		healthy := 0
		for _, d := range p.Devices {
			if d.Healthy {
				healthy++
			}
		}
		since, isLost := lost[a.Resource]
		switch {
		case a.Allocatable > a.Capacity || a.Allocatable != healthy:
			t.Fatalf("%+v, facts %+v", a, p)
		case p.Gone && a.Allocatable > 0 || isLost && !p.Gone:
			t.Fatalf("%+v of a plugin that is not there: %+v", a, p)
		case isLost && now >= since.Add(Grace) && a.Capacity != 0:
			t.Fatalf("%+v, lost for %v", a, now.Sub(since))
		}
		why, until := b.Wait(now, now, []Ask{{Resource: a.Resource}})
		if (why == "") != (a.Allocatable > 0) || why != "" && until > now.Add(Grace) {
			t.Fatalf("%+v, yet a pod waits until %v for %q", a, until, why)
		}
	}
	if wake := b.Wake(); !wake.IsZero() && wake <= now {
		t.Fatalf("wakes at %v, it is %v", wake, now)
	}
}
