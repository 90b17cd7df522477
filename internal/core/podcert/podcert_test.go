package podcert

import (
	"slices"
	"testing"
	"time"

	"github.com/plimsoll-dev/plimsoll/internal/core/unit"
)

// start is an arbitrary moment.
const start = unit.Wall(1_800_000_000 * time.Second)

func at(d time.Duration) unit.Wall { return start + unit.Wall(d) }

// due returns how long after start the next request is due; -1: never.
func due(l *Life, earlier int) time.Duration {
	when, never := l.Due(start, earlier)
	if never {
		return -1
	}
	return max(when.Sub(start), 0)
}

func issued(refresh, expires time.Duration) Answer {
	return Answer{Phase: Issued, RefreshAt: at(refresh), Expires: at(expires)}
}

// TestLife: a new pod asks at once and once, waits for the answer, and asks again when it is to be renewed.
func TestLife(t *testing.T) {
	l := &Life{}
	if got := due(l, 0); got != 0 || l.HasCertificate() || l.State(start) != "not_yet_issued" {
		t.Errorf("a new pod asks after %v, %+v", got, l)
	}
	l.Asked(start)
	if got := due(l, 0); got != -1 || !l.Waits() {
		t.Errorf("it asks a second time after %v", got)
	}
	if l.Read(at(time.Second), Answer{}, 0) || !l.Waits() {
		t.Error("a pending request is an answer")
	}
	if !l.Read(at(time.Second), issued(16*time.Hour, 24*time.Hour), 0.5) || l.Waits() || !l.HasCertificate() {
		t.Errorf("issued: %+v", l)
	}
	if got, want := due(l, 0), 16*time.Hour+spreadMax/2; got != want || l.State(at(time.Hour)) != "fresh" {
		t.Errorf("renewed after %v, want %v", got, want)
	}
	l.Asked(at(16 * time.Hour))
	if !l.Read(at(17*time.Hour), issued(40*time.Hour, 48*time.Hour), 0) || due(l, 0) != 40*time.Hour {
		t.Errorf("renewed: %v", due(l, 0))
	}
}

// TestRefreshTimes: renewals are spread over a part of the time until then, and no answer makes them follow closely.
func TestRefreshTimes(t *testing.T) {
	for _, p := range []struct {
		refresh time.Duration
		jitter  float64
		want    time.Duration
	}{
		{30 * time.Minute, 0, 30 * time.Minute},
		{30 * time.Minute, 0.5, 31*time.Minute + 30*time.Second},
		{30 * 24 * time.Hour, 0.5, 30*24*time.Hour + 150*time.Second},
		{time.Second, 0.9, RefreshMin},
		{-time.Hour, 0.9, RefreshMin}, // this node's clock is ahead
	} {
		l := &Life{}
		l.Asked(start)
		l.Read(start, issued(p.refresh, p.refresh+time.Hour), p.jitter)
		if got := due(l, 0); got != p.want {
			t.Errorf("beginRefreshAt after %v, jitter %v: renewed after %v, want %v", p.refresh, p.jitter, got, p.want)
		}
	}
}

// TestRefusals: Denied and Failed are for good; a certificate that was there before stays.
func TestRefusals(t *testing.T) {
	for phase, state := range map[Phase]string{Denied: "denied", Failed: "failed"} {
		for _, renewal := range []bool{false, true} {
			l := &Life{}
			l.Asked(start)
			if renewal {
				l.Read(start, issued(time.Hour, 2*time.Hour), 0)
				l.Asked(at(time.Hour))
			}
			if !l.Read(at(time.Hour), Answer{Phase: phase, Reason: "r", Message: "m"}, 0) {
				t.Error("it was no answer")
			}
			a, refused := l.Refused()
			if !refused || a.Reason != "r" || a.Message != "m" || due(l, 0) != -1 || l.State(at(time.Hour)) != state ||
				l.HasCertificate() != renewal {
				t.Errorf("%v, renewal %t: %+v", phase, renewal, l)
			}
			if l.Lost(at(100 * time.Hour)); due(l, 0) != -1 {
				t.Errorf("%v: asked again", phase)
			}
		}
	}
}

