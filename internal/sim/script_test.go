package sim

import (
	"reflect"
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// TestDay: the day of the project's performance bar can be simulated on a small cluster.
func TestDay(t *testing.T) {
	script, err := ParseScript(Day)
	if err != nil || len(script) < 15 {
		t.Fatalf("%d events, %v", len(script), err)
	}
	results, err := Run(Options{Nodes: 600, Zones: 10, PodsPerNode: 1, For: forMax / 365, Script: script,
		Policies: []Policy{Ours()}})
	if err != nil {
		t.Fatal(err)
	}
	if r := results[0]; r.Unknown.P99 > 0.25 || r.Wronged > 0 || r.ReadyAtEnd != 600 || r.Waiting > 0 {
		t.Errorf("%+v", r)
	}
}

func FuzzParseScript(f *testing.F) {
	cost.Attack(f, Day)
	cost.Attack(f, troubles)
	cost.Attack(f, "at 1h api down\nat 1h api up # back")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		events, err := ParseScript(text)
		if err != nil {
			return
		}
		var again strings.Builder
		for _, e := range events {
			again.WriteString(e.String() + "\n")
		}
		reread, err := ParseScript(again.String())
		if err != nil || !reflect.DeepEqual(events, reread) {
			t.Fatalf("read %+v, wrote %q, read %+v, %v", events, again.String(), reread, err)
		}
	})
}
