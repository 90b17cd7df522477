package psi

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/epoll"
	"github.com/plimsoll-dev/plimsoll/test/cost"
)

const machine = "/proc/pressure/memory"

func TestTriggerOnThisKernel(t *testing.T) {
	s, err := Trigger(machine, Threshold{Stall: 100 * time.Millisecond, Window: time.Second})
	if errors.Is(err, ErrNone) || errors.Is(err, os.ErrPermission) {
		t.Skipf("needs pressure stall information: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	c, err := epoll.New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Add(s); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(0); err != nil { // whether something stalls meanwhile does not matter
		t.Fatal(err)
	}
	if _, err := Trigger(machine, Threshold{Stall: time.Second, Window: time.Minute}); err == nil ||
		errors.Is(err, ErrNone) {
		t.Errorf("a window of a minute is the kernel's to refuse: %v", err)
	}
}

func TestNoPressureIsRecognized(t *testing.T) {
	if _, err := Trigger(filepath.Join(t.TempDir(), "memory.pressure"), Threshold{}); !errors.Is(err, ErrNone) {
		t.Errorf("no file: %v, want %v", err, ErrNone)
	}
	if _, err := Read(filepath.Join(t.TempDir(), "memory.pressure")); !errors.Is(err, ErrNone) {
		t.Errorf("no file: %v, want %v", err, ErrNone)
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text string
		want Pressure
		err  string // empty: none
	}{
		{
			"some avg10=1.50 avg60=0.17 avg300=1.11 total=3057682\nfull avg10=0.00 avg60=40.13 avg300=0.96 total=232971\n",
			Pressure{Stall{1.5, 0.17, 1.11, 3057682 * time.Microsecond}, Stall{0, 40.13, 0.96, 232971 * time.Microsecond}}, "",
		},
		{"some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", Pressure{Some: Stall{Total: 7 * time.Microsecond}}, ""},
		{"", Pressure{}, `line 1: "": total: missing`},
		{"full avg10=0.00 total=7\n", Pressure{}, "line some: missing"},
		{"some avg10=0.00\n", Pressure{}, "total: missing"},
		{"some avg10=0.00 total=-7\n", Pressure{}, "total: want a number of microseconds"},
		{"some avg10=0.00 total=9223372036854775807\n", Pressure{}, "total: want a number of microseconds"},
		{"some avg10=oops total=7\n", Pressure{}, `line 1: "some avg10=oops total=7": avg10: want a percentage`},
		{"some avg60=101 total=7\n", Pressure{}, "avg60: want a percentage"},
		{"some avg60=NaN total=7\n", Pressure{}, "avg60: want a percentage"},
		{"few avg10=0.00 total=7\n", Pressure{}, "want some or full"},
	} {
		got, err := parse(c.text)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q: %+v, %v", c.text, got, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	cost.Attack(f,
		"some avg10=0.00 avg60=0.00 avg300=0.00 total=3057682\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=232971\n")
	f.Fuzz(func(t *testing.T, text string) {
		defer cost.Spend(t, len(text))()
		p, err := parse(text)
		for _, s := range []Stall{p.Some, p.Full} {
			if err == nil && (s.Total < 0 || !(s.Avg60 >= 0 && s.Avg60 <= 100)) {
				t.Errorf("%q: %+v", text, s)
			}
		}
	})
}