// TestLost: a request that the watch does not know is waited for at first, and then made anew.
func TestLost(t *testing.T) {
	l := &Life{}
	l.Asked(start)
	if l.Lost(at(LostAfter-1)) || due(l, 0) != -1 {
		t.Error("lost too early")
	}
	if !l.Lost(at(LostAfter)) || due(l, 0) != 0 {
		t.Errorf("not lost; asked again after %v", due(l, 0))
	}
}

// TestTries: requests that cannot be made are tried again after pauses that double; one that was made ends that.
func TestTries(t *testing.T) {
	l := &Life{}
	now := time.Duration(0)
	for i, want := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
		l.Tried(at(now))
		if got := due(l, 0) - now; got != want*time.Second {
			t.Errorf("try %d: again after %v, want %v s", i, got, want)
		}
		now = due(l, 0)
	}
	l.Asked(at(now))
	l.Lost(at(now + LostAfter))
	if got := due(l, 0); got != 0 {
		t.Errorf("then after %v", got)
	}
}

// TestCrashLoop: an agent that is started again and again, and has forgotten everything each time, makes few requests
// while the API server keeps them.
func TestCrashLoop(t *testing.T) {
	for every, most := range map[time.Duration]int{
		time.Second: 1, 15 * time.Second: 2, time.Minute: 4, 6 * time.Minute: 3,
	} {
		requests := 0
		for began := start; began < at(15*time.Minute); began += unit.Wall(every) {
			l := &Life{}
			when, never := l.Due(began, requests)
			if !never && when < began+unit.Wall(every) {
				requests++
			}
		}
		if requests > most || requests < 1 {
			t.Errorf("started every %v: %d requests within 15 min, want at most %d", every, requests, most)
		}
	}
	// Once such an agent stays, it asks.
	if got := due(&Life{}, 1); got != pauseFirst {
		t.Errorf("asks after %v", got)
	}
}

// TestAdopt: a certificate of an earlier agent is renewed after half its life, or soon; one that has expired is no use.
func TestAdopt(t *testing.T) {
	for _, p := range []struct {
		begins, expires time.Duration
		want            time.Duration // -1: not adopted
	}{
		{-time.Hour, 23 * time.Hour, 11*time.Hour + spreadMax/2},
		{-23 * time.Hour, time.Hour, spreadMax / 2},
		{-24 * time.Hour, 0, -1},
		{time.Hour, time.Hour, -1},
	} {
		l := &Life{}
		if ok := l.Adopt(start, at(p.begins), at(p.expires), 0.5); ok != (p.want != -1) {
			t.Errorf("%+v: adopted %t", p, ok)
		} else if ok && (due(l, 0) != p.want || !l.HasCertificate()) {
			t.Errorf("%+v: renewed after %v", p, due(l, 0))
		}
	}
}

// TestNotices: what is overdue or has expired is told once, and again of the next certificate.
func TestNotices(t *testing.T) {
	l := &Life{}
	if got := l.Notices(at(1000 * time.Hour)); got != nil {
		t.Errorf("without a certificate: %v", got)
	}
	for range 2 {
		l.Asked(start)
		l.Read(start, issued(time.Hour, 2*time.Hour), 0)
		for _, p := range []struct {
			now   time.Duration
			state string
			want  []Notice
		}{
			{time.Hour + OverdueAfter, "fresh", nil},
			{time.Hour + OverdueAfter + 1, "overdue_for_refresh", []Notice{Overdue}},
			{2 * time.Hour, "overdue_for_refresh", nil},
			{2*time.Hour + 1, "expired", []Notice{Expired}},
			{3 * time.Hour, "expired", nil},
		} {
			if got := l.Notices(at(p.now)); !slices.Equal(got, p.want) || l.State(at(p.now)) != p.state {
				t.Errorf("after %v: %v, %s; want %v, %s", p.now, got, l.State(at(p.now)), p.want, p.state)
			}
		}
	}
}
