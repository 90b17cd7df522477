package supervise

import (
	"strings"
	"testing"

	"github.com/plimsoll-dev/plimsoll/test/cost"
)

// proc_pid_stat(5) allows anything in a process's name.
func TestParseStat(t *testing.T) {
	tail := " S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21"
	for _, name := range []string{"(sleep)", "(a b)", "(x) R 1 (y)", "())"} {
		state, ticks, err := parseStat("stat", "42 "+name+tail)
		if err != nil || state != "S" || ticks != 4711 {
			t.Errorf("%s: %q, %d, %v", name, state, ticks, err)
		}
	}
	for _, text := range []string{"", "42 (a) S 1", strings.Replace("42 (a)"+tail, "4711", "x", 1)} {
		if _, _, err := parseStat("stat", text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func FuzzParseStat(f *testing.F) {
	cost.Attack(f, "42 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 21")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		if state, _, err := parseStat("stat", text); err == nil && state == "" {
			t.Errorf("%q: neither state nor error", text)
		}
	})
}

// A mark contains the values that it was made of, whatever the owner's name; marks of other owners are not recognized.
func TestMarkRoundTrip(t *testing.T) {
	for _, owner := range []string{"/var/lib/plimsoll", "/with:colon=and equals", ""} {
		m := mark{name: "a", digest: "d1", argv: "h1"}
		if got, ok := parseMark(m.variable(owner), owner); !ok || got != m {
			t.Errorf("%q: %+v, %v", owner, got, ok)
		}
		if _, ok := parseMark(m.variable(owner), owner+"-2"); ok {
			t.Errorf("%q: taken for another's", owner)
		}
	}
}

func FuzzParseMark(f *testing.F) {
	cost.Attack(f, mark{name: "a", digest: "d", argv: "h"}.variable("/o"))
	cost.Attack(f, "PATH=/bin")
	f.Fuzz(func(t *testing.T, variable string) {
		defer cost.Spend(t, len(variable))()
		if m, ok := parseMark(variable, "/o"); ok && m.variable("/o") != variable {
			t.Errorf("%q was read as %q", variable, m.variable("/o"))
		}
	})
}
