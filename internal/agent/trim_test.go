package agent

import (
	"testing"
	"time"
)

// TestMemoryIsReturnedAfterABurst: memory is returned as soon as pods have not changed for trimQuiet after a change,
// and otherwise each trimEvery.
func TestMemoryIsReturnedAfterABurst(t *testing.T) {
	now := time.Unix(1e9, 0)
	times := trimTimes{next: now.Add(trimFirst)}
	var version uint64
	var returned []time.Duration // since begun
	begun := now
	look := func(changes bool) {
		now = now.Add(trimQuiet)
		if changes {
			version++
		}
		if times.due(now, version) {
			returned = append(returned, now.Sub(begun))
		}
	}
	for range 4 {
		look(false)
	}
	for range 3 { // a burst from 20 s to 35 s
		look(true)
	}
	for range 24 {
		look(false)
	}
	want := []time.Duration{10 * time.Second, 40 * time.Second, 155 * time.Second}
	if len(returned) != len(want) {
		t.Fatalf("returned after %v, want %v", returned, want)
	}
	for i := range want {
		if returned[i] != want[i] {
			t.Errorf("returned after %v, want %v", returned, want)
		}
	}
	begun = now
	returned = nil
	for range 26 { // a burst that does not end
		look(true)
	}
	if len(returned) != 1 || returned[0] != trimEvery {
		t.Errorf("in a burst of 130 s returned after %v, want once, after %v", returned, trimEvery)
	}
}
