package unit

import (
	"testing"
	"time"
)

func TestPrintAsKubernetesDoes(t *testing.T) {
	for _, c := range []struct {
		got, want string
	}{
		{(4039556 * KiB).String(), "4039556Ki"},
		{(1536 * MiB).String(), "1536Mi"},
		{GiB.String(), "1Gi"},
		{Bytes(59720007991).String(), "59720007991"},
		{(-2 * MiB).String(), "-2Mi"},
		{Bytes(0).String(), "0"},
		{(2 * CPU).String(), "2"},
		{MilliCPU(1250).String(), "1250m"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

func TestEarlierTreatsZeroAsNever(t *testing.T) {
	a, b := Instant(0).Add(time.Second), Instant(0).Add(2*time.Second)
	for _, c := range []struct{ t, u, want Instant }{{a, b, a}, {b, a, a}, {0, b, b}, {a, 0, a}, {0, 0, 0}} {
		if got := c.t.Earlier(c.u); got != c.want {
			t.Errorf("Instant(%d).Earlier(%d) = %d, want %d", c.t, c.u, got, c.want)
		}
	}
}

func TestRoundUp(t *testing.T) {
	for _, c := range []struct{ t, want Instant }{{0, 0}, {1, 50}, {49, 50}, {50, 50}, {51, 100}} {
		if got := c.t.RoundUp(50); got != c.want {
			t.Errorf("Instant(%d).RoundUp(50) = %d, want %d", c.t, got, c.want)
		}
	}
}

func TestWallRoundTrip(t *testing.T) {
	now := time.Date(2026, 11, 20, 1, 2, 3, 4, time.UTC)
	if got := WallOf(now).Time(); !got.Equal(now) {
		t.Errorf("got %v, want %v", got, now)
	}
	if got := WallOf(time.Time{}); got != 0 {
		t.Errorf("zero time became %d, want 0", got)
	}
}
