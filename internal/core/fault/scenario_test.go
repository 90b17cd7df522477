package fault

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// TestScenarios plays testdata/*.txt: a script over a few nodes, and the effect on each node as time passes.
//
//	script nodes=N zones=N until=DURATION seed=N    the input is a script; prints every change of every node
//	read                                            the input is a script; prints it as parsed, or its problems
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			orders, err := ParseScript(d.Input)
			if err != nil {
				return err.Error() + "\n"
			}
			var out strings.Builder
			if d.Cmd == "read" {
				for _, o := range orders {
					fmt.Fprintln(&out, o)
				}
				return out.String()
			}
			var nodes, zones int
			var until string
			var seed uint64
			d.ScanArgs(t, "nodes", &nodes)
			d.ScanArgs(t, "zones", &zones)
			d.ScanArgs(t, "until", &until)
			d.ScanArgs(t, "seed", &seed)
			end, err := time.ParseDuration(until)
			if err != nil {
				t.Fatal(err)
			}
			play(&out, orders, nodes, zones, seed, end)
			return out.String()
		})
	})
}

func play(out *strings.Builder, orders []Order, nodes, zones int, seed uint64, end time.Duration) {
	start := unit.Instant(time.Hour)
	faults := make([]Fault, nodes)
	last := make([]Effect, nodes)
	all := make([]Candidate, nodes)
	for i := range all {
		all[i] = Candidate{Name: fmt.Sprintf("n%d", i), Zone: fmt.Sprintf("z%d", i%zones)}
	}
	for now := start; now <= start.Add(end); {
		for len(orders) > 0 && start.Add(orders[0].At) <= now {
			for i := range all {
				all[i].Faulty = faults[i].Kind(now) != ""
			}
			picked, err := orders[0].Pick(seed, all)
			if err != nil {
				fmt.Fprintf(out, "%6s %v\n", now.Sub(start), err)
			}
			for _, i := range picked {
				faults[i] = orders[0].Begin(now, Chance(seed, all[i].Name))
			}
			orders = orders[1:]
		}
		var next unit.Instant
		for i := range faults {
			e, change := faults[i].Now(now)
			next = next.Earlier(change)
			if e != last[i] {
				fmt.Fprintf(out, "%6s %s %s\n", now.Sub(start).Round(100*time.Millisecond), all[i].Name, describe(e))
				last[i] = e
			}
		}
		if len(orders) > 0 {
			next = next.Earlier(start.Add(orders[0].At))
		}
		if next.IsZero() {
			return
		}
		now = next
	}
}

func describe(e Effect) string {
	switch {
	case e.Silent:
		return "silent"
	case e.Cut:
		return "cut off"
	case e.NotReady:
		return "not ready"
	case e.Delay > 0:
		return "slow by " + e.Delay.String()
	}
	return "well"
}

// TestPickIsFair: over many seeds every node of a zone is picked about as often, and no node of another zone.
func TestPickIsFair(t *testing.T) {
	all := make([]Candidate, 30)
	for i := range all {
		all[i] = Candidate{Name: fmt.Sprintf("n%d", i), Zone: fmt.Sprintf("z%d", i%3)}
	}
	picks := make([]int, len(all))
	const seeds = 2000
	o := Order{Kind: Silence, Select: Selector{Zone: "z1", Count: 5}}
	for seed := range uint64(seeds) {
		picked, err := o.Pick(seed, all)
		if err != nil || len(picked) != 5 {
			t.Fatalf("seed %d: %v, %v", seed, picked, err)
		}
		for _, i := range picked {
			picks[i]++
		}
	}
	for i, n := range picks {
		if all[i].Zone != "z1" && n > 0 || all[i].Zone == "z1" && (n < seeds*4/10 || n > seeds*6/10) {
			t.Errorf("%s of %s was picked %d times of %d", all[i].Name, all[i].Zone, n, seeds)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"silence count=50 zone=zone-1 for=10m", "at 5m return", "flap up=1s down=2s percent=10", "slow delay=1s nodes=a,b",
		"at", "flap up=-1s",
	} {
		cost.Attack(f, text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		o, err := Parse(text)
		if err != nil {
			return
		}
		again, err := Parse(o.String())
		if err != nil || !reflect.DeepEqual(o, again) {
			t.Fatalf("%q is read as %+v and written as %q, which is read as %+v, %v", text, o, o, again, err)
		}
		now := unit.Instant(1)
		fault := o.Begin(now, 7)
		for range 5 {
			_, next := fault.Now(now)
			if next.IsZero() {
				break
			}
			if next <= now {
				t.Fatalf("%s: at %d changes next at %d", o, now, next)
			}
			now = next
		}
	})
}
