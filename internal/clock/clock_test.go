package clock

import (
	"sync"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// fake is a clock that a test sets.
type fake struct{ t time.Time }

func (f *fake) now() time.Time { return f.t }

func TestNow(t *testing.T) {
	f := &fake{time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)}
	c := From(f.now, Start)
	for _, step := range []struct {
		name string
		move time.Duration
		want time.Duration // since Start
	}{
		{"at first", 0, 0},
		{"later", time.Minute, time.Minute},
		{"the clock goes back", -time.Hour, time.Minute},
		{"and on from there", time.Second, time.Minute + time.Second},
		{"by little", -time.Millisecond, time.Minute + time.Second},
		{"by a year", -365 * 24 * time.Hour, time.Minute + time.Second},
		{"and on from there, too", time.Second, time.Minute + 2*time.Second},
		{"and far ahead", 24 * time.Hour, 24*time.Hour + time.Minute + 2*time.Second},
	} {
		f.t = f.t.Add(step.move)
		if got := c.Now().Sub(Start); got != step.want {
			t.Errorf("%s: %s after the start, want %s", step.name, got, step.want)
		}
	}
}

func TestInstants(t *testing.T) {
	f := &fake{time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)}
	c := From(f.now, Start)
	for _, past := range []time.Duration{time.Second, time.Hour, 200 * 365 * 24 * time.Hour} {
		if got := c.Instant(f.t.Add(-past)); got != 1 {
			t.Errorf("Instant of %s ago = %d, want 1", past, got)
		}
	}
	at := f.t.Add(time.Hour)
	if got := c.At(c.Instant(at)); !got.Equal(at) {
		t.Errorf("At(Instant(%s)) = %s", at, got)
	}
	old := From(f.now, unit.Instant(time.Hour))
	if got := old.Now().Sub(old.Instant(f.t.Add(-time.Minute))); got != time.Minute {
		t.Errorf("what happened a minute ago is %s old", got)
	}
}

// TestNowOfMany: concurrent callers do not make the clock run ahead of the one below it.
func TestNowOfMany(t *testing.T) {
	c := New()
	zero := c.At(0)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20000 {
				c.Now()
			}
		})
	}
	all.Wait()
	if moved := zero.Sub(c.At(0)); moved != 0 {
		t.Errorf("it is %s ahead", moved)
	}
}
