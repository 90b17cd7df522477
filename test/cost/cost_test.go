package cost

import (
	"encoding/json"
	"strings"
	"testing"
)

// judge is a testing.TB that records whether it was failed.
type judge struct {
	testing.TB
	failed bool
}

func (j *judge) Helper()               {}
func (j *judge) Errorf(string, ...any) { j.failed = true }

var sink any

// TestUnderCanFail: an expansion of a few bytes into much memory or many steps is found, and linear costs pass.
func TestUnderCanFail(t *testing.T) {
	steps := 1 << 28
	if instrumented {
		steps <<= 3 // the budget is ten times as large, while an empty loop does not become slower
	}
	for _, c := range []struct {
		name  string
		run   func()
		found bool
	}{
		{"nothing", func() {}, false},
		{"linear", func() { sink = strings.Repeat("x", 100<<10) }, false},
		{"memory", func() { sink = make([]byte, 64<<20) }, true},
		{"steps", func() {
			n := 0
			for i := range steps {
				n ^= i
			}
			sink = n
		}, true},
	} {
		j := &judge{TB: t}
		Under(j, Budget{}, 1000, c.run)
		if j.failed != c.found {
			t.Errorf("%s: found dear %v, want %v", c.name, j.failed, c.found)
		}
	}
}

func TestHostile(t *testing.T) {
	if len(Hostile("")) != 0 {
		t.Error("nothing became something")
	}
	valid := 0
	for _, text := range Hostile(`{"a":[{"b":"1-3"}]}`) {
		if len(text) < hostileLength/2 || len(text) > 2*hostileLength {
			t.Errorf("%.40q is %d bytes long", text, len(text))
		}
		if json.Valid([]byte(text)) {
			valid++
		}
	}
	if valid != 6 {
		t.Errorf("%d are JSON, want 6: one for each pair of brackets, and a letter, a digit and a sign within quotes", valid)
	}
	for _, text := range []string{"a", "]", "[", "[]", "}{", `{"`, "[[", "\xff"} {
		if len(Hostile(text)) == 0 {
			t.Errorf("%q: nothing", text)
		}
	}
}

// TestAttackFindsSquares: a parser that reads all text before each byte exceeds the budget of fuzz targets for what
// Hostile makes of a small seed, though each step is a nanosecond.
func TestAttackFindsSquares(t *testing.T) {
	if instrumented {
		t.Skip("the race detector's budget is ten times as large, and these steps do not become slower with it")
	}
	text := Hostile("a,b")[0]
	j := &judge{TB: t}
	func() {
		defer Spend(j, len(text))()
		n := 0
		for i := range len(text) {
			for k := range i {
				if text[k] == text[i] {
					n++
				}
			}
		}
		sink = n
	}()
	if !j.failed {
		t.Errorf("a square of %d bytes is within the budget", len(text))
	}
}
