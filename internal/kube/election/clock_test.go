package election

import (
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// sleep lets the machine of p sleep for d, during which Go's clock stands still.
func (p *process) sleep(d time.Duration) { p.asleep.Add(int64(d)) }

// A leader that wakes up after others may have taken its Lease does not act, however soon Holds is called; it ends at
// its next attempt.
func TestALeaderThatSleptDoesNotAct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		a := s.start(t, "a")
		wait(time.Minute)
		a.sleep(15 * time.Second)
		other := &Candidate{c: Default("test")}
		other.c.Identity = "other"
		s.mu.Lock()
		s.store(other.fill(s.lease.DeepCopy(), time.Now()))
		s.mu.Unlock()
		if leads(a) {
			t.Error("a leads when it wakes up, and another does")
		}
		wait(3 * time.Second)
		select {
		case err := <-a.ended:
			if !errors.Is(err, ErrLost) {
				t.Errorf("ended with %v", err)
			}
		default:
			t.Fatal("it goes on")
		}
		if holder := holderOf(s.stored()); holder != "other" {
			t.Errorf("the lease is held by %q", holder)
		}
	})
}

// A short sleep does not change the leader. A waiting candidate does not count its own sleep as silence of the leader.
func TestSleepThatDoesNotMatter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		a := s.start(t, "a")
		wait(time.Second)
		b := s.start(t, "b")
		wait(time.Minute)
		a.sleep(5 * time.Second)
		if !leads(a) {
			t.Error("a does not lead after a short sleep")
		}
		wait(time.Minute)
		s.cut("a", true)
		b.sleep(time.Hour)
		wait(8 * time.Second)
		if !leads(a) || leads(b) {
			t.Errorf("when b wakes up: a leads %v, b leads %v", leads(a), leads(b))
		}
		s.cut("a", false)
		wait(time.Minute)
		for _, p := range []*process{a, b} {
			p.stop()
			if err := <-p.ended; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestSinceBoot compares the clock with another source of the kernel.
func TestSinceBoot(t *testing.T) {
	before := SinceBoot()
	text, err := os.ReadFile("/proc/uptime") // "350735.47 234388.90", seconds since boot and idle
	after := SinceBoot()
	if err != nil {
		t.Fatal(err)
	}
	word, _, _ := strings.Cut(string(text), " ")
	uptime, err := time.ParseDuration(word + "s")
	const grain = 10 * time.Millisecond
	if err != nil || uptime < before-grain || uptime > after+grain {
		t.Errorf("%v to %v, the kernel says %q (%v)", before, after, text, err)
	}
}

// The other process's clock does not matter: its renewTime may have any value; what counts is that the Lease changes.
func TestClocksOfOthersDoNotMatter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{down: map[string]bool{}}
		other := &Candidate{c: Default("test")}
		other.c.Identity = "other"
		s.mu.Lock()
		s.store(other.fill(&coordinationv1.Lease{}, time.Now().Add(-50*time.Hour)))
		s.mu.Unlock()
		a := s.start(t, "a")
		for range 5 { // it renews, with a clock far behind
			wait(10 * time.Second)
			s.mu.Lock()
			s.store(other.fill(s.lease.DeepCopy(), time.Now().Add(-50*time.Hour)))
			s.mu.Unlock()
		}
		if leads(a) {
			t.Error("a took the lease of one that lives")
		}
		wait(14 * time.Second)
		if leads(a) {
			t.Error("a took the lease before its time")
		}
		wait(6 * time.Second)
		if !leads(a) {
			t.Error("a did not take the lease of one that is dead")
		}
		a.stop()
		<-a.ended
	})
}
