package psi

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/host/alarm"
)

const machine = "/proc/pressure/memory"

func TestTriggerOnThisKernel(t *testing.T) {
	s, err := Trigger(machine, Threshold{Stall: 100 * time.Millisecond, Window: time.Second})
	if errors.Is(err, ErrNone) || errors.Is(err, os.ErrPermission) {
		t.Skipf("needs pressure stall information: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	c, err := alarm.New()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Add(s); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Wait(0); err != nil { // whether something stalls meanwhile is the machine's business
		t.Fatal(err)
	}
	if _, err := Trigger(machine, Threshold{Stall: time.Second, Window: time.Minute}); err == nil || errors.Is(err, ErrNone) {
		t.Errorf("a window of a minute is the kernel's to refuse: %v", err)
	}
}

func TestNoPressureIsToldApart(t *testing.T) {
	if _, err := Trigger(filepath.Join(t.TempDir(), "memory.pressure"), Threshold{}); !errors.Is(err, ErrNone) {
		t.Errorf("no file: %v, want %v", err, ErrNone)
	}
	if _, _, err := Total(filepath.Join(t.TempDir(), "memory.pressure")); !errors.Is(err, ErrNone) {
		t.Errorf("no file: %v, want %v", err, ErrNone)
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		text       string
		some, full time.Duration
		ok         bool
	}{
		{"some avg10=0.00 avg60=0.00 avg300=0.00 total=3057682\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=232971\n", 3057682 * time.Microsecond, 232971 * time.Microsecond, true},
		{"some avg10=0.00 avg60=0.00 avg300=0.00 total=7\n", 7 * time.Microsecond, 0, true},
		{"", 0, 0, false},
		{"full avg10=0.00 total=7\n", 0, 0, false},
		{"some avg10=0.00 total=-7\n", 0, 0, false},
		{"some avg10=0.00 total=9223372036854775807\n", 0, 0, false},
		{"few avg10=0.00 total=7\n", 0, 0, false},
	} {
		some, full, err := parse(c.text)
		if some != c.some || full != c.full || (err == nil) != c.ok {
			t.Errorf("%q: %v, %v, %v", c.text, some, full, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("some avg10=0.00 avg60=0.00 avg300=0.00 total=3057682\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=232971\n")
	f.Fuzz(func(t *testing.T, text string) {
		if some, full, err := parse(text); err == nil && (some < 0 || full < 0) {
			t.Errorf("%q: negative stall", text)
		}
	})
}
