package cost

import (
	"strings"
	"testing"
)

// judge is a testing.TB that remembers whether it was failed.
type judge struct {
	testing.TB
	failed bool
}

func (j *judge) Helper()               {}
func (j *judge) Errorf(string, ...any) { j.failed = true }

var sink any

// TestUnderCanFail: what expands a few bytes into much memory or many steps is found, what is linear is not.
func TestUnderCanFail(t *testing.T) {
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
			for i := range 1 << 28 {
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
	for _, text := range Hostile(`{"a":[1-3,"b"]}`) {
		if len(text) < hostileLength/2 || len(text) > 2*hostileLength {
			t.Errorf("%.40q is %d bytes long", text, len(text))
		}
	}
}
